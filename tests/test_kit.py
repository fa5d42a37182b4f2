"""The kit catches what it is there to catch, and costs nothing where it is not used."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import Phase as Generation
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from lifecycle.adapter import Capabilities, Command, Launch, NoOptions, Phase
from lifecycle.chart import Chart
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Rule, Verdict
from lifecycle.secrets import api_key
from lifecycle.server import Server
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import Facts, Kill, Stop
from lifecycle.testing import Life, SimulatedAdapter, SimulatedHost, run_virtual
from lifecycle.testing.conformance import AdapterConformance
from lifecycle.testing.fake import fake_server as running
from lifecycle.testing.machine import ServerMachine
from lifecycle.testing.strategies import Trouble, configs, lives, plan, troubles

ROOT = Path(__file__).parents[1]
FIND = settings(max_examples=300, deadline=None, database=None, derandomize=True, phases=[Generation.generate])
"""To find a mistake is enough: the smallest way to it is not looked for."""


class Good:
    name = "good"
    capabilities = Capabilities(ready_paths=("/health",), settings=frozenset({"dtype"}))
    options: type[Any] = NoOptions
    rules: tuple[Rule, ...] = ()

    def command(self, launch: Launch) -> Command:
        config = launch.config
        dtype = ["--dtype", config.dtype] if config.dtype else []
        return Command(("serve", "--host", config.host, "--port", str(launch.port), *dtype), dict(config.env))

    def phase(self, line: str) -> Phase | None:
        return None


class OtherPort(Good):
    def command(self, launch: Launch) -> Command:
        return Command(("serve", "--host", launch.config.host, "--port", "8000"))


class KeyInSight(Good):
    def command(self, launch: Launch) -> Command:
        return Command((*super().command(launch).argv, "--api-key", api_key(launch.config) or "none"))


class Doubles(Good):
    def command(self, launch: Launch) -> Command:
        more = [word for key, value in launch.config.engine_args.items() for word in (f"--{key}", str(value))]
        return Command((*super().command(launch).argv, *more))


class Twice(Good):
    def command(self, launch: Launch) -> Command:
        return Command((*super().command(launch).argv, "--port", "1"))


class Deaf(Good):
    capabilities = replace(Good.capabilities, settings=frozenset({"dtype", "revision"}))


class Moody(Good):
    calls = 0

    def command(self, launch: Launch) -> Command:
        Moody.calls += 1
        return Command((*super().command(launch).argv, "--run", str(Moody.calls)))


class Jumpy(Good):
    rules = (Rule("gone", "INFO", Verdict.UNKNOWN, "nothing"),)


class Hopeless(Good):
    rules = (Rule("gone", "it is gone", Verdict.HOPELESS, ""),)


class Crashes(Good):
    def phase(self, line: str) -> Phase | None:
        return Phase(line.split()[0])


class NeverReads(Good):
    capabilities = replace(Good.capabilities, load_path="/load")


@pytest.mark.parametrize(
    ("adapter", "check"),
    [
        (OtherPort(), "test_it_listens_where_it_is_told"),
        (KeyInSight(), "test_a_key_is_never_in_the_command_line"),
        (Doubles(), "test_engine_args_cannot_give_a_flag_of_ours_again"),
        (Twice(), "test_no_flag_comes_twice"),
        (Deaf(), "test_each_setting_that_it_heeds_changes_its_start"),
        (Moody(), "test_the_same_start_has_the_same_command_line"),
        (Jumpy(), "test_its_rules_keep_quiet_on_ordinary_lines"),
        (Hopeless(), "test_its_rules_are_well_formed"),
        (NeverReads(), "test_its_capabilities_fit_together"),
    ],
)
def test_the_suite_finds_the_mistake_in_an_adapter_and_none_without_it(
    adapter: Good, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(which: Good) -> None:
        suite = type("Suite", (AdapterConformance,), {"adapter": which})()
        test = getattr(suite, check)
        known = {"tmp_path": tmp_path, "monkeypatch": monkeypatch}
        test(**{name: known[name] for name in test.__code__.co_varnames[: test.__code__.co_argcount] if name in known})

    run(Good())
    with pytest.raises(AssertionError):
        run(adapter)


def test_an_adapter_that_fails_on_a_log_line_is_found() -> None:
    suite = type("Suite", (AdapterConformance,), {"adapter": Crashes()})()
    with pytest.raises(IndexError):
        suite.test_it_reads_any_line_and_knows_its_phases()


class TestGood(AdapterConformance):
    adapter = Good()


def test_a_fake_server_answers_counts_and_is_told_what_to_do() -> None:
    with running(model="mine") as there, httpx.Client(base_url=there.url, trust_env=False) as client:
        assert client.get("/v1/models").json()["data"][0]["id"] == "mine"
        there.tell("/_routes", **{"/health": {"status": 503}})
        assert client.get("/health").status_code == 503
        assert there.stats()["requests"] == {"/v1/models": 1, "/health": 1}
    assert there.process.returncode is not None


def test_a_fake_server_that_ends_before_it_listens_says_why() -> None:
    with pytest.raises(RuntimeError, match="no memory today"), running(say=["no memory today"], exit_before_bind=True):
        pass


def test_a_chart_without_one_of_its_transitions_is_found_by_the_machine() -> None:
    rows = [row for row in SERVER.transitions if not (row.sources == ("Draining",) and Kill in row.events)]
    assert len(rows) < len(SERVER.transitions)
    broken: Chart[Facts] = replace(SERVER, transitions=tuple(rows))

    class Broken(ServerMachine):
        chart = broken

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Broken, settings=FIND)


@settings(max_examples=25, deadline=None)
@given(config=configs(max_attempts=2), several=st.lists(lives(), min_size=1, max_size=3), found=troubles())
def test_a_server_with_any_configuration_lives_and_troubles_leaves_nothing_behind(
    config: ServerConfig, several: list[Life], found: list[Trouble]
) -> None:
    async def body() -> None:
        host = SimulatedHost(several)
        plan(host, found)
        async with Server(config, adapter=SimulatedAdapter(), host=host) as server:
            server.driver.post(Stop())
            await server.ended()
        assert host.held() == ()
        assert host.ledger.violations == []

    run_virtual(body, limit=1e5)


PROBE = """
import sys
import lifecycle.pytest_plugin
heavy = {"anyio", "httpx", "hypothesis", "transitions", "lifecycle.testing", "lifecycle.server"} & set(sys.modules)
assert not heavy, heavy
import lifecycle.testing
assert "hypothesis" not in sys.modules
"""


def test_the_plugin_costs_nothing_and_the_kit_needs_no_hypothesis() -> None:
    subprocess.run((sys.executable, "-c", PROBE), check=True)


def test_the_example_of_a_backend_has_less_than_eighty_lines() -> None:
    assert len((ROOT / "examples" / "trtllm.py").read_text().splitlines()) < 80
