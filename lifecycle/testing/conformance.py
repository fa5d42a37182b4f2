"""What every backend must do, as tests to inherit. Needs pytest; starts a fake server in the place of the engine.

    class TestMine(AdapterConformance):
        adapter = MyEngine()
        config = {"model": "org/model"}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

import anyio
import psutil
import pytest

from lifecycle.adapter import (
    Adapter,
    Capabilities,
    Command,
    Launch,
    Phase,
    Prepared,
    asks_itself,
    capabilities_of,
    load_of,
    prepared_by,
    quotes_of,
)
from lifecycle.config import MODEL_SETTINGS, ServerConfig, load_config
from lifecycle.diagnosis import Rule, Verdict, diagnose
from lifecycle.errors import ConfigError
from lifecycle.host import ASK_TIMEOUT, NOTHING
from lifecycle.journal import Kind
from lifecycle.resources.ask import ask
from lifecycle.server import Server
from lifecycle.testing.fake import fake_server
from lifecycle.testing.faked import Faked

PORT, OTHER_PORT, FIRST_EXTRA = 18_417, 18_523, 19_211
KEY_VARIABLE, KEY = "STOKER_CONFORMANCE_KEY", "conformance-0123456789"
GUARD = 60.0
"""Seconds after which a life that hangs fails."""
QUICK: Mapping[str, Any] = {"backoff_initial": 0.0, "drain_timeout": 5.0, "terminate_timeout": 10.0}
LIFE = ["Locking", "PortBound", "Starting", "Healthy", "Draining", "Stopped"]
ENDPOINT_LIFE = ["Starting", "Healthy", "Draining", "Stopped"]
ORDINARY = (
    "",
    "INFO:     Started server process [4242]",
    "INFO:     Waiting for application startup.",
    "INFO:     Application startup complete.",
    "INFO:     Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)",
    'INFO:     127.0.0.1:51234 - "GET /health HTTP/1.1" 200 OK',
    'INFO:     127.0.0.1:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "Loading checkpoint shards: 100%|##########| 4/4 [00:12<00:00,  3.01s/it]",
    "WARNING: a deprecated option was given",
)
"""Lines that mean nothing bad, whatever prints them."""
ODD = ("\0", "\x1b[31m", "\ufffd" * 9, "x" * 70_000, "%s {} {0} %(a)s", "1/0", "٣/٤")
SAMPLES: Mapping[str, Any] = {
    "revision": "abc", "dtype": "float16", "context_length": 1234, "tensor_parallel": 2, "pipeline_parallel": 2,
    "data_parallel": 2, "engine_seed": 77, "trust_remote_code": True,
}  # fmt: skip
"""A value for each setting of the model that shows in a command line. `nodes` and `python` need more than a value."""


class AdapterConformance:
    """Give `adapter` and `config`, and what else your backend needs; a check that does not concern it passes."""

    adapter: ClassVar[Any]
    config: ClassVar[Mapping[str, Any]] = {}
    """Settings of a server that could run, as for `load_config`."""
    prepared: ClassVar[Prepared | None] = None
    """What `prepare` would have found, for a machine without the engine. None: it is asked."""
    repeated: ClassVar[frozenset[str]] = frozenset()
    """Flags that may come more than once in a command line, with their dashes."""
    ordinary: ClassVar[Sequence[str]] = ()
    """Lines of the engine's log that mean no failure."""
    phases: ClassVar[Mapping[str, Phase]] = {}
    """Lines of the engine's log, and the phase that each tells."""
    failures: ClassVar[Mapping[str, str]] = {}
    """Lines of the engine's log, and the cause that each must be diagnosed as."""

    def configured(self, folder: Path, **more: Any) -> ServerConfig:
        """A configuration with all its files in `folder`."""
        own = {"state_dir": str(folder / "state"), "cache_dir": str(folder / "cache")}
        config, _ = load_config(adapter=self.adapter, **{**own, **QUICK, **self.config, **more})
        return config

    def launch(self, config: ServerConfig, port: int = PORT, attempt: int = 1) -> Launch:
        """What `command` is given."""
        count = capabilities_of(self.adapter, config).extra_ports
        extra = tuple(range(FIRST_EXTRA, FIRST_EXTRA + count))
        found = self.prepared
        if found is None:

            async def prepare() -> Prepared:
                return await prepared_by(self.adapter, config, _ask)

            found = anyio.run(prepare)
        return Launch(config, port, extra, attempt, found)

    def command(self, folder: Path, port: int = PORT, **more: Any) -> Command:
        """The command line of a first attempt."""
        command: Command = self.adapter.command(self.launch(self.configured(folder, **more), port))
        return command

    @property
    def local(self) -> bool:
        local: bool = self.adapter.capabilities.local
        return local

    def test_it_is_an_adapter_with_a_name(self) -> None:
        assert isinstance(self.adapter, Adapter), "it needs name, capabilities, options, command and phase"
        assert re.fullmatch(r"[a-z][a-z0-9_-]*", self.adapter.name), f"{self.adapter.name!r} is no name for --backend"

    def test_its_options_have_defaults_and_names_of_their_own(self) -> None:
        options = self.adapter.options
        assert is_dataclass(options), "options is a frozen dataclass"
        assert vars(options)["__dataclass_params__"].frozen, "options is a frozen dataclass"
        needed = [f.name for f in fields(options) if f.default is MISSING and f.default_factory is MISSING]
        assert not needed, f"options without a default: {needed}"
        known = {f.name for f in fields(ServerConfig)}
        assert not known & {f.name for f in fields(options)}, "options with the name of a setting would never be set"

    def test_its_capabilities_fit_together(self, tmp_path: Path) -> None:
        first, then = self.adapter.capabilities, capabilities_of(self.adapter, self.configured(tmp_path))
        assert (first.local, first.defaults) == (then.local, then.defaults), "local and defaults depend on no setting"
        for can in (first, then):
            self._check_capabilities(can)
        unknown = set(first.defaults) - {f.name for f in (*fields(ServerConfig), *fields(self.adapter.options))}
        assert not unknown, f"defaults for settings that do not exist: {unknown}"

    def _check_capabilities(self, can: Capabilities) -> None:
        assert can.settings <= set(MODEL_SETTINGS), f"no settings of a model: {set(can.settings) - set(MODEL_SETTINGS)}"
        assert can.ready_paths or not can.probed, "who is probed needs a ready path"
        posts = [post[0] for post in (can.abort, can.sleep, can.wake) if post is not None]
        optional = [path for path in (can.liveness_path, can.load_path) if path is not None]
        if not asks_itself(self.adapter):
            assert all(path.startswith("/") for path in (*can.ready_paths, *posts, *optional)), "paths begin with /"
        assert can.sleep is None or can.wake is not None, "who can sleep must be able to wake up"
        assert can.load_path is None or hasattr(self.adapter, "load"), "load_path is set, and nothing reads its answer"
        if asks_itself(self.adapter):
            assert not can.generates, "who answers no HTTP generates nothing: generates = False"
            assert not can.reports_model, "who answers no HTTP names no model: reports_model = False"
        if not can.local:
            assert not can.extra_ports, "somebody else's server has no ports of ours"
            assert not can.derived_ports, "somebody else's server has no ports of ours"

    def test_it_starts_a_process_if_and_only_if_it_is_local(self, tmp_path: Path) -> None:
        if self.local:
            command = self.command(tmp_path)
            assert command.argv, "an empty command line"
            assert all(isinstance(word, str) for word in command.argv), f"words that are no text: {command.argv}"
            return
        with pytest.raises(ConfigError):
            self.command(tmp_path)

    def test_the_same_start_has_the_same_command_line(self, tmp_path: Path) -> None:
        if self.local:
            config = self.configured(tmp_path)
            launch = self.launch(config)
            assert self.adapter.command(launch) == self.adapter.command(launch)

    def test_it_listens_where_it_is_told(self, tmp_path: Path) -> None:
        if not self.local:
            return
        config = self.configured(tmp_path)
        can = capabilities_of(self.adapter, config)
        for port in (PORT, OTHER_PORT):
            launch = self.launch(config, port)
            words = words_of(self.adapter.command(launch))
            for number in (port, *launch.extra_ports) if can.probed else launch.extra_ports:
                assert any(re.search(rf"(?<!\d){number}(?!\d)", word) for word in words), f"port {number} is not used"
        if can.probed and not asks_itself(self.adapter):
            assert any(config.host in word for word in words), f"host {config.host} is not used"

    def test_no_flag_comes_twice(self, tmp_path: Path) -> None:
        if self.local:
            assert doubled(self.command(tmp_path).argv, self.repeated) == []

    def test_engine_args_cannot_give_a_flag_of_ours_again(self, tmp_path: Path) -> None:
        """Each flag with a value that the plain command line has is refused, taken for its setting, or replaced."""
        if not self.local:
            return
        plain = self.command(tmp_path).argv
        for flag in {word.partition("=")[0] for word in plain if word.startswith("--") and len(word) > 2}:
            try:
                again = self.command(tmp_path, engine_args={flag.lstrip("-"): "1"}).argv
            except ConfigError:
                continue
            assert flag not in doubled(again, self.repeated), f"engine_args doubles {flag}"

    def test_a_key_is_never_in_the_command_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every user of the machine can read it there."""
        if not self.local:
            return
        monkeypatch.setenv(KEY_VARIABLE, KEY)
        try:
            argv = self.command(tmp_path, api_key_env=KEY_VARIABLE).argv
        except ConfigError:
            return
        assert not [word for word in argv if KEY in word], "the key is in the command line: put it into env or files"

    def test_each_setting_that_it_heeds_changes_its_start(self, tmp_path: Path) -> None:
        """It may refuse a value, not ignore it."""
        if not self.local:
            return
        plain = self.command(tmp_path)
        for name in sorted(self.adapter.capabilities.settings & set(SAMPLES) - set(self.config)):
            try:
                command = self.command(tmp_path, **{name: SAMPLES[name]})
            except ConfigError:
                continue
            assert command != plain, f"capabilities.settings names {name}, and the command line does not change"

    def test_its_rules_are_well_formed(self) -> None:
        rules: tuple[Rule, ...] = getattr(self.adapter, "rules", ())
        for rule in rules:
            assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.cause), f"cause {rule.cause!r}: words-with-dashes"
            assert rule.phase in ("", "start", "run"), f"{rule.cause}: phase {rule.phase!r}"
            assert not re.compile(rule.pattern).search(""), f"{rule.cause} fits every line"
            assert rule.verdict is not Verdict.HOPELESS or rule.advice, f"{rule.cause} is hopeless, and gives no advice"
        for pattern in quotes_of(self.adapter):
            assert not re.compile(pattern).search(""), f"quotes {pattern!r} fits every line"

    def test_its_rules_keep_quiet_on_ordinary_lines(self) -> None:
        rules: tuple[Rule, ...] = getattr(self.adapter, "rules", ())
        for line in (*ORDINARY, *self.ordinary, *self.phases):
            taken = [rule.cause for rule in rules if re.search(rule.pattern, line)]
            assert not taken, f"{line!r} is taken for {taken[0]}"

    def test_its_rules_know_its_failures(self) -> None:
        rules: tuple[Rule, ...] = getattr(self.adapter, "rules", ())
        for line, cause in self.failures.items():
            assert diagnose("nothing", "nothing", lines=[line], rules=rules, phase="start").cause == cause, line

    def test_it_reads_any_line_and_knows_its_phases(self) -> None:
        for line in (*ORDINARY, *ODD, *self.ordinary):
            assert isinstance(self.adapter.phase(line), Phase | None), repr(line[:80])
        for line, phase in self.phases.items():
            assert self.adapter.phase(line) == phase, line

    def test_an_answer_that_it_does_not_know_says_nothing_of_its_load(self) -> None:
        answers: tuple[Any, ...] = ({}, [], "", "no metric here", None, 3, {"data": []}, [{}])
        for body in answers:
            assert load_of(self.adapter, body) is None, f"load({body!r})"

    def test_it_lives_from_start_to_stop_and_leaves_nothing_behind(self, tmp_path: Path) -> None:
        if not self.local:
            with fake_server() as there:
                assert anyio.run(self._live, self.configured(tmp_path, base_url=there.url), {}) == ENDPOINT_LIFE
                assert there.process.poll() is None, "it has ended somebody else's server"
            return
        assert anyio.run(self._live, self.configured(tmp_path), {}) == self._expected(LIFE, tmp_path)

    def test_it_lives_again_after_a_crash(self, tmp_path: Path) -> None:
        if self.local:
            states = anyio.run(self._live, self.configured(tmp_path), {"attempts": [{"exit_before_bind": True}, {}]})
            began = ["Locking", "PortBound", "Starting"]
            if capabilities_of(self.adapter, self.configured(tmp_path)).probed:
                assert states == [*began, "Draining", "Backoff", *LIFE]

    def _expected(self, life: list[str], folder: Path) -> list[str]:
        probed = capabilities_of(self.adapter, self.configured(folder)).probed
        return life if probed else [state for state in life if state != "Starting"]

    async def _live(self, config: ServerConfig, faults: Mapping[str, Any]) -> list[str]:
        """The states that a server passes with the fake one in the place of the engine."""
        adapter = Faked(self.adapter, self.prepared, **faults) if self.local else self.adapter
        before = set(psutil.Process().children(recursive=True))
        server = Server(config, adapter=adapter)
        with anyio.fail_after(GUARD):
            async with server:
                await server.healthy()
                if capabilities_of(self.adapter, config).generates:
                    answer = await server.complete({"prompt": "hello", "max_tokens": 2})
                    assert answer["choices"][0]["text"]
        records = list(server.journal.records)
        wrong = [r for r in records if r.event == "Fault" or r.kind is Kind.CLEANUP_ERROR]
        assert not wrong, f"the adapter has a bug: {wrong[0].detail}"
        left = [child for child in psutil.Process().children(recursive=True) if child not in before]
        assert not left, f"processes are left behind: {left}"
        return [str(record.after) for record in records if record.kind is Kind.TRANSITION]


async def _ask(argv: Sequence[str], *, env: Mapping[str, str] = NOTHING, timeout: float = ASK_TIMEOUT) -> str:
    return await ask(argv, env=env, timeout=timeout)


def words_of(command: Command) -> list[str]:
    """All that a process is told: its words, variables and files."""
    return [*command.argv, *filter(None, command.env.values()), *command.files.values()]


def doubled(argv: Sequence[str], repeated: frozenset[str]) -> list[str]:
    """Flags that come more than once."""
    flags = Counter(word.partition("=")[0] for word in argv if re.match(r"--?[A-Za-z]", word))
    return sorted(flag for flag, count in flags.items() if count > 1 and flag not in repeated)
