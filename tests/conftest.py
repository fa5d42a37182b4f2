"""Fixtures that every test may use."""

from __future__ import annotations

import os
import signal

import pytest

# Under nohup or a service manager SIGHUP may be ignored here, and what the tests start would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(*rows): shows rows of docs/faults.md, which is made of these marks")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run each async test on both event loops."""
    backend: str = request.param
    return backend


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With STOKER_NO_SKIPS=1 (continuous integration) a skipped test fails the run; `-ra` prints why it was skipped."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("STOKER_NO_SKIPS") == "1" and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
