"""Slow starts that must not be killed, dead starts that must not be waited for: is it alive, getting on, ready?"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from lifecycle.errors import StartFailed
from tests.served import GUARD, HELLO, counts, fake, given_up, listening, path_of, starts, tell

pytestmark = pytest.mark.anyio
PATIENT: dict[str, Any] = {"startup_timeout": 900.0, "no_progress_timeout": 900.0, "max_attempts": 1}
"""Nothing but the exit itself can end such a start before the test's own guard."""
USAGE = "server: error: unrecognized arguments: --wrong"


@pytest.mark.fault(1, 3, 4, 5)
@pytest.mark.parametrize(
    ("flags", "cause", "words"),
    [
        pytest.param(
            {"bind_after": 0.1, "exit_before_bind": True, "exit_code": 2, "say_err": USAGE},
            "unknown-flag", USAGE, id="polled /health for 15 minutes after a bad flag had ended it"),
        pytest.param(
            {"exit_before_bind": True, "exit_code": 0, "say": "nothing to do"},
            "exited", "exited with code 0 before it was ready", id="ends with 0 and has never served"),
        pytest.param(
            {"exit_before_bind": True, "die_by": "SIGKILL"},
            "exited", "was killed by SIGKILL before it was ready", id="killed by the kernel while it loads"),
        pytest.param(
            {"exit_before_bind": True, "die_by": "SIGSEGV"},
            "crashed", "was killed by SIGSEGV", id="crashes while it loads"),
        pytest.param(
            {"bind_after": 1, "ready_after": 0.5, "inner_deadline": 0.3, "exit_before_bind": True},
            "exited", "not ready after the inner deadline of 0.3 s", id="its own limit of 600 s is shorter than ours"),
        pytest.param(
            {"ready_after": 60, "exit_after_bind": 0.2, "say_ready": "Initialization failed. warmup error"},
            "exited", "Initialization failed. warmup error", id="answers 503 while it warms up, then kills itself"),
        pytest.param(
            {"exit_after_requests": 1, "say_ready": "compiling kernels"},
            "exited", "compiling kernels", id="dies of the very first token"),
        pytest.param(
            {"routes": {"/health": {"do": "hang"}}, "exit_after_bind": 0.2},
            "exited", "exited with code 1", id="dies while a probe waits for its answer"),
    ],
)  # fmt: skip
async def test_a_start_that_is_over_is_not_waited_for(
    tmp_path: Path, flags: dict[str, Any], cause: str, words: str
) -> None:
    error = await given_up(fake(tmp_path, flags, **PATIENT))
    assert error.diagnosis.cause == cause
    assert words in str(error)
    assert error.diagnosis.log in str(error)


FATAL = "FATAL: the scheduler is gone"


@pytest.mark.fault(2, 6, 47)
@pytest.mark.parametrize(
    ("flags", "limits", "fired"),
    [
        pytest.param(
            {"say": [f"line {n}" for n in range(30)] + [FATAL], "no_bind": True}, {"startup_timeout": 1.0},
            "startup-timeout", id="please wait for the server to become ready, without end"),
        pytest.param(
            {"child": f"same,ends=0.1,says={FATAL}", "no_bind": True, "repeat_line": "waiting for 1 core engine",
             "repeat_every": 0.001}, {"no_progress_timeout": 1.0},
            "no-progress", id="the engine has died, its parent says for two hours that it waits"),
        pytest.param(
            {"say": FATAL, "ready_after": 900}, {"startup_timeout": 1.0},
            "startup-timeout", id="listens, and is never ready"),
        pytest.param(
            {"say": FATAL, "routes": {"/health": {"do": "hang"}}}, {"no_progress_timeout": 1.0},
            "no-progress", id="listens, and never answers"),
        pytest.param(
            {"say": FATAL, "routes": {"/v1/completions": {"do": "headers"}}}, {"startup_timeout": 1.0},
            "startup-timeout", id="is ready by its own word, and not one token comes"),
        pytest.param(
            {"say": FATAL, "no_bind": True, "on_term": "ignore"}, {"startup_timeout": 1.0, "terminate_timeout": 0.5,
             "drain_timeout": 0.5}, "startup-timeout", id="never binds, and does not obey when it is ended"),
    ],
)  # fmt: skip
async def test_the_error_names_the_limit_that_fired_its_value_and_the_line_that_shows_the_cause(
    tmp_path: Path, flags: dict[str, Any], limits: dict[str, Any], fired: str
) -> None:
    error = await given_up(fake(tmp_path, flags, **{**PATIENT, **limits}))
    setting = fired.replace("-", "_") + "_timeout" if fired == "no-progress" else "startup_timeout"
    assert error.diagnosis.cause == fired
    assert f"{setting} = {limits[setting]:g} s" in str(error)
    assert f"raise {setting}" in str(error)
    assert FATAL in str(error)


