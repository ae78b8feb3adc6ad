# SPDX-License-Identifier: Apache-2.0
"""The table of promises in README.md names tests that exist, and where they run."""

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROW = re.compile(
    r"^\| (?P<promise>[^|]+) \| `(?P<file>\w+\.py)::(?P<test>[\w:]+)` \| (?P<where>[^|]+) \|$"
)
TABLE = [
    line for line in (HERE / "README.md").read_text().splitlines() if line.startswith("| ")
][2:]  # fmt: skip
WHERE = {
    frozenset(): "CI",
    frozenset({"device"}): "CI, GPU",
    frozenset({"gpu"}): "GPU",
    frozenset({"two_gpus"}): "two GPUs",
}


def find_test(file: str, name: str) -> tuple[ast.FunctionDef, str]:
    """Return a test and the source of all marks on it, its class and its module."""
    tree = ast.parse((HERE / file).read_text())
    marks = [
        ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    node: ast.AST = tree
    for part in name.split("::"):
        (node,) = (n for n in getattr(node, "body", ()) if getattr(n, "name", None) == part)
        marks += [ast.unparse(decorator) for decorator in node.decorator_list]
    assert isinstance(node, ast.FunctionDef)
    return node, " ".join(marks)


@pytest.mark.parametrize("line", TABLE, ids=lambda line: line.split("`")[1])
def test_the_test_of_a_promise_exists_and_runs_where_the_table_says(line):
    row = ROW.match(line)
    assert row is not None, line
    assert row["test"].split("::")[-1].startswith("test_")
    function, marks = find_test(row["file"], row["test"])
    needs = {name for name in ("gpu", "two_gpus") if re.search(rf"mark\.{name}\b", marks)}
    if "device" in {argument.arg for argument in function.args.args}:
        needs.add("device")
    assert row["where"] == WHERE[frozenset(needs)]


def test_no_promise_is_told_twice():
    promises = [ROW.match(line)["promise"] for line in TABLE]
    assert len(set(promises)) == len(promises) > 70
