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
    """Each row runs on one of the event loops, in turn: it costs a real process, and what is shown here depends on the
    loop in few rows. STOKER_ALL_LOOPS=1 runs every row on both."""
    if os.environ.get("STOKER_ALL_LOOPS") == "1":
        return
    rows: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if HERE in item.path.parents and isinstance(item, pytest.Function) and "anyio_backend" in item.fixturenames:
            rows[item.nodeid.replace("asyncio", "").replace("trio", "")].append(item)
    dropped = [both[number % 2] for number, both in enumerate(rows.values()) if len(both) == 2]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item not in dropped]
