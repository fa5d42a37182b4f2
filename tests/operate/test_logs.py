"""What a program sees of its servers through the standard `logging`, and that it sees nothing unless it asks."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from lifecycle.testing import Life, run_virtual
from tests.simulation.world import World

PROGRAM = """
import anyio
from lifecycle import Server, ServerConfig
from lifecycle.testing import Life, SimulatedAdapter, SimulatedHost, run_virtual
import logging

async def body():
    logging.getLogger("stoker.requests").error("whatever it may be")
    adapter, host = SimulatedAdapter(), SimulatedHost([Life(ready=None, exits=1.0)] * 2)
    async with Server(ServerConfig("simulated"), adapter=adapter, host=host) as server:
        print(await server.ended())

run_virtual(body)
"""


def live(*lives: Life) -> None:
    async def body() -> None:
        world = World(*lives)
        async with world.server as server:
            await server.driver.wait("Healthy", "Failed")

    run_virtual(body)


def test_a_program_without_logging_of_its_own_sees_nothing_even_of_a_server_that_fails() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == ("Failed\n", "")


def test_each_transition_is_a_record_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stoker")
    live(Life(ready=1.0, exits=None))
    told = [record for record in caplog.records if record.name == "stoker.server"]
    states = ["Locking", "PortBound", "Starting", "Healthy", "Draining", "Stopped"]
    assert [vars(record)["stoker_after"] for record in told] == states
    assert {record.levelname for record in told} == {"INFO"}
    starting = vars(told[2])
    assert starting["stoker_server"] == "simulated"
    assert (starting["stoker_before"], starting["stoker_event"]) == ("PortBound", "Launched")
    assert starting["stoker_attempt"] == 1
    assert starting["stoker_pid"] > 0
    assert told[3].getMessage() == "simulated: Starting → Healthy (BecameReady)"


def test_a_failure_is_a_warning_with_its_cause_and_giving_up_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    live(Life(ready=None, exits=1.0), Life(ready=None, exits=1.0))
    told = [(record.levelname, vars(record)["stoker_after"], vars(record)["stoker_cause"]) for record in caplog.records]
    assert told == [("WARNING", "Draining", "exited")] * 2 + [("ERROR", "Failed", None)]
    assert "[exited]" in caplog.text


def test_what_happens_inside_a_state_is_for_those_who_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "stoker")
    live(Life(ready=1.0))
    inside = [vars(record) for record in caplog.records if record.levelname == "DEBUG"]
    assert {"begin", "phase"} <= {record["stoker_kind"] for record in inside}
