"""Settings: one name each, checked before anything starts, and an error that says what to write instead."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.adapter import Capabilities
from lifecycle.config import MODEL_SETTINGS, NOT_NEGATIVE, POSITIVE, ServerConfig, check, load_config, parse_setting
from lifecycle.errors import ConfigError, nearest
from lifecycle.resources.probes import api_root
from lifecycle.secrets import api_key
from lifecycle.testing import SimulatedAdapter

EXAMPLES: dict[str, Any] = {
    "model": "m", "served_name": "alias", "name": "n", "host": "127.0.0.2", "port": 8001, "allow_exposed": True,
    "command": "sh -c true", "base_url": "http://10.0.0.7:1/v1", "api_key_env": "A_KEY", "api_key_file": "key",
    "env": {"A": "b"}, "engine_args": {"flag": True}, "ready_path": "/ready", "log_dir": "logs", "state_dir": "state",
    "liveness_failures": 7, "max_attempts": 7, "max_retries": 7, "log_limit": 7, "cache_dir": "caches",
    "revision": "main", "dtype": "bfloat16", "context_length": 7, "tensor_parallel": 7, "pipeline_parallel": 7,
    "data_parallel": 7, "engine_seed": 7, "trust_remote_code": True, "python": "python3",
    "idle_action": "sleep",
    "nodes": 7, "node_rank": 3, "node_address": "10.0.0.3", "head_address": "10.0.0.1", "head_port": 7000,
}  # fmt: skip
TIMES = [f.name for f in fields(ServerConfig) if f.name not in {*EXAMPLES, "backend", "options"}]
VALUES: dict[str, Any] = {**dict.fromkeys(TIMES, 7.5), **EXAMPLES}


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else f"'{value}'" if isinstance(value, str) else str(value)


def text(value: Any) -> str:
    if isinstance(value, dict):
        return toml(value).replace(" = ", ": ").replace("'", '"').replace("flag", '"flag"').replace("{A", '{"A"')
    return str(value)


@pytest.mark.parametrize("key", sorted(VALUES))
def test_a_setting_has_one_name_as_a_field_in_toml_and_with_set(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    can = Capabilities(local=key != "base_url", sleep=("/sleep", {}), settings=frozenset(MODEL_SETTINGS))
    adapter = SimulatedAdapter(capabilities=can)
    monkeypatch.setattr("lifecycle.config.load_adapter", lambda name: adapter)
    value = VALUES[key]
    file = tmp_path / "stoker.toml"
    file.write_text(f"{key} = {toml(value)}\n")
    ways = [
        load_config("simulated", **{key: value})[0],
        load_config("simulated", file=file)[0],
        load_config("simulated", settings=dict([parse_setting(f"{key}={text(value)}")]))[0],
        load_config("simulated", settings=dict([parse_setting(f"{key.replace('_', '-')}={text(value)}")]))[0],
        ServerConfig("simulated", **{key: value}),
    ]
    assert [getattr(config, key) for config in ways] == [value] * 5


def test_every_setting_but_the_backend_has_a_default_and_an_explanation() -> None:
    source = Path(__file__).parents[1].joinpath("lifecycle", "config.py").read_text()
    for one in fields(ServerConfig):
        assert one.name == "backend" or one.default is not MISSING or one.default_factory is not MISSING
        assert f"    {one.name}: " in source


def test_later_wins_the_file_then_what_is_given_then_set(tmp_path: Path) -> None:
    file = tmp_path / "stoker.toml"
    file.write_text('backend = "echo"\nmodel = "file"\nname = "file"\nserved_name = "file"\nlatency = 0.5\n')
    config, _ = load_config(file=file, model="given", name="given", host=None, settings={"model": "set"})
    assert (config.model, config.name, config.served_name) == ("set", "given", "file")
    assert config.options["latency"] == 0.5
    assert config.host == "127.0.0.1"


def test_a_backend_has_its_own_defaults_and_they_give_way() -> None:
    url = "http://127.0.0.1:1"
    config, _ = load_config("endpoint", base_url=url)
    assert (config.startup_timeout, config.probe_interval) == (10.0, 1.0)
    assert load_config("endpoint", base_url=url, startup_timeout=60.0)[0].startup_timeout == 60.0
    local, _ = load_config("echo")
    assert (local.startup_timeout, local.model) == (300 * 5.0, "echo")
    assert local.probe_interval < 1


NONSENSE: list[tuple[dict[str, Any], list[str]]] = [
    ({"drain_timeout": 30, "terminate_timeout": 5}, ["drain_timeout = 30", "terminate_timeout = 5", "lower", "raise"]),
    ({"backoff_initial": 90}, ["backoff_initial = 90", "backoff_max = 60"]),
    ({"port": 0}, ["port = 0", "between 1 and 65535"]),
    ({"port": 70000}, ["port = 70000", "65535"]),
    ({"base_url": "http://host/v1"}, ["base_url = 'http://host/v1'", "'echo'", "endpoint"]),
    ({"command": "sh"}, ["command", "'echo'", "custom"]),
    ({"max_attempts": "many"}, ["max_attempts"]),
    ({"startup_timeout": "soon"}, ["startup_timeout"]),
    ({"allow_exposed": "perhaps"}, ["allow_exposed"]),
    ({"latency": -1}, ["latency = -1", "negative"]),
    ({"fail_rate": 2}, ["fail_rate = 2", "between 0 and 1"]),
    ({"env": "A=b"}, ["env = 'A=b'", "JSON object", "--set env="]),
]


@pytest.mark.parametrize(("values", "words"), NONSENSE, ids=[str(values) for values, _ in NONSENSE])
def test_nonsense_is_refused_with_the_values_that_make_it(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("echo", **values)
    for word in words:
        assert word in str(caught.value)


@given(key=st.sampled_from([*POSITIVE, *NOT_NEGATIVE]), value=st.floats(max_value=0) | st.just(float("nan")))
def test_no_time_and_no_count_is_negative_or_no_number(key: str, value: float) -> None:
    refused = not value > 0 if key in POSITIVE else not value >= 0
    given: dict[str, Any] = {key: value}
    config = ServerConfig("simulated", **given)
    if refused:
        with pytest.raises(ConfigError, match=f"{key} = "):
            check(config, SimulatedAdapter())
    else:
        check(config, SimulatedAdapter())


@pytest.mark.parametrize("key", MODEL_SETTINGS)
def test_a_setting_of_the_model_that_the_backend_would_not_heed_is_refused(key: str) -> None:
    config = ServerConfig("simulated", **{key: VALUES[key]})
    with pytest.raises(ConfigError, match=rf"^{key} = .*means nothing to backend 'simulated'"):
        check(config, SimulatedAdapter())
    check(config, SimulatedAdapter(capabilities=Capabilities(settings=frozenset({key}))))


def test_a_flag_of_the_engine_that_says_what_a_setting_says_is_taken_for_it() -> None:
    args = {"tensor-parallel-size": "2", "--max_model_len": 64, "gpu-memory-utilization": 0.5, "other": True}
    config, _ = load_config("vllm", model="m", engine_args=args)
    assert (config.tensor_parallel, config.context_length, config.engine_args) == (2, 64, {"other": True})
    assert config.options["gpu_memory_utilization"] == 0.5


def test_a_flag_and_its_setting_may_say_the_same_and_not_different_things() -> None:
    assert load_config("vllm", model="m", tensor_parallel=2, engine_args={"tp": "2"})[0].tensor_parallel == 2
    with pytest.raises(ConfigError, match=r"engine_args sets tp = 4, and tensor_parallel = 2 is the same"):
        load_config("vllm", model="m", tensor_parallel=2, engine_args={"tp": 4})


def test_a_key_is_not_taken_from_a_flag() -> None:
    with pytest.raises(ConfigError, match="api-key"):
        load_config("vllm", model="m", engine_args={"api-key": "sk-secret"})


LIMITS = st.none() | st.floats(0, 1e6)


@given(drain=LIMITS, terminate=LIMITS)
def test_whatever_is_accepted_the_kill_never_cuts_the_drain(drain: float | None, terminate: float | None) -> None:
    config = ServerConfig("simulated", drain_timeout=drain, terminate_timeout=terminate)
    try:
        check(config, SimulatedAdapter())
    except ConfigError:
        assert drain is not None
        assert terminate is not None
        assert drain > terminate
    else:
        assert 0 <= config.drain_limit <= config.kill_limit


@given(st.sampled_from(TIMES), st.floats(0.001, 1e6))
def test_a_number_survives_being_written_as_text(key: str, value: float) -> None:
    values = {"backoff_initial": 0.0, "backoff_max": 1e7, "terminate_timeout": 1e7}
    values[key] = value
    written = {name: str(number) for name, number in values.items()}
    assert getattr(load_config("echo", settings=written)[0], key) == value


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("startup_timout", "startup_timeout"), ("drain", "drain_timeout"), ("latencey", "latency"), ("modle", "model")],
)
@pytest.mark.parametrize("way", ["given", "file", "set"])
def test_an_unknown_key_is_refused_and_the_nearest_known_one_named(
    wrong: str, right: str, way: str, tmp_path: Path
) -> None:
    file = tmp_path / "stoker.toml"
    file.write_text(f"{wrong} = 1\n")
    ways: dict[str, dict[str, Any]] = {"given": {wrong: 1}, "file": {"file": file}, "set": {"settings": {wrong: "1"}}}
    with pytest.raises(ConfigError, match=rf"unknown setting '{wrong}'.*{right}"):
        load_config("echo", **ways[way])


def test_an_unknown_backend_is_refused_and_the_nearest_known_one_named() -> None:
    with pytest.raises(ConfigError, match=r"'llamacp' is not installed; did you mean 'llamacpp'"):
        load_config("llamacp")
    with pytest.raises(ConfigError, match="--backend NAME"):
        load_config()


@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=20), max_size=5))
def test_a_hint_names_a_known_one_or_all(name: str, known: list[str]) -> None:
    hint = nearest(name, known)
    assert bool(hint) == bool(known)
    assert not known or any(repr(one) in hint or one in hint for one in known)


@pytest.mark.parametrize("content", ["not toml", "a = ", "\xff"])
def test_a_file_that_is_no_toml_is_named(content: str, tmp_path: Path) -> None:
    file = tmp_path / "stoker.toml"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"stoker\.toml is not TOML"):
        load_config("echo", file=file)
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        load_config("echo", file=tmp_path / "absent.toml")


@pytest.mark.parametrize("words", ["latency", "=1", ""])
def test_set_wants_a_key_and_a_value(words: str) -> None:
    with pytest.raises(ConfigError, match="is not KEY=VALUE"):
        parse_setting(words)
    assert parse_setting("a-b=c=d") == ("a_b", "c=d")


# Keys come from a variable or a file, and from nowhere else.


def test_a_key_comes_from_the_variable_then_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", " from-variable\n")
    (tmp_path / "key").write_text("from-file\n")
    file = str(tmp_path / "key")
    assert api_key(ServerConfig("x")) is None
    assert api_key(ServerConfig("x", api_key_file=file)) == "from-file"
    assert api_key(ServerConfig("x", api_key_env="A_KEY", api_key_file=file)) == "from-variable"


@pytest.mark.parametrize("value", [None, "", "  ", "two\nlines", "schlüssel"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("A_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("A_KEY", value)
        (tmp_path / "key").write_text(value)
    for config in (ServerConfig("x", api_key_env="A_KEY"), ServerConfig("x", api_key_file=str(tmp_path / "key"))):
        with pytest.raises(ConfigError, match=r"named by api_key_(env|file)") as caught:
            api_key(config)
        assert value is None or not value.strip() or value not in str(caught.value)


@given(
    st.sampled_from(["http://h:1", "https://h", "http://[::1]:8000", "http://h/team"]),
    st.from_regex(r"(/v1)?/*", fullmatch=True),
)
def test_a_base_url_with_or_without_v1_is_the_same(root: str, end: str) -> None:
    assert api_root(root + end) == root
    assert api_root(api_root(root + end)) == root


def test_an_engines_own_name_for_a_setting_is_answered_with_ours() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'max_model_len'; did you mean 'context_length'"):
        load_config("vllm", model="m", max_model_len=5)


@pytest.mark.parametrize("told", ["sk-hush-999", "hf_x y", "a=b", "1key"])
def test_a_key_that_is_given_in_place_of_its_variables_name_is_not_shown(told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        api_key(ServerConfig("echo", api_key_env=told))
    assert told not in str(caught.value)
    assert "api_key_env" in str(caught.value)
