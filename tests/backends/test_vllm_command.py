"""vLLM's command line and environment, checked against the option tables of real parsers of five versions.

The tables (`tests/engines/options/vllm-*.json`) are what `backends.parser_dump` printed with the interpreters of those
versions, on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.engine import Engine
from backends.options import Option, Options
from backends.vllm import OLDEST, VllmAdapter
from backends.vllm_flags import OF_OTHERS, OURS, VllmOptions, refuse_doubled, serve_words, undotted
from lifecycle.adapter import CompileCache, Launch, Prepared
from lifecycle.config import MODEL_SETTINGS, ServerConfig
from lifecycle.errors import ConfigError, UnknownFlag

TABLES = Path(__file__).parent.parent / "engines" / "options"
VERSIONS = ("0.18.1", "0.21.0", "0.25.1", "0.32.0", "0.33.0")
NEWEST = "0.33.0"


@pytest.fixture
def anyio_backend() -> str:
    """A backend knows nothing of event loops: one is enough."""
    return "asyncio"


def engine(version: str = NEWEST) -> Engine:
    table = msgspec.json.decode((TABLES / f"vllm-{version}.json").read_bytes(), type=tuple[Option, ...])
    return Engine("vllm", "/engine/bin/python", version, "2.13.0", Options(f"vllm {version}", table))


def config(model: str = "me/model", **settings: Any) -> ServerConfig:
    chosen = {key: settings.pop(key) for key in list(settings) if key in VllmOptions.__dataclass_fields__}
    return ServerConfig("vllm", model=model, options=chosen, **settings)


def argv(version: str = NEWEST, **settings: Any) -> list[str]:
    launch = Launch(config(**settings), 8001, (), 1, Prepared(None, engine(version)))
    return list(VllmAdapter().command(launch).argv)


def env(extra: tuple[int, ...] = (), cache: CompileCache | None = None, **settings: Any) -> Mapping[str, str | None]:
    return VllmAdapter().command(Launch(config(**settings), 8001, extra, 1, Prepared(cache, engine()))).env


def after(flag: str, words: Sequence[str]) -> str:
    return words[words.index(flag) + 1]


EVERYTHING: dict[str, Any] = {
    "revision": "main", "dtype": "bfloat16", "context_length": 4096, "tensor_parallel": 2, "pipeline_parallel": 2,
    "data_parallel": 2, "engine_seed": 7, "trust_remote_code": True, "served_name": "mine",
    "gpu_memory_utilization": 0.8, "kv_cache_memory_bytes": 1 << 30, "max_num_seqs": 64, "quantization": "fp8",
    "enforce_eager": True,
    "engine_args": {
        "max-num-batched-tokens": 2048, "enable_prefix_caching": False, "enable-chunked-prefill": True,
        "hf-overrides": {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "compilation-config": {"mode": 3},
        "lora-modules": ["a=/l/a", "b=/l/b"], "middleware": ["m.one", "m.two"], "disable-log-stats": True,
        "limit-mm-per-prompt": {"image": 2}, "generation-config": "vllm", "download-dir": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_the_parser_of_every_supported_version_takes_every_setting(version: str) -> None:
    words = serve_words(config(**EVERYTHING), engine(version), 8001)
    engine(version).check(words)


def test_every_setting_of_the_model_becomes_its_flag() -> None:
    words = argv(**EVERYTHING)
    flags = {
        "--revision": "main", "--dtype": "bfloat16", "--max-model-len": "4096", "--tensor-parallel-size": "2",
        "--pipeline-parallel-size": "2", "--data-parallel-size": "2", "--seed": "7", "--served-model-name": "mine",
        "--gpu-memory-utilization": "0.8", "--kv-cache-memory-bytes": "1073741824", "--max-num-seqs": "64",
        "--quantization": "fp8", "--port": "8001", "--host": "127.0.0.1",
    }  # fmt: skip
    assert {flag: after(flag, words) for flag in flags} == flags
    assert "--trust-remote-code" in words
    assert "--enforce-eager" in words
    assert VllmAdapter().capabilities.settings == frozenset(MODEL_SETTINGS)


def test_what_is_not_set_is_left_to_the_engine() -> None:
    assert argv() == [
        "/engine/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "me/model", "--host", "127.0.0.1", "--port",
        "8001", "--served-model-name", "me/model", "--shutdown-timeout", "30",
    ]  # fmt: skip


def test_the_model_comes_before_any_flag_that_takes_several_values() -> None:
    words = argv(engine_args={"lora-modules": ["a=/l/a"]})
    assert words.index("me/model") < min(words.index(word) for word in words if word.startswith("--"))


def test_engine_args_follow_the_engines_own_conventions() -> None:
    words = argv(**EVERYTHING)
    assert "--enable-chunked-prefill" in words
    assert after("--hf-overrides", words) == '{"rope_scaling":{"type":"yarn","factor":4.0}}'
    at = words.index("--lora-modules")
    assert words[at : at + 3] == ["--lora-modules", "a=/l/a", "b=/l/b"]
    assert [word for word in words if word in ("--middleware", "m.one", "m.two")].count("--middleware") == 2
    assert "--download-dir" not in words


@pytest.mark.parametrize(("drain", "seconds"), [(0.0, "0"), (0.5, "1"), (90.0, "90")])
def test_the_engine_drains_as_long_as_stoker_does(drain: float, seconds: str) -> None:
    assert after("--shutdown-timeout", argv(drain_timeout=drain)) == seconds


def test_an_engine_without_a_drain_of_its_own_is_not_asked_for_one() -> None:
    without = engine("0.18.1")
    options = Options("vllm 0.15.1", tuple(o for o in without.options.all if o.dest != "shutdown_timeout"))
    old = Engine("vllm", "python", "0.15.1", "", options)
    assert "--shutdown-timeout" not in serve_words(config(), old)


def test_the_oldest_version_is_the_first_with_a_drain_of_its_own() -> None:
    assert VERSIONS[0] == OLDEST
    assert engine(OLDEST).has("shutdown-timeout")


# what is not the user's to say


@pytest.mark.parametrize("flag", sorted(OURS))
def test_a_flag_that_stoker_sets_is_refused_with_the_setting_to_use(flag: str) -> None:
    with pytest.raises(ConfigError) as refused:
        VllmAdapter().check(config(engine_args={flag: "x"}))
    assert OURS[flag] in str(refused.value)


@pytest.mark.parametrize("flag", ["--port", "max_model_len", "--served_model_name", "-tp", "tensor-parallel-size"])
def test_it_is_refused_however_it_is_written(flag: str) -> None:
    with pytest.raises(ConfigError):
        VllmAdapter().check(config(engine_args={flag: 1}))


@pytest.mark.parametrize("flag", sorted(OF_OTHERS))
def test_flags_of_other_ways_to_take_requests_are_refused(flag: str) -> None:
    with pytest.raises(ConfigError, match="leave it out"):
        VllmAdapter().check(config(engine_args={flag: 1}))


@pytest.mark.parametrize("version", VERSIONS)
def test_no_other_name_of_a_flag_that_stoker_sets_gets_through(version: str) -> None:
    """Every name and every alias in the real table of an option that Stoker sets."""
    options = engine(version).options
    ours = {name for option in options.all for name in option.names if any(n.lstrip("-") in OURS for n in option.names)}
    assert {"--tensor-parallel-size", "-tp", "--port", "--model"} <= ours
    for name in ours:
        with pytest.raises(ConfigError):
            refuse_doubled({name: "1"}, options)


@pytest.mark.parametrize("flag", ["served-model-nam", "tensor-parallel-siz", "por", "max-model"])
def test_the_beginning_of_a_flag_is_no_flag(flag: str) -> None:
    """The engine's parser would complete it, and take it instead of ours."""
    with pytest.raises(UnknownFlag, match=flag):
        refuse_doubled({flag: "1"}, engine().options)


