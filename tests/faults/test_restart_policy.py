"""A failure that will come again is not tried again; one that may pass is."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lifecycle.journal import Kind
from lifecycle.resources.log import tail
from tests.served import HELLO, counts, fake, given_up, healthy, path_of, starts, tell

pytestmark = pytest.mark.anyio
DIES: dict[str, Any] = {"exit_before_bind": True}


@pytest.mark.fault(45, 93)
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({"say": "RuntimeError: wrong shape (12, 7)"}, id="five identical starts and a generic message"),
        pytest.param({"traceback": "KeyError: 'layers.7.weight'"}, id="a long traceback with the cause in the middle"),
        pytest.param({}, id="not a word"),
        pytest.param({"say": "Free memory is less than desired GPU memory utilization"}, id="memory that stays held"),
        pytest.param({"exit_code": 0, "say": "bye"}, id="no error at all"),
        pytest.param({"die_by": "SIGABRT", "say": "pid 4711: assertion failed"}, id="a signal"),
    ],
)
async def test_the_same_failure_twice_is_enough(tmp_path: Path, flags: dict[str, Any]) -> None:
    server = fake(tmp_path, {**DIES, **flags}, max_attempts=5)
    await given_up(server)
    assert len(starts(server)) == 2


async def test_numbers_that_differ_do_not_make_another_failure(tmp_path: Path) -> None:
    attempts = [{"say": f"12:00:{n} [pid {n}] Error at 0x7f{n}: no kernel for port {n}"} for n in (17, 42, 99)]
    server = fake(tmp_path, DIES, attempts=attempts, max_attempts=5)
    await given_up(server)
    assert len(starts(server)) == 2


async def test_failures_that_differ_are_tried_until_the_budget_is_spent(tmp_path: Path) -> None:
    attempts: list[dict[str, Any]] = [{"say": "a bad thing"}, {"say": "another"}, {"exit_code": 3}, {}]
    server = fake(tmp_path, DIES, attempts=attempts, max_attempts=3)
    error = await given_up(server)
    assert len(starts(server)) == 3
    assert "exited with code 3" in str(error)


@pytest.mark.fault(42, 95)
@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("server: error: unrecognized arguments: --disable-log-requests", "unknown-flag"),
        ("401 Client Error: Unauthorized for url: https://hub/api/models/m", "bad-credentials"),
        ("OSError: m is not a local folder and is not a valid model identifier listed on the hub", "missing-model"),
        ("ModuleNotFoundError: No module named 'engine'", "missing-library"),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
    ],
)
async def test_what_is_hopeless_is_tried_once(tmp_path: Path, line: str, cause: str) -> None:
    server = fake(tmp_path, {**DIES, "traceback": line}, max_attempts=5)
    error = await given_up(server)
    assert len(starts(server)) == 1
    assert error.diagnosis.cause == cause
    assert f"shown by: {line}" in str(error)
    assert "what to do: " in str(error)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"command": "/no/such/program --port {port}"}, "/no/such/program"),
        ({"command": "sh -c 'exec no-such-program' {port}"}, "not found"),
        ({"command": "sh -c 'exit 126' {port}"}, "could not be run"),
    ],
)
async def test_a_command_that_cannot_be_run_is_tried_once(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    server = fake(tmp_path, max_attempts=5, **settings)
    error = await given_up(server)
    assert len(starts(server)) <= 1
    assert words in str(error)


@pytest.mark.fault(94)
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("requests.exceptions.ConnectionError: We couldn't connect to the hub", id="the hub is down"),
        pytest.param("503 Server Error: Service Unavailable for url: https://hub", id="the hub is busy"),
    ],
)
async def test_what_may_pass_is_tried_until_it_does_with_a_wait_between(tmp_path: Path, line: str) -> None:
    failing = {**DIES, "say": line}
    server = fake(tmp_path, attempts=[failing, failing, failing, {}], max_attempts=5, backoff_initial=0.02)
    async with server:
        await healthy(server)
        await server.chat(HELLO)
        assert (await counts(server))["attempt"] == 4
    assert path_of(server).count("Backoff") == 3


async def test_a_port_that_was_lost_costs_no_attempt(tmp_path: Path) -> None:
    lost = {**DIES, "say": "OSError: [Errno 98] Address already in use"}
    async with fake(tmp_path, attempts=[lost, {}], max_attempts=1) as server:
        await healthy(server)


@pytest.mark.parametrize("code", [0, 1, -9])
async def test_an_exit_that_nobody_asked_for_is_a_crash_whatever_its_code(tmp_path: Path, code: int) -> None:
    async with fake(tmp_path) as server:
        await healthy(server)
        seen = server.journal.seq
        body = {"signal": "SIGKILL"} if code == -9 else {"code": code}
        with suppress(OSError):
            await tell(server, "/_exit", body)
        record = await server.driver.wait("Healthy", after=seen)
        assert record.attempt == 2
        exited = next(r for r in server.journal.records if r.event == "Exited" and r.kind is Kind.TRANSITION)
        assert exited.detail["diagnosis"]["exit_code"] == code


async def test_a_server_that_serves_and_dies_again_and_again_is_given_up_at_last(tmp_path: Path) -> None:
    server = fake(tmp_path, {"exit_after_bind": 0.3}, max_attempts=3)
    async with server:
        assert await server.ended() == "Failed"
    failed = [each for each in server.journal.records if each.kind is Kind.TRANSITION and each.after == "Draining"]
    died = [each for each in failed if each.event == "Exited" and "port-taken" not in str(each.detail)]
    assert len(died) == 3, "a port that somebody else was quicker to take costs none of them"
    assert "while it was healthy" in str(server.diagnosis)


async def test_after_a_healthy_period_the_budget_is_whole_again(tmp_path: Path) -> None:
    server = fake(tmp_path, {"exit_after_bind": 0.4}, max_attempts=2, attempt_window=0.05)
    async with server:
        seen = 0
        for _ in range(3):
            seen = (await server.driver.wait("Backoff", after=seen)).seq
        await server.kill()
    assert server.driver.facts.failures == 1


@pytest.mark.fault(57)
async def test_the_log_of_every_attempt_is_kept(tmp_path: Path) -> None:
    attempts = [{**DIES, "say": "first words"}, {**DIES, "say": "second words"}, {"say": "third words"}]
    async with fake(tmp_path, attempts=attempts) as server:
        await healthy(server)
    logs = [tail(Path(str(record.log)), 9) for record in starts(server)]
    assert [lines[0] for lines in logs] == ["first words", "second words", "third words"]
