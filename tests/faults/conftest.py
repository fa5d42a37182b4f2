"""Whatever a test of a fault starts, its state folder knows of no server afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert list((tmp_path / "state" / "servers").glob("*.json")) == []
