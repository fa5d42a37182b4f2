"""Whatever a test of a fault starts, its state folder knows of no server afterwards."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert list((tmp_path / "state" / "servers").glob("*.json")) == []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The first row of each test runs on both event loops, further rows on one of them in turn: a row costs a real
    process. STOKER_ALL_LOOPS=1 runs every row on both."""
    if os.environ.get("STOKER_ALL_LOOPS") == "1":
        return
    rows: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if HERE in item.path.parents and isinstance(item, pytest.Function) and "anyio_backend" in item.fixturenames:
            name, _, row = item.nodeid.partition("[")
            rows[name][row.replace("asyncio", "").replace("trio", "")].append(item)
    dropped = [
        both[number % 2]
        for of_test in rows.values()
        for number, both in enumerate(of_test.values())
        if number and len(both) == 2
    ]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in dropped]
