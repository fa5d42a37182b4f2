"""SGLang's command line and environment, checked against the option tables of real parsers of three versions.

The tables (`tests/engines/options/sglang-*.json`) are what `backends.parser_dump` printed with those versions on a CPU,
shortened by what is the default.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.engine import Engine, numbers
from backends.options import Option, Options
from backends.parser_dump import MARK
from backends.sglang import OLDEST, READY_SINCE, SglangAdapter, SglangOptions
from backends.sglang_flags import CACHES, DERIVED, OURS, REFUSED, cache_key
from lifecycle.adapter import PRIVATE, Command, CompileCache, EngineLoad, Launch, Prepared
from lifecycle.config import MODEL_SETTINGS, ServerConfig
from lifecycle.errors import ConfigError, UnknownFlag
from lifecycle.secrets import known_secrets

TABLES = Path(__file__).parent.parent / "engines" / "options"
VERSIONS = ("0.5.15", "0.5.20", "0.5.23")
NEWEST = "0.5.23"
EVERYTHING: dict[str, Any] = {
    "served_name": "mine", "revision": "main", "dtype": "bfloat16", "context_length": 4096, "tensor_parallel": 4,
    "pipeline_parallel": 2, "data_parallel": 2, "engine_seed": 7, "trust_remote_code": True,
    "mem_fraction_static": 0.8, "max_running_requests": 64, "attention_backend": "triton", "load_format": "dummy",
    "device": "cuda",
}  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    """A backend knows nothing of event loops: one is enough."""
    return "asyncio"


def engine(version: str = NEWEST) -> Engine:
    table = msgspec.json.decode((TABLES / f"sglang-{version}.json").read_bytes(), type=tuple[Option, ...])
    return Engine("sglang", "/engine/bin/python", version, "2.13.0", Options(f"sglang {version}", table))


def config(model: str = "me/model", **settings: Any) -> ServerConfig:
    chosen = {key: settings.pop(key) for key in list(settings) if key in SglangOptions.__dataclass_fields__}
    return ServerConfig("sglang", model=model, options=chosen, **settings)


def command(version: str = NEWEST, cache: CompileCache | None = None, **settings: Any) -> Command:
    given = config(**settings)
    extra = tuple(range(9000, 9000 + SglangAdapter().capabilities_for(given).extra_ports))
    return SglangAdapter().command(Launch(given, 8001, extra, 1, Prepared(cache, engine(version))))


def after(flag: str, words: Sequence[str]) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_setting_becomes_flags_that_the_real_parser_takes(version: str, attention: bool) -> None:
    words = command(version, **EVERYTHING, dp_attention=attention).argv[3:]
    engine(version).check(words)
    options = engine(version).options
    for word in words:
        assert not word.startswith("--") or options.find(word), word  # by its whole name, not by the beginning of one
    assert not set(MODEL_SETTINGS) - SglangAdapter.capabilities.settings
    assert after("--model-path", words) == "me/model"
    assert after("--context-length", words) == "4096"
    assert after("--random-seed", words) == "7"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_flag_that_stoker_sets_is_refused_by_each_of_its_names(version: str) -> None:
    mine = {word.lstrip("-") for word in command(version, **EVERYTHING, dp_attention=True).argv if word[:2] == "--"}
    for option in engine(version).options.all:
        names = {name.lstrip("-") for name in option.names}
        if names & (mine | {"config"}):
            assert names <= OURS.keys() | REFUSED.keys(), names
            for name in names:
                with pytest.raises(ConfigError, match=name):
                    SglangAdapter().check(config(engine_args={name: "x"}))


def environment(folder: Path, version: str = NEWEST) -> dict[str, str]:
    """What names an interpreter with SGLang beside it, as far as Stoker looks at one, and a place for what it says."""
    for name, its in (("sglang", version), ("torch", "2.13.0")):
        metadata = folder / f"lib/python3.11/site-packages/{name}-{its}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {its}\n")
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(sys.executable)
    return {"python": str(folder / "bin/python"), "cache_dir": str(folder / "cache")}


async def parser(argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 0) -> str:
    """What the process that asks SGLang's parser prints."""
    table = (TABLES / f"sglang-{NEWEST}.json").read_text().replace("\n", "")
    return f"a warning of the engine\n{MARK}{table}\n"


