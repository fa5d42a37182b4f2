"""A box for each test, found empty at its end."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.trees import Box


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """Folders and a mark of this test alone; whatever it started is gone afterwards. In a short path: TMPDIR of a
    server has at most 70 characters."""
    root = Path(tempfile.mkdtemp(prefix="stk-test-", dir="/tmp"))
    box = Box(root, f"mark-{secrets.token_hex(8)}")
    for folder in (box.state, box.temporary):
        folder.mkdir(mode=0o700)
    monkeypatch.setenv("TMPDIR", str(box.temporary))
    try:
        yield box
    finally:
        box.sweep()
        shutil.rmtree(root, ignore_errors=True)
