"""The real sglang-router before echo servers: what the fake one stands for, seen on the real thing.

The interpreter that it is installed in is named by STOKER_ROUTER_PYTHON; default: the one that
`tests/engines/install_router.py .venv/engines/router` makes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest

from backends.router import POLICIES
from lifecycle.config import load_config
from lifecycle.diagnosis import Verdict
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
REAL: Setup = {"python": str(PYTHON)}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The router knows nothing of event loops: one is enough."""
    return "asyncio"


def router(tmp_path: Path, **settings: object) -> Server:
    config, adapter = load_config("router", **{"state_dir": str(tmp_path / "state"), **QUICK, **REAL, **settings})
    return Server(config, adapter=adapter)


@pytest.mark.parametrize("claim", front_claims.ALL, ids=lambda claim: claim.__name__)
async def test_before_the_real_router(claim: Claim, tmp_path: Path) -> None:
    await claim(tmp_path, REAL)


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_replica_killed_under_load_costs_no_outsider_an_answer(policy: str, tmp_path: Path) -> None:
    setup = {**REAL, "policy": policy}
    await front_claims.a_replica_killed_under_load_costs_no_outsider_an_answer(tmp_path, setup)


async def test_it_starts_without_replicas_listens_on_its_own_two_ports_and_ends(tmp_path: Path) -> None:
    async with router(tmp_path) as server:
        await healthy(server)
        pid = server.driver.facts.pid
        assert pid is not None
        import psutil

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
    error = await given_up(router(tmp_path, python=sys.executable))
    assert error.diagnosis.cause == "router-missing"
    assert "pip install sglang-router" in error.diagnosis.advice


async def test_power_of_two_ends_a_start_without_servers(tmp_path: Path) -> None:
    """Why Stoker refuses it."""
    arguments = {"prefill-policy": "random"}
    server = router(tmp_path, engine_args=arguments)
    command = server.adapter.command
    server.adapter = type(server.adapter)()
    server.activities.adapter = server.adapter

    def worse(launch: object) -> object:
        made = command(launch)  # type: ignore[arg-type]
        words = ["power_of_two" if word == "cache_aware" else word for word in made.argv]
        return type(made)(tuple(words), made.env)

    server.adapter.command = worse  # type: ignore[assignment,method-assign]
    error = await given_up(server)
    assert error.diagnosis.cause == "bad-configuration"


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


async def test_replicas_that_have_no_room_for_all_still_get_what_they_have_room_for(tmp_path: Path) -> None:
    async with make_front(tmp_path, REAL, replicas=2, latency=0.2, overload_at=2) as front:
        url = await served(front)
        await known(front, 2)
        async with load(url, connections=32) as outsiders:
            await outsiders.more(80)  # 4 to 8 s; with the router's own breakers a minute and more
        assert set(outsiders.answers) <= {"200", "503"}