@pytest.mark.anyio
async def test_the_command_line_is_judged_by_the_installed_parser(tmp_path: Path) -> None:
    beside = environment(tmp_path)
    with pytest.raises(UnknownFlag, match=r"sglang 0\.5\.23 has no flag --served-model-nam.*--served-model-name"):
        await SglangAdapter().prepare(config(engine_args={"served-model-nam": "x"}, **beside), parser)
    with pytest.raises(UnknownFlag, match=r"--dtype.*float7"):
        await SglangAdapter().prepare(config(dtype="float7", **beside), parser)


@pytest.mark.anyio
async def test_a_start_on_a_gpu_builds_a_cache_and_one_on_a_cpu_none(tmp_path: Path) -> None:
    beside = environment(tmp_path)
    prepared = await SglangAdapter().prepare(config(device="cpu", **beside), parser)
    assert prepared.cache is None
    compiled = config(device="cpu", engine_args={"enable-torch-compile": True}, **beside)
    prepared = await SglangAdapter().prepare(compiled, parser)
    assert prepared.cache is not None
    prepared = await SglangAdapter().prepare(config(**beside), parser)
    assert prepared.cache is not None
    assert prepared.cache.root == tmp_path / "cache/sglang"
    assert prepared.cache.key.startswith("sglang 0.5.23; torch 2.13.0; ")


@pytest.mark.anyio
async def test_an_sglang_that_is_too_old_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sglang 0\.5\.9 .* older than 0\.5\.15"):
        await SglangAdapter().prepare(config(**environment(tmp_path, "0.5.9")), parser)


def test_flags_of_other_machines_and_other_protocols_are_refused() -> None:
    for name in REFUSED:
        with pytest.raises(ConfigError, match=name):
            SglangAdapter().check(config(engine_args={name: "x"}))


def test_a_flag_that_is_false_is_left_out_unless_the_engine_can_say_no() -> None:
    args = {"enable-metrics": False, "lora-strict-loading": False, "disable-radix-cache": True}
    words = command(engine_args=args).argv
    assert "--no-lora-strict-loading" in words
    assert "--disable-radix-cache" in words
    assert not [word for word in words if "metrics" in word]


def test_lists_and_tables_are_written_as_sglang_reads_them() -> None:
    words = command(engine_args={"cuda-graph-bs-decode": [1, 2, 4], "json-model-override-args": {"a": {"b": [1]}}}).argv
    at = words.index("--cuda-graph-bs-decode")
    assert words[at + 1 : at + 4] == ("1", "2", "4")
    assert json.loads(after("--json-model-override-args", words)) == {"a": {"b": [1]}}
    engine().check(words[3:])


def test_the_key_goes_into_a_private_file_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", 'sk-"quoted": #1')
    made = command(api_key_env="MY_KEY")
    ((name, text),) = made.files.items()
    assert after("--config", made.argv) == f"{PRIVATE}/{name}"
    assert Path(name).suffix == ".yaml"  # no other ending is read
    field, _, value = text.partition(": ")
    assert (field, json.loads(value)) == ("api-key", 'sk-"quoted": #1')
    assert "sk-" not in " ".join((*made.argv, *filter(None, made.env.values())))
    assert 'sk-"quoted": #1' in known_secrets('sk-"quoted": #1', made.env)


def test_a_key_that_its_parser_would_take_for_a_flag_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "-minus")
    with pytest.raises(ConfigError, match="begins with '-'"):
        SglangAdapter().check(config(api_key_env="MY_KEY"))


