"""What is read out of vLLM's log and metrics: phases and causes, on excerpts of the real engine's output.

The excerpts (`tests/engines/logs/vllm-*.log`) are of 0.32.0 on a CPU, with progress of no interest left out. Lines
about GPUs are put together from the sources of that version.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from backends import vllm_log
from backends.vllm_load import load
from lifecycle.adapter import EngineLoad, Phase
from lifecycle.diagnosis import COMMON_RULES, Diagnosis, Exit, Verdict, diagnose

LOGS = Path(__file__).parent.parent / "engines" / "logs"
RULES = (*vllm_log.RULES, *COMMON_RULES)


def lines_of(name: str) -> list[str]:
    return (LOGS / f"vllm-{name}.log").read_text(encoding="utf-8").splitlines()


def cause_of(lines: list[str], *, phase: str = "start", code: int = 1) -> Diagnosis:
    return diagnose(
        "exited", "it ended", exit=Exit(code), lines=lines, rules=RULES, phase=phase, quotes=vllm_log.QUOTES
    )


def phases_of(lines: list[str]) -> list[Phase]:
    """The phases that a log shows, those that repeat once."""
    found = [phase for line in lines if (phase := vllm_log.phase(line)) is not None]
    return [phase for phase, _ in groupby(found)]


def test_a_cold_start_shows_its_phases_in_their_order() -> None:
    names = [name for name, _ in groupby(phase.name for phase in phases_of(lines_of("cold")))]
    assert names == [
        "booting", "configuring", "starting the engine", "joining", "loading", "loaded", "compiling", "compiled",
        "profiling", "allocating the KV cache", "warmed up", "starting HTTP", "listening",
    ]  # fmt: skip


def test_a_cold_start_counts_its_weight_files() -> None:
    counted = [phase for phase in phases_of(lines_of("cold")) if phase.total is not None]
    assert counted == [Phase("loading", 0, 3), Phase("loading", 3, 3)]


def test_a_warm_start_whose_compiled_code_does_not_load_compiles_again() -> None:
    """As 0.32.0 does on a CPU at every start: it falls back on the parts that the compiler has kept."""
    names = [phase.name for phase in phases_of(lines_of("warm"))]
    assert names.index("compiling") < names.index("compiled") < names.index("listening")
    assert any("Compiling model again due to a load failure" in line for line in lines_of("warm"))


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("Capturing CUDA graphs (decode, FULL):  40%|████      | 14/35 [00:02<00:03,  6.69it/s]",
         Phase("capturing graphs", 14, 35)),
        ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|██████████| 35/35 [00:03<00:00, 9.1it/s]",
         Phase("capturing graphs", 35, 35)),
        ("model-00001-of-00002.safetensors:  44%|████▍     | 1.20G/2.70G [00:11<00:14, 104MB/s]",
         Phase("downloading", 1_200_000_000, 2_700_000_000, "bytes")),
        ("Loading pt checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.00s/it]", Phase("loading", 1, 2)),
        ("(Worker_TP0 pid=9) INFO 12-02 06:42:52 [gpu_worker.py:1] Available KV cache memory: 45.31 GiB",
         Phase("allocating the KV cache")),
        ("INFO 12-02 06:42:52 [gpu_model_runner.py:1] Graph capturing finished in 3 secs, took 0.51 GiB",
         Phase("captured graphs")),
        ("(Worker pid=9) INFO 12-02 06:42:52 [decorators.py:319] Directly load AOT compilation from path /cache/model",
         Phase("taking compiled code from the cache")),
    ],
)  # fmt: skip
def test_progress_is_read_from_bars_and_lines(line: str, phase: Phase) -> None:
    assert vllm_log.phase(line) == phase


@pytest.mark.parametrize(
    ("name", "cause", "verdict", "words"),
    [
        ("unknown-flag", "unknown-flag", Verdict.HOPELESS, "--no-such-flag"),
        ("bad-choice", "unknown-flag", Verdict.HOPELESS, "invalid choice: 'nonsense'"),
        ("missing-path", "missing-model", Verdict.HOPELESS, "/models/none"),
        ("missing-offline", "missing-model", Verdict.HOPELESS, "outgoing traffic has been disabled"),
        ("hub-unreachable", "hub-unreachable", Verdict.TRANSIENT, "We couldn't connect"),
        ("context-too-long", "context-too-long", Verdict.HOPELESS, "(100000)"),
        ("no-kv-cache", "no-kv-cache", Verdict.HOPELESS, "No available memory for the cache blocks"),
        ("context-exceeds-cache", "context-exceeds-cache", Verdict.HOPELESS, "(131072)"),
        ("cpu-memory", "no-kv-cache", Verdict.HOPELESS, "less than requested memory for kv"),
        ("bad-parallel-sizes", "bad-parallel-sizes", Verdict.HOPELESS, "tensor parallel size (3)"),
        ("unsupported-model", "unknown-architecture", Verdict.HOPELESS, "NoSuchForCausalLM"),
        ("trust-remote-code", "needs-trust-remote-code", Verdict.HOPELESS, "trust_remote_code=True"),
        ("no-config", "missing-model", Verdict.HOPELESS, "/models/noconf"),
        ("no-weights", "missing-model", Verdict.HOPELESS, "Cannot find any model weights"),
        ("broken-weights", "broken-weights", Verdict.HOPELESS, "SafetensorError"),
        ("no-tokenizer", "missing-tokenizer", Verdict.HOPELESS, "Couldn't instantiate"),
        ("bad-quantization", "bad-quantization", Verdict.HOPELESS, "for awq"),
        ("port-taken", "port-taken", Verdict.TRANSIENT, "Address already in use"),
        ("gloo", "communication", Verdict.UNKNOWN, "Unable to find address for: nope0"),
    ],
)
def test_a_failed_start_of_the_real_engine_gets_its_cause(name: str, cause: str, verdict: Verdict, words: str) -> None:
    found = cause_of(lines_of(name))
    assert (found.cause, found.verdict) == (cause, verdict), found.text()
    assert words in found.evidence
    assert found.advice


@pytest.mark.parametrize(
    ("line", "cause", "verdict"),
    [
        ("ValueError: Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory "
         "utilization (0.92, 72.8 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
         "memory-held", Verdict.UNKNOWN),
        ("AssertionError: Error in memory profiling. Initial free memory 10.0 GiB, current free memory 30.0 GiB. This "
         "happens when other processes sharing the same container release GPU memory", "memory-held",
         Verdict.UNKNOWN),
        ("ValueError: World size (8) is larger than the number of available GPUs (4) in this node. If this is",
         "not-enough-gpus", Verdict.HOPELESS),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of",
         "out-of-memory", Verdict.UNKNOWN),
        ("RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try "
         "lowering `max_num_seqs`", "out-of-memory", Verdict.UNKNOWN),
        ("RuntimeError: Failed to infer device type, please set the environment variable", "driver-mismatch",
         Verdict.HOPELESS),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "driver-mismatch",
         Verdict.HOPELESS),
        ("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)", "communication",
         Verdict.UNKNOWN),
        ("OSError: [Errno 28] No space left on device: '/cache/model.tmp'", "disk-full", Verdict.HOPELESS),
        ("OSError: [Errno 98] Address already in use", "port-taken", Verdict.TRANSIENT),
        ("_pickle.UnpicklingError: pickle data was truncated", "compile-cache", Verdict.UNKNOWN),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/cache/vllm/torch_compile_cache/x/y'",
         "compile-cache", Verdict.TRANSIENT),
        ("TimeoutError: Timed out waiting for engine core processes to start. This is often caused by",
         "engine-timeout", Verdict.UNKNOWN),
    ],
)  # fmt: skip
def test_a_cause_is_found_above_the_wrappers(line: str, cause: str, verdict: Verdict) -> None:
    wrapped = [
        f"(EngineCore pid=7) ERROR 12-02 06:56:31 [core.py:1510] {line}",
        "(EngineCore pid=7) ERROR 12-02 06:56:31 [core.py:1510] Exception: WorkerProc initialization failed due to an "
        "exception in a background process. See stack trace for root cause.",
        "Traceback (most recent call last):",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}",
    ]
    found = cause_of(wrapped)
    assert (found.cause, found.verdict) == (cause, verdict)


def test_the_wrappers_alone_are_no_cause() -> None:
    found = cause_of([
        "(EngineCore pid=7) ERROR 12-02 06:56:31 [core.py:1510] EngineCore failed to start.",
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for "
        "root cause.",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ])  # fmt: skip
    assert (found.cause, found.verdict) == ("exited", Verdict.UNKNOWN)


DEAD = (
    "(APIServer pid=6) ERROR 12-02 07:01:03 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
    "encountered an issue. See stack trace (above) for the root cause."
)
"""What the API server says of every end of its engine."""


def test_a_killed_worker_is_named() -> None:
    found = cause_of([*lines_of("worker-killed"), DEAD], phase="run", code=0)
    assert (found.cause, found.verdict) == ("engine-killed", Verdict.UNKNOWN)
    assert "exit code: -9" in found.evidence


def test_an_engine_that_died_without_a_word_is_named_and_one_that_said_why_by_what_it_said() -> None:
    assert cause_of([DEAD], phase="run", code=0).cause == "engine-died"
    why = "(EngineCore pid=8) ERROR 12-02 07:01:01 [core.py:1512] torch.OutOfMemoryError: CUDA out of memory. Tried to"
    assert cause_of([why, DEAD], phase="run", code=0).cause == "out-of-memory"


def test_what_users_wrote_is_never_a_cause() -> None:
    """With --enable-log-requests, and in what the engine dumps when it dies."""
    told = [
        "DEBUG 12-02 06:44:47 [request_logger.py:56] Request cmpl-1 details: prompt: 'CUDA out of memory', "
        "prompt_token_ids: [1], prompt_embeds shape: None.",
        "INFO 12-02 06:44:47 [request_logger.py:65] Received request cmpl-1: params: SamplingParams(n=1, "
        "stop=['ModuleNotFoundError'], max_tokens=9), lora_request: None.",
        "INFO 12-02 06:44:47 [request_logger.py:120] Generated response cmpl-1: output: 'No space left on device'",
        "(EngineCore pid=7) ERROR 12-02 07:01:02 [dump_input.py:72] Dumping scheduler output for model execution: "
        "SchedulerOutput(scheduled_new_reqs=[NewRequestData(sampling_params=SamplingParams(stop=['CUDA error: x']))])",
    ]
    for phase in ("start", "run"):
        assert cause_of(told, phase=phase).cause == "exited"


def test_real_request_lines_are_known_to_carry_users_texts() -> None:
    asked = [line for line in lines_of("request-log") if "SamplingParams(" in line]
    assert asked
    assert cause_of([line.replace("stop=[]", "stop=['CUDA out of memory']") for line in asked]).cause == "exited"


METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } \\"b\\" 3"} 2.0
vllm:num_requests_running{engine="1",model_name="a } \\"b\\" 3"} 1.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 60000.0
vllm:prompt_tokens_created{engine="0",model_name="tiny"} 1.7961938738374188e+09
vllm:generation_tokens_total{engine="0",model_name="tiny"} 1.5e+03
vllm:generation_tokens_total{engine="1",model_name="tiny"} 500.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="tiny"} 9.0
vllm:iteration_tokens_total_count{engine="0",model_name="tiny"} 1510.0
vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="tiny"} 7.0
vllm:e2e_request_latency_seconds_count{engine="0",model_name="tiny"} 40.0
vllm:e2e_request_latency_seconds_count{engine="1",model_name="tiny"} 2.0
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="tiny"} 80.5
http_request_duration_highr_seconds_count 0.0
"""


def test_the_load_is_the_sum_over_the_engines_of_a_server() -> None:
    assert load(METRICS) == EngineLoad(3, 4, (2000.0, 60000.0, 1510.0, 0.25, 0.0), 42.0, 2000.0, 80.5)


@pytest.mark.parametrize("body", ["", "not metrics", "{}", "vllm:num_requests_running{", "python_info 1.0\n\n"])
def test_metrics_that_say_nothing_of_the_engine_are_no_load(body: str) -> None:
    assert load(body) is None
