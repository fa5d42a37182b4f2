"""The real router, as sglang-router and as smg, before echo servers: what the fake one stands for.

The interpreter that it is installed in is named by STOKER_ROUTER_PYTHON; default: the one that
`tests/engines/install_router.py .venv/engines/router` makes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import psutil
import pytest

from backends.router import NEWER_POLICIES
from lifecycle.adapter import Launch, rules_of
from lifecycle.config import load_config
from lifecycle.diagnosis import Verdict, diagnose
from lifecycle.server import Server
from tests import front_claims
from tests.front_claims import Claim
from tests.fronts import Setup, client, complete, control, known, listed, load, make_front, served
from tests.served import GUARD, QUICK, given_up, healthy

REPOSITORY = Path(__file__).parent.parent.parent
PYTHON = Path(os.environ.get("STOKER_ROUTER_PYTHON") or REPOSITORY / ".venv/engines/router/bin/python")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    pytest.mark.skipif(
        not PYTHON.exists(),
        reason="no sglang-router: python tests/engines/install_router.py .venv/engines/router, or name one in "
        "STOKER_ROUTER_PYTHON",
    ),
]
REAL: Setup = {"python": str(PYTHON), "module": "sglang_router"}
NEWER: Setup = {"python": str(PYTHON), "module": "smg"}
both = pytest.mark.parametrize("setup", [REAL, NEWER], ids=["sglang_router", "smg"])


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The router knows nothing of event loops: one is enough."""
    return "asyncio"


def router(tmp_path: Path, **settings: object) -> Server:
    config, adapter = load_config("router", **{"state_dir": str(tmp_path / "state"), **QUICK, **REAL, **settings})
    return Server(config, adapter=adapter)


@both
@pytest.mark.parametrize("claim", front_claims.ALL, ids=lambda claim: claim.__name__)
async def test_before_the_real_router(claim: Claim, setup: Setup, tmp_path: Path) -> None:
    await claim(tmp_path, setup)


@pytest.mark.parametrize("policy", NEWER_POLICIES)
async def test_a_replica_killed_under_load_costs_no_outsider_an_answer(policy: str, tmp_path: Path) -> None:
    setup = {**NEWER, "policy": policy}
    await front_claims.a_replica_killed_under_load_costs_no_outsider_an_answer(tmp_path, setup)


@both
async def test_it_starts_without_replicas_listens_on_its_own_two_ports_and_ends(setup: Setup, tmp_path: Path) -> None:
    async with router(tmp_path, **setup) as server:
        await healthy(server)
        pid = server.driver.facts.pid
        assert pid is not None
        ports = {each.laddr.port for each in psutil.Process(pid).net_connections() if each.status == "LISTEN"}
        assert len(ports) == 2
        assert int(server.url.rpartition(":")[2]) in ports
        addresses = {each.laddr.ip for each in psutil.Process(pid).net_connections() if each.status == "LISTEN"}
        assert addresses == {"127.0.0.1"}
        assert "key" not in " ".join(psutil.Process(pid).cmdline()).lower()
    assert server.state == "Stopped"


async def test_a_flag_that_it_does_not_know_is_hopeless(tmp_path: Path) -> None:
    error = await given_up(router(tmp_path, engine_args={"bogus": True}))
    assert (error.diagnosis.cause, error.diagnosis.verdict) == ("unknown-flag", Verdict.HOPELESS)


async def test_an_interpreter_without_it_is_hopeless_and_names_the_package(tmp_path: Path) -> None:
    error = await given_up(router(tmp_path, python=sys.executable, module=""))
    assert error.diagnosis.cause == "router-missing"
    assert "pip install sglang-router" in error.diagnosis.advice


@both
def test_power_of_two_ends_a_start_without_servers(setup: Setup, tmp_path: Path) -> None:
    """Why Stoker refuses it."""
    config, adapter = load_config("router", **setup)
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        command = adapter.command(Launch(config, one.getsockname()[1], (two.getsockname()[1],), 1))
        words = ["power_of_two" if word == "cache_aware" else word for word in command.argv]
        env = {**os.environ, **{name: value for name, value in command.env.items() if value is not None}}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=GUARD)
    found = diagnose("exited", "it exited", lines=done.stderr.splitlines(), rules=rules_of(adapter), phase="start")
    assert done.returncode != 0
    assert (found.cause, found.verdict) == ("bad-configuration", Verdict.HOPELESS)


async def test_a_replica_taken_out_answers_what_it_has_and_gets_nothing_new(tmp_path: Path) -> None:
    async with make_front(tmp_path, REAL, replicas=2, latency=1.0) as front, client() as http:
        url = await served(front)
        await known(front, 2)
        answers: list[int] = []

        async def ask() -> None:
            answers.append((await complete(http, url)).status_code)

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(ask)
            with anyio.fail_after(GUARD):
                while await front_claims.in_flight(front) < 4:  # noqa: ASYNC110 - a process is not an event
                    await anyio.sleep(0.01)
            workers = (await control(front, "GET", "/workers")).body["workers"]
            for worker in workers:
                assert (await control(front, "DELETE", f"/workers/{worker['id']}")).status == 202
        assert answers == [200] * 4
        await known(front, 2)  # the registrar has put back what somebody else took out
        with anyio.fail_after(GUARD):
            while await listed(front) != sorted(front.fleet.urls):  # noqa: ASYNC110
                await anyio.sleep(0.05)


@both
async def test_replicas_that_have_no_room_for_all_still_get_what_they_have_room_for(
    setup: Setup, tmp_path: Path
) -> None:
    async with make_front(tmp_path, setup, replicas=2, latency=0.2, overload_at=2) as front:
        url = await served(front)
        await known(front, 2)
        async with load(url, connections=32) as outsiders:
            await outsiders.more(80)  # 4 to 8 s; with the router's own breakers a minute and more
        assert set(outsiders.answers) <= {"200", "503"}
