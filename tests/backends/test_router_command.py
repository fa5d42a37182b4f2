"""The router's command line and its API as data. The real one is in tests/engines/test_router.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from backends.router import CONTROL_VARIABLE, KEY_VARIABLE, RouterAdapter, adapter
from lifecycle.adapter import Command, Launch
from lifecycle.config import load_config
from lifecycle.diagnosis import diagnose
from lifecycle.errors import ConfigError
from lifecycle.fleet.registry import Call, Listed, Place
from lifecycle.rules import Verdict

KEY = "outsiders-key-0123456789"


def command(**settings: Any) -> Command:
    """What a start on ports 8000 and 8001 runs."""
    config, _ = load_config("router", **{"python": sys.executable, **settings})
    return adapter.command(Launch(config, 8000, (8001,), 1))


def after(flag: str, line: Command) -> str:
    return line.argv[line.argv.index(flag) + 1]


def test_every_port_that_it_opens_is_given_to_it() -> None:
    line = command()
    assert (after("--port", line), after("--prometheus-port", line)) == ("8000", "8001")
    assert after("--host", line) == after("--prometheus-host", line) == "127.0.0.1"


def test_no_key_is_in_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    line = command(api_key_file=str(tmp_path / "key"))
    assert line.env[KEY_VARIABLE] == KEY
    assert line.env[CONTROL_VARIABLE] == adapter.control_key
    assert not [word for word in line.argv if KEY in word or adapter.control_key in word]


def test_without_a_key_one_that_is_in_the_environment_is_not_taken_for_the_routers_own() -> None:
    assert command().env[KEY_VARIABLE] is None


def test_each_process_has_a_key_of_its_own_for_the_list_of_servers() -> None:
    assert RouterAdapter().control_key != RouterAdapter().control_key


def test_times_are_whole_seconds_and_at_least_one() -> None:
    line = command(request_timeout=0.2, drain_timeout=2.5)
    assert after("--request-timeout-secs", line) == "1"
    assert after("--shutdown-grace-period-secs", line) == "3"


def test_its_own_flags_can_be_given_and_win_over_defaults() -> None:
    line = command(engine_args={"retry-max-retries": 7, "log_level": "info"})
    assert after("--retry-max-retries", line) == "7"
    assert line.argv.count("--log-level") + line.argv.count("--log_level") == 1
    assert "info" in line.argv


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"policy": "power_of_two"}, "replicas are added when they are Healthy: use cache_aware"),
        ({"policy": "fastest"}, "policy = 'fastest' is none of cache_aware"),
        ({"policy": "least_load"}, "which only module = 'smg' has"),
        ({"engine_args": {"api-key": "k"}}, "use api_key_env"),
        ({"engine_args": {"worker-urls": "http://x"}}, "use replicas"),
        ({"command": "x"}, "command is set"),
        ({"model": "x"}, "serves what its replicas serve"),
        ({"host": "0.0.0.0"}, "without a key"),
        ({"python": "/nowhere/python"}, "is not a program"),
        ({"module": "router"}, "module = 'router' is none of sglang_router, smg"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        command(**settings)
    assert said in str(refused.value)


def test_where_it_is_not_installed_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'stoker\[router\]', .* --router-python"):
        load_config("router")


@pytest.mark.parametrize(
    ("line", "cause", "verdict"),
    [
        ("Error starting router: Address already in use (os error 98)", "port-taken", Verdict.TRANSIENT),
        ('failed to install Prometheus metrics exporter: FailedToCreateHTTPListener("Address already in use (os error '
         '98)")', "port-taken", Verdict.TRANSIENT),
        ("ModuleNotFoundError: No module named 'sglang_router'", "router-missing", Verdict.HOPELESS),
        ("-c: error: unrecognized arguments: --control-plane-api-keys stoker", "unknown-flag", Verdict.HOPELESS),
        ("-c: error: argument --policy: invalid choice: 'foo' (choose from 'random')", "unknown-flag",
         Verdict.HOPELESS),
        ("ValueError: Configuration error: Incompatible configuration: Power-of-two policy requires at least 2 workers",
         "bad-configuration", Verdict.HOPELESS),
    ],
)  # fmt: skip
def test_its_failures_are_known(line: str, cause: str, verdict: Verdict) -> None:
    from lifecycle.adapter import rules_of

    found = diagnose("exited", "it exited", lines=[line], rules=rules_of(adapter), phase="start")
    assert (found.cause, found.verdict) == (cause, verdict)


def test_a_server_is_added_under_the_name_that_requests_use_and_with_its_own_key() -> None:
    place = Place("http://127.0.0.1:9001", "qwen")
    assert adapter.add(place, KEY) == Call(
        "POST", "/workers", {"url": place.url, "model_id": "qwen", "api_key": KEY}
    )
    assert "api_key" not in (adapter.add(place, None).body or {})
    assert adapter.remove(Listed("an-id", place.url)) == Call("DELETE", "/workers/an-id")


def test_what_is_no_list_of_servers_is_not_taken_for_an_empty_one() -> None:
    assert adapter.listed({"workers": []}) == ()
    bodies: tuple[Any, ...] = ("Not found", {}, {"workers": None}, [])
    for body in bodies:
        with pytest.raises(ValueError, match="no list of workers"):
            adapter.listed(body)
