"""Fixtures that every test may use."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run each async test on both event loops."""
    backend: str = request.param
    return backend