def test_an_unknown_flag_is_named_with_the_version_and_the_nearest_one() -> None:
    with pytest.raises(UnknownFlag) as refused:
        refuse_doubled({"max-num-sekws": 1}, engine("0.32.0").options)
    assert all(part in str(refused.value) for part in ("--max-num-sekws", "vllm 0.32.0", "--max-num-seqs"))


def test_a_flag_that_some_versions_lack_is_unknown_to_those() -> None:
    """--disable-log-requests was removed before 0.18 and is back in 0.33, as the opposite of --enable-log-requests."""
    refuse_doubled({"disable-log-requests": True}, engine("0.33.0").options)
    with pytest.raises(UnknownFlag, match="disable-log-requests"):
        refuse_doubled({"disable-log-requests": True}, engine("0.32.0").options)


@pytest.mark.parametrize(
    ("version", "flag"), [("0.32.0", "--no-enable-prefix-caching"), ("0.33.0", "--disable-prefix-caching")]
)
def test_false_is_what_the_version_has_for_it(version: str, flag: str) -> None:
    assert flag in argv(version, engine_args={"enable_prefix_caching": False})


@pytest.mark.parametrize(
    "words",
    [
        ["m", "--compilation-config.mode", "3", "--seed", "1"],
        ["m", "--compilation-config.pass_config.fuse_norm_quant=true"],
        ["m", "-cc.mode", "3"],
    ],
)
def test_keys_below_a_flag_that_takes_json_are_known_by_the_flag(words: list[str]) -> None:
    engine().check(list(undotted(words, engine().options)))


