"""What vLLM's compile cache is named after, and where it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends import vllm_cache
from backends.vllm_cache import compiles, grouped, model_hash

WORDS = ["tiny", "--host", "127.0.0.1", "--port", "8001", "--served-model-name", "tiny", "--dtype", "bfloat16"]


def key(words: list[str], environ: dict[str, str] | None = None, **more: Any) -> str:
    facts = {"version": "0.32.0", "torch": "2.13.0", "gpus": ["H100"], "model": "tiny", "model_hash": "", **more}
    return vllm_cache.key(words, environ or {}, **facts)


@pytest.mark.parametrize(
    "more",
    [
        ["--max-model-len", "4096"], ["--tensor-parallel-size", "2"], ["--quantization", "fp8"], ["-O3"],
        ["--max-num-seqs", "8"], ["--compilation-config", '{"cudagraph_mode":"FULL"}'], ["--no-such-flag-yet", "1"],
    ],
)  # fmt: skip
def test_a_flag_that_may_change_the_code_changes_the_name(more: list[str]) -> None:
    assert key([*WORDS, *more]) != key(WORDS)


@pytest.mark.parametrize(
    "more",
    [
        ["--gpu-memory-utilization", "0.8"], ["--shutdown-timeout", "30"], ["--chat-template", "t.jinja"],
        ["--enable-log-requests"], ["--kv_cache_memory_bytes", "1000000"], ["--uvicorn-log-level=warning"],
        ["--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--enable-auto-tool-choice"],
    ],
)  # fmt: skip
def test_a_flag_of_http_logs_or_memory_does_not(more: list[str]) -> None:
    assert key([*WORDS, *more]) == key(WORDS)


def test_two_servers_of_one_configuration_have_one_name_whatever_they_are_called_and_listen_on() -> None:
    other = ["tiny", "--host", "0.0.0.0", "--port", "8002", "--served-model-name", "mine", "--dtype", "bfloat16"]
    assert key(other) == key(WORDS)


@pytest.mark.parametrize(
    "facts",
    [
        {"version": "0.33.0"}, {"torch": "2.14.0"}, {"gpus": ["A100"]}, {"gpus": []}, {"model": "other"},
        {"model_hash": "f00"},
    ],
)  # fmt: skip
def test_engine_torch_gpu_and_model_are_in_the_name(facts: dict[str, Any]) -> None:
    assert key(WORDS, **facts) != key(WORDS)


def test_the_order_of_flags_is_not() -> None:
    more = ["--max-model-len", "256", "--seed", "1"]
    assert key([*WORDS, *more]) == key([*WORDS, *more[2:], *more[:2]])


@pytest.mark.parametrize(
    ("environ", "counts"),
    [
        ({"VLLM_ATTENTION_BACKEND": "FLASHINFER"}, True),
        ({"VLLM_ENGINE_READY_TIMEOUT_S": "1500"}, True),
        ({"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}, True),
        ({"VLLM_API_KEY": "sk-secret"}, False),
        ({"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": "1"}, False),
        ({"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "9", "VLLM_IMAGE_FETCH_TIMEOUT": "9"}, False),
        ({"VLLM_MEDIA_CACHE": "/x", "VLLM_ASSETS_CACHE": "/x", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}, False),
        ({"VLLM_CACHE_ROOT": "/elsewhere", "TRITON_CACHE_DIR": "/x"}, False),
        ({"HOME": "/home/me", "CUDA_VISIBLE_DEVICES": "1"}, False),
    ],
)
def test_variables_count_if_they_may_change_the_code(environ: dict[str, str], counts: bool) -> None:
    """vLLM's own key has VLLM_ENGINE_READY_TIMEOUT_S in it (0.32.0), and another key is another build."""
    assert (key(WORDS, environ) != key(WORDS)) is counts
    assert "sk-secret" not in key(WORDS, environ)


@pytest.mark.parametrize(
    ("more", "environ", "does"),
    [
        ([], {}, True),
        (["--enforce-eager"], {}, False),
        (["-O0"], {}, False),
        (["--optimization-level", "0"], {}, False),
        (["--optimization-level", "2"], {}, True),
        (["--compilation-config", '{"mode":0}'], {}, False),
        (["-cc", '{"mode":3}'], {}, True),
        (["--compilation-config", "no JSON"], {}, True),
        (["-cc.mode=none"], {}, False),
        (["--compilation_config.mode", "0"], {}, False),
        ([], {"VLLM_DISABLE_COMPILE_CACHE": "1"}, False),
        ([], {"VLLM_DISABLE_COMPILE_CACHE": "0"}, True),
    ],
)
def test_a_start_that_compiles_nothing_has_no_cache(more: list[str], environ: dict[str, str], does: bool) -> None:
    assert compiles([*WORDS, *more], environ) is does


def test_values_stay_with_their_flags() -> None:
    words = ["--cudagraph-capture-sizes", "1", "2", "--seed", "-1", "--x=a=b", "--trust_remote_code"]
    assert grouped(words) == [
        ("cudagraph-capture-sizes", ("1", "2")), ("seed", ("-1",)), ("x", ("a=b",)), ("trust-remote-code", ()),
    ]  # fmt: skip


def test_another_config_json_in_the_same_folder_is_another_model(tmp_path: Path) -> None:
    assert model_hash(str(tmp_path)) == model_hash("user/repository") == ""
    (tmp_path / "config.json").write_text("{}")
    first = model_hash(str(tmp_path))
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    assert "" != first != model_hash(str(tmp_path))


def test_every_cache_lies_below_the_one_folder() -> None:
    folders = vllm_cache.folders(Path("/cache/files"))
    assert {"VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"} <= set(folders)
    assert len(set(folders.values())) == len(folders)
    assert all(Path(folder).is_relative_to("/cache/files") for folder in folders.values())