def test_the_port_of_nccl_is_stokers_unless_several_copies_would_share_it() -> None:
    adapter = SglangAdapter()
    assert after("--nccl-port", command().argv) == "9000"
    assert "--nccl-port" not in command(data_parallel=2).argv
    assert adapter.capabilities_for(config(data_parallel=2)).derived_ports == ()
    divided = config(data_parallel=2, tensor_parallel=2, dp_attention=True)
    assert adapter.capabilities_for(divided).derived_ports == DERIVED
    assert adapter.capabilities_for(divided).extra_ports == 1


def test_attention_that_is_divided_has_the_flags_of_its_version() -> None:
    divided: dict[str, Any] = {"data_parallel": 2, "tensor_parallel": 2, "dp_attention": True}
    assert after("--attn-dp-size", command(**divided).argv) == "2"
    old = command("0.5.20", **divided).argv
    assert (after("--dp-size", old), "--enable-dp-attention" in old) == ("2", True)
    with pytest.raises(ConfigError, match="must divide tensor_parallel = 3"):
        SglangAdapter().check(config(data_parallel=2, tensor_parallel=3, dp_attention=True))


def test_the_caches_lie_together_where_the_compile_cache_is() -> None:
    root = Path("/disk/caches/sglang")
    made = command(cache=CompileCache("key", root))
    assert all(str(made.env[name]).startswith(f"{root}/") for name in CACHES)
    assert not CACHES.keys() & command().env.keys()
    mine = {"TRITON_CACHE_DIR": "/mine"}
    assert command(cache=CompileCache("key", root), env=mine).env["TRITON_CACHE_DIR"] == "/mine"


def test_health_is_asked_without_generating_where_there_is_no_ready() -> None:
    assert numbers(OLDEST) < numbers(READY_SINCE)
    assert command(OLDEST).env["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "0"
    assert "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION" not in command(READY_SINCE).env


def test_a_dead_engine_does_not_wait_for_coredumps_that_nobody_has_switched_on() -> None:
    assert command().env["SGLANG_CUDA_COREDUMP_BEFORE_CRASH"] == "0"
    assert "SGLANG_CUDA_COREDUMP_BEFORE_CRASH" not in command(env={"SGLANG_CUDA_COREDUMP": "1"}).env


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({}, True),
        ({"version": "0.5.24"}, False),
        ({"torch": "2.14.0"}, False),
        ({"gpus": ("NVIDIA H200",)}, False),
        ({"model": "me/other"}, False),
        ({"words": ("--tp-size", "2")}, False),
        ({"environ": {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"}}, False),
        ({"environ": {"SGLANG_LOG_MS": "1", "HOME": "/root", "TRITON_CACHE_DIR": "/x"}}, True),
    ],
)
def test_a_compile_cache_is_named_after_what_its_code_depends_on(changed: dict[str, Any], same: bool) -> None:
    usual: dict[str, Any] = {
        "words": ("--dtype", "auto"), "environ": {}, "version": "0.5.23", "torch": "2.13.0", "gpus": ("NVIDIA H100",),
        "model": "me/model",
    }  # fmt: skip
    assert (cache_key(**usual) == cache_key(**{**usual, **changed})) is same


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"loads": [{"timestamp": 5.5, "num_running_reqs": 1, "num_waiting_reqs": 2, "num_used_tokens": 7},
                    {"timestamp": 6.5, "num_running_reqs": 3, "num_waiting_reqs": 0, "gen_throughput": 9.5}]},
         EngineLoad(4, 2, (5.5, 7, 0.0, 0, 6.5, 0, 9.5, 0))),
        ({"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": 3}]},
         EngineLoad(0, 0, (0, 3, 0, 0))),
        ({"loads": []}, None),
        ({"error": "no such path"}, None),
        ("not JSON", None),
    ],
)  # fmt: skip
def test_its_load_is_summed_over_its_schedulers(body: Any, said: EngineLoad | None) -> None:
    assert SglangAdapter().load(body) == said


@pytest.mark.parametrize(
    "settings",
    [{"command": "x"}, {"model": ""}, {"mem_fraction_static": 1.5}, {"max_running_requests": 0},
     {"engine_args": {"api-key": "x"}}],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_the_engine_is_looked_for(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SglangAdapter().check(config(**settings))