@pytest.mark.fault(2)
async def test_a_known_cause_in_the_log_is_named_although_only_the_deadline_ended_the_start(tmp_path: Path) -> None:
    cause = "huggingface_hub.errors.GatedRepoError: 401 Client Error: access is restricted"
    server = fake(tmp_path, {"traceback": cause, "no_bind": True}, **{**PATIENT, "startup_timeout": 0.5})
    error = await given_up(server)
    assert error.diagnosis.cause == "bad-credentials"
    assert error.diagnosis.evidence == cause
    assert "startup_timeout = 0.5 s" in str(error)


@pytest.mark.fault(5, 46)
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({"bind_after": 0.4}, id="binds late"),
        pytest.param({"ready_after": 0.4}, id="is ready long after it binds"),
        pytest.param({"routes": {"/v1/models": {"status": 503, "until": 0.4}}}, id="lists no model at first"),
        pytest.param({"routes": {"/v1/completions": {"status": 500, "until": 0.4}}}, id="fails the first requests"),
        pytest.param({"routes": {"/v1/completions": {"delay": 0.4, "first": 1}}}, id="compiles in the first request"),
        pytest.param({"routes": {"/health": {"do": "reset", "until": 0.4}}}, id="resets connections at first"),
    ],
)
async def test_a_slow_start_is_waited_for(tmp_path: Path, flags: dict[str, Any]) -> None:
    server = fake(tmp_path, flags, startup_timeout=20.0, max_attempts=1)
    async with server:
        with anyio.fail_after(GUARD):
            await server.healthy()
            await server.chat(HELLO)
    assert len(starts(server)) == 1


@pytest.mark.fault(6)
async def test_a_start_that_says_something_new_gets_on_and_one_that_repeats_itself_does_not(tmp_path: Path) -> None:
    """Several times as long as the limit; in the end it is the same words again that end the start."""
    limit = 1.0
    server = fake(
        tmp_path, {"routes": {"/health": {"status": 503}}}, max_attempts=1, startup_timeout=900.0,
        no_progress_timeout=limit,
    )  # fmt: skip
    async with server:
        with anyio.fail_after(GUARD):
            await server.driver.wait("Starting")
            await listening(server)
            for number in range(9):
                await anyio.sleep(limit / 4)
                await tell(server, "/_say", {"text": f"12:00:{number:02} layer {'x' * number}"})
            assert server.state == "Starting"
            while server.state == "Starting":
                await anyio.sleep(limit / 4)
                with suppress(OSError):
                    await tell(server, "/_say", {"text": "12:00:59 still waiting"})
            with pytest.raises(StartFailed, match="no_progress_timeout"):
                await server.healthy()


@pytest.mark.fault(8)
async def test_two_that_wait_for_one_server_agree(tmp_path: Path) -> None:
    """Also those who come late, and those who ask by sending a request."""
    found: list[str] = []

    async def wait(server: Any) -> None:
        try:
            found.append(await server.healthy())
        except StartFailed as error:
            found.append(error.diagnosis.signature)

    for flags in ({"bind_after": 0.2}, {"bind_after": 0.2, "exit_before_bind": True}):
        found.clear()
        server = fake(tmp_path, flags, max_attempts=1)
        with anyio.fail_after(GUARD):
            async with server:
                async with anyio.create_task_group() as group:
                    group.start_soon(wait, server)
                    group.start_soon(wait, server)
                await wait(server)
        assert len(found) == 3
        assert len(set(found)) == 1


@pytest.mark.fault(55)
async def test_ready_is_seen_without_a_word_in_the_log(tmp_path: Path) -> None:
    server = fake(tmp_path, {"no_banner": True, "ready_after": 0.3})
    async with server:
        with anyio.fail_after(GUARD):
            await server.healthy()
            assert (await counts(server))["statuses"]["503"] >= 1
    assert path_of(server) == ["Locking", "PortBound", "Starting", "Healthy", "Draining", "Stopped"]
