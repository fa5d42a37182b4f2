"""Fixtures for pytest, found by it wherever Stoker is installed. Nothing of Stoker is imported before one is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lifecycle.testing.fake import FakeServer


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Take looptime's own plugin out where pytest-asyncio is not installed: there it fails on every fixture (0.2 to
    0.7). Its event loop, which `run_virtual` uses, does without."""
    manager = config.pluginmanager
    theirs = manager.get_plugin("looptime_plugin")
    if theirs is not None and not manager.hasplugin("asyncio"):
        manager.unregister(theirs)


@pytest.fixture
def fake_server() -> Iterator[Callable[..., FakeServer]]:
    """Starts servers that misbehave on request: `fake_server(ready_after=0.5).url`. All have ended after the test."""
    from lifecycle.testing import fake

    with ExitStack() as stack:
        yield lambda **flags: stack.enter_context(fake.fake_server(**flags))


@pytest.fixture(params=["asyncio", "trio"])
def virtual(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs an async function on virtual time: `virtual(body, seed=3)`. The test runs on both event loops."""
    from functools import partial

    from lifecycle.testing.clock import run_virtual

    return partial(run_virtual, backend=request.param)
