"""SGLang's log: phases and causes, on what the real one has printed (`tests/engines/logs`) and on lines of its sources.

The excerpts are of 0.5.23 on a CPU, shortened. What only a GPU can show is taken from the sources of 0.5.23, with
values filled in.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from backends.sglang_log import QUOTES, RULES, phase
from lifecycle.adapter import Phase
from lifecycle.diagnosis import COMMON_RULES, Diagnosis, Exit, Verdict, diagnose

LOGS = Path(__file__).parents[1] / "engines" / "logs"


def lines_of(name: str) -> list[str]:
    return (LOGS / f"sglang-{name}.log").read_text(encoding="utf-8").splitlines()


def diagnosed(lines: list[str], code: int, when: str = "start") -> Diagnosis:
    exit, rules = Exit(code), (*RULES, *COMMON_RULES)
    return diagnose("exited", exit.text(), exit=exit, lines=lines, rules=rules, phase=when, quotes=QUOTES)


@pytest.mark.parametrize(
    ("log", "code", "cause", "shown"),
    [
        ("unknown-flag", 2, "unknown-flag", "--contxt-length"),
        ("bad-choice", 2, "unknown-flag", "'float7'"),
        ("missing-path", 1, "missing-model", "/models/here"),
        ("no-weights", -9, "missing-model", "/models/noweights"),
        ("context-too-long", 1, "context-too-long", "131072"),
        ("no-config", 1, "bad-config", "/models/empty"),
        ("no-architecture", -9, "unknown-architecture", "NoSuchForCausalLM"),
        ("no-model-type", 1, "unknown-architecture", "nosuchtype"),
        ("remote-code", 1, "needs-trust-remote-code", "trust_remote_code=True"),
        ("torn-weights", -9, "broken-weights", "not fully covered"),
        ("ranks-and-nodes", -9, "bad-parallel-sizes", "(dp_size * tp_size * pp_size = 3)"),
        ("no-kv-cache", -9, "no-kv-cache", "--mem-fraction-static=0.0001"),
    ],
)
def test_a_failed_start_is_named_by_the_line_that_shows_it_and_not_tried_again(
    log: str, code: int, cause: str, shown: str
) -> None:
    found = diagnosed(lines_of(log), code)
    assert (found.cause, found.verdict) == (cause, Verdict.HOPELESS), found.text()
    assert shown in found.evidence


def test_a_hub_that_cannot_be_reached_may_come_back() -> None:
    found = diagnosed(lines_of("hub-offline"), 1)
    assert (found.cause, found.verdict) == ("hub-unreachable", Verdict.TRANSIENT), found.text()


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
         "Current value: mem_fraction_static=0.88", "no-kv-cache"),
        ("[2026-12-02 06:44:47 TP1] The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
         "pre_model_load_memory=20.1, local_gpu_memory=78.3, local_gpu_memory * 0.9=70.5", "memory-held"),
        ("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB.", "out-of-memory"),
        ("Exception: Capture cuda graph failed: operation not permitted when stream is capturing", "graph-capture"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 79 GiB",
         "out-of-memory"),
        ("torch.AcceleratorError: CUDA error: invalid device ordinal", "not-enough-gpus"),
        ("ValueError: detokenizer_port at 30235 is not available in 30 seconds. detokenizer_port is used by a process "
         "already. process.name()='python' process.cmdline()=[] process.status()='sleeping' pid=77", "port-taken"),
        ("[2026-12-02 06:44:47] ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): "
         "address already in use", "port-taken"),
        ("RuntimeError: Rank 0 scheduler died during initialization (exit code: -4). If exit code is -9 (SIGKILL), a "
         "common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.", "illegal-instruction"),
        ("RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a "
         "common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.", "engine-killed"),
        ("ValueError: The quantization method fp8 is not supported for the current GPU. Minimum capability: 89.",
         "bad-quantization"),
        ("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)", "communication"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 12040).", "driver-mismatch"),
    ],
)  # fmt: skip
def test_what_only_a_gpu_shows_is_named_before_the_wrappers_that_follow(line: str, cause: str) -> None:
    after = [
        "[2026-12-02 06:44:48] Received sigquit from a child process. It usually means the child failed.",
        "[2026-12-02 06:44:48] kill_process_tree called: parent_pid=77, include_parent=True, pid=77",
    ]
    found = diagnosed(["[2026-12-02 06:44:47] Scheduler hit an exception: Traceback (most recent call last):", line,
                       *after], -9)  # fmt: skip
    assert found.cause == cause, found.text()


def test_a_killed_scheduler_is_named_by_the_line_of_the_process_that_outlived_it() -> None:
    found = diagnosed(lines_of("scheduler-killed"), -9, "run")
    assert found.cause == "engine-killed", found.text()
    assert "Subprocess scheduler_0 (pid=12242)" in found.evidence


def test_no_line_of_a_good_start_shows_a_fault() -> None:
    assert diagnosed(lines_of("start"), -9).evidence == ""


def test_a_logged_prompt_shows_no_fault() -> None:
    prompt = "Subprocess scheduler_0 (pid=1) crashed with exit code -9. CUDA out of memory. RuntimeError: NCCL error"
    lines = [
        f"[2026-12-02 06:44:47] Receive: obj=GenerateReqInput(text='{prompt}', sampling_params={{}})",
        f"[2026-12-02 06:44:47] Finish: obj=GenerateReqInput(text='{prompt}'), out={{'text': '{prompt}'}}",
        f"[2026-12-02 06:44:47] I was asked about {prompt}",
        prompt,
        f'{{"timestamp": "2026-12-02", "event": "request.received", "obj": {{"text": "{prompt}"}}}}',
    ]
    assert diagnosed(lines, -9, "run").evidence == ""
    assert diagnosed([*lines[:2], lines[4]], -9, "start").evidence == ""


def test_the_phases_of_a_real_start_come_in_their_order() -> None:
    phases = [found for line in lines_of("start") if (found := phase(line))]
    assert [name for name, _ in groupby(found.name for found in phases)] == [
        "configuring", "joining", "loading", "loaded", "allocating the KV cache", "starting HTTP", "warming up",
        "listening",
    ]  # fmt: skip
    assert Phase("loading", 3, 3) in phases


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Loading safetensors checkpoint shards:  25% Completed | 2/8 [00:04<00:13,  2.2s/it]", ("loading", 2, 8, "")),
        ("model-00001-of-00002.safetensors:  45%|####5     | 2.25G/5.00G [00:11<00:14, 104MB/s]",
         ("downloading", 2_250_000_000, 5_000_000_000, "bytes")),
        ("Reconstructing (incomplete total...):  10%|#         | 512MB / 5.12GB,  104MB/s",
         ("downloading", 512_000_000, 5_120_000_000, "bytes")),
        ("Fetching 12 files:  50%|#####     | 6/12 [00:02<00:02,  2.9it/s]", ("downloading", 6, 12, "")),
        ("DeepGEMM warmup:   1%|          | 164/16384 [00:02<04:10, 64.9it/s]", ("compiling", 164, 16384, "")),
        ("[2026-12-02 06:44:47 TP0] Try DeepGEMM JIT Compiling for <GROUPED_GEMM_NT_F8F8BF16_MASKED> N=4096, K=7168, "
         "num_groups=8 with all Ms.", ("compiling", None, None, "")),
        ("[2026-12-02 06:44:47] Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, bs=[1, 2]",
         ("capturing graphs", None, None, "")),
        ("Capturing batches (bs=1 avail_mem=7.52 GB):  50%|#####     | 4/8 [00:01<00:01,  3.1it/s]",
         ("capturing graphs", 4, 8, "")),
        ("Capturing prefill shape (num_tokens=64 avail_mem=7.52 GB):  50%|#####     | 4/8 [00:01<00:01,  3.1it/s]",
         ("capturing graphs", 4, 8, "")),
        ("[2026-12-02 06:44:47] Capture target decode CUDA graph end. elapsed=4.4 s",
         ("captured graphs", None, None, "")),
    ],
)  # fmt: skip
def test_progress_is_read_from_bars(line: str, said: tuple[str, int | None, int | None, str]) -> None:
    assert phase(line) == Phase(*said)


def test_lines_of_requests_are_no_phases() -> None:
    for line in (
        "[2026-12-02 06:46:11] Decode batch, #running-req: 1, #token: 1090, token usage: 0.05, cpu graph: False",
        '[2026-12-02 06:46:11] INFO:     127.0.0.1:44720 - "POST /v1/completions HTTP/1.1" 200 OK',
        "[2026-12-02 06:49:45] kill_process_tree called: parent_pid=10389, include_parent=True, pid=10389",
    ):
        assert phase(line) is None
