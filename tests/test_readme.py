# SPDX-License-Identifier: Apache-2.0
"""The table of promises names tests that exist, and says rightly where they run."""

import ast
import functools
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROWS = re.findall(r"^\| (.+?) \| `(test_\w+\.py)::([\w:]+)` \| (.+?) \|$",
                  (HERE / "README.md").read_text(), re.MULTILINE)  # fmt: skip


@functools.cache
def parsed(file: str) -> ast.Module:
    return ast.parse((HERE / file).read_text())


def definition(file: str, name: str) -> tuple[ast.Module, list[ast.AST]]:
    """Return the module and the path of nodes, class first, that `name` leads to."""
    module = parsed(file)
    found, scope = [], module
    for part in name.split("::"):
        named = [node for node in ast.iter_child_nodes(scope) if getattr(node, "name", "") == part]
        assert named, f"{file} has no {name}"
        scope = named[0]
        found.append(scope)
    return module, found


def marks(module: ast.Module, path: list[ast.AST]) -> str:
    decorators = [ast.unparse(d) for node in path for d in node.decorator_list]
    of_module = [ast.unparse(node) for node in module.body if isinstance(node, ast.Assign)]
    return " ".join(decorators + [text for text in of_module if text.startswith("pytestmark")])


@pytest.mark.parametrize(("promise", "file", "name", "where"), ROWS, ids=[r[2] for r in ROWS])
def test_every_promise_has_its_test(promise, file, name, where):
    module, path = definition(file, name)
    marked = marks(module, path)
    takes_device = "device" in {argument.arg for argument in path[-1].args.args}
    if "mark.two_gpus" in marked:
        assert where == "two GPUs"
    elif "mark.gpu" in marked:
        assert where == "GPU"
    else:
        assert where == ("CI, GPU" if takes_device else "CI")


def test_the_table_is_read_whole():
    table = [line for line in (HERE / "README.md").read_text().splitlines() if "| `test_" in line]
    assert len(table) == len(ROWS) > 50
