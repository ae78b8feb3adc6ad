# SPDX-License-Identifier: Apache-2.0
"""pytest plugin: keep every N-th test, so that N processes share the work."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--shard``."""
    parser.addoption("--shard", default="0/1", metavar="I/N", help="run the I-th of N parts")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop the tests of the other shards; neighbours differ most, so they go to different ones."""
    index, count = map(int, config.getoption("--shard").split("/"))
    items[:] = items[index::count]