def test_keys_below_an_unknown_flag_are_unknown() -> None:
    with pytest.raises(UnknownFlag, match="no-such-config"):
        refuse_doubled({"no-such-config.mode": 1}, engine().options)


@pytest.mark.parametrize(
    "settings",
    [
        {"model": ""}, {"command": "vllm serve x"}, {"max_num_seqs": 0}, {"kv_cache_memory_bytes": -1},
        {"gpu_memory_utilization": 1.2}, {"gpu_memory_utilization": 0.0}, {"env": {"VLLM_PORT": "5000"}},
        {"env": {"VLLM_DP_RANK": "1"}}, {"engine_args": {"hf-token": "x"}},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_starts(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        VllmAdapter().check(config(**settings))


# the environment


def test_the_key_goes_by_environment_and_never_into_argv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-of-the-test")
    assert env(api_key_env="MY_KEY")["VLLM_API_KEY"] == "sk-of-the-test"
    assert not any("sk-of-the-test" in word for word in argv(api_key_env="MY_KEY"))


@pytest.mark.fault(17)
def test_ports_and_ranks_of_others_are_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes gives every pod such variables for a service that is called vllm."""
    foreign = ("VLLM_PORT", "VLLM_PORT_8000_TCP", "VLLM_SERVICE_HOST", "VLLM_SERVICE_PORT_HTTP", "VLLM_DP_RANK")
    for name in foreign:
        monkeypatch.setenv(name, "tcp://10.0.0.1:8000")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    found = env()
    assert {name: found.get(name, "kept") for name in foreign} == dict.fromkeys(foreign)
    assert "VLLM_LOGGING_LEVEL" not in found


def test_what_the_user_sets_in_env_wins() -> None:
    mine = {"VLLM_ENGINE_READY_TIMEOUT_S": "77", "TRITON_CACHE_DIR": "/mine"}
    found = env(env=mine, cache=CompileCache("k", Path("/c")))
    assert found["VLLM_ENGINE_READY_TIMEOUT_S"] == "77"
    assert found["TRITON_CACHE_DIR"] == "/mine"


@pytest.mark.parametrize("timeout", [1.0, 600.0, 1500.0, 86400.0])
def test_the_engines_own_limit_for_a_start_is_the_same_whatever_ours_is_since_its_compile_key_has_it(
    timeout: float,
) -> None:
    assert env(startup_timeout=timeout)["VLLM_ENGINE_READY_TIMEOUT_S"] == "604800"


@pytest.mark.fault(3, 4)
def test_the_engines_own_limit_for_a_start_is_never_shorter_than_ours() -> None:
    assert env(startup_timeout=1e6 - 0.5)["VLLM_ENGINE_READY_TIMEOUT_S"] == "1000000"


def test_caches_lie_where_the_compile_cache_is_and_nowhere_without_one() -> None:
    cache = CompileCache("k", Path("/caches/vllm"))
    assert str(env(cache=cache)["VLLM_CACHE_ROOT"]).startswith(str(cache.files))
    assert "VLLM_CACHE_ROOT" not in env()


NIXL: dict[str, Any] = {"engine_args": {"kv-transfer-config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}}}


def test_a_connectors_port_is_held_and_told() -> None:
    assert VllmAdapter().capabilities_for(config(**NIXL)).extra_ports == 1
    assert env(extra=(9001,), **NIXL)["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "9001"
    assert VllmAdapter().capabilities_for(config()).extra_ports == 0


def test_a_connectors_port_that_the_user_sets_is_the_users() -> None:
    mine: dict[str, Any] = {**NIXL, "env": {"VLLM_NIXL_SIDE_CHANNEL_PORT": "7000"}}
    assert VllmAdapter().capabilities_for(config(**mine)).extra_ports == 0
    assert env(**mine)["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "7000"
    VllmAdapter().check(config(data_parallel=2, **mine))


def test_ranks_that_count_up_from_a_connectors_port_need_one_from_the_user() -> None:
    with pytest.raises(ConfigError, match="VLLM_NIXL_SIDE_CHANNEL_PORT"):
        VllmAdapter().check(config(data_parallel=2, **NIXL))
