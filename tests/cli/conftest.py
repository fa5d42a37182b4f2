from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Stoker


@pytest.fixture
def stoker(tmp_path: Path) -> Iterator[Stoker]:
    """The command; after the test nothing that it started may live and no server may be left on record."""
    command = Stoker(tmp_path)
    yield command
    assert command.live_processes() == []
    assert command.records() == []
