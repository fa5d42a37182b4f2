"""Why a server ended: rules that name a cause, verdicts that decide about another attempt, texts that help."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.diagnosis import COMMON_RULES, TAIL_LINES, Diagnosis, Exit, Rule, Verdict, diagnose, without_repeats

SEEN = {
    "vllm: error: unrecognized arguments: --disable-log-requests": ("unknown-flag", Verdict.HOPELESS),
    "error: invalid argument: --no-such-flag": ("unknown-flag", Verdict.HOPELESS),
    "Please pass the argument `trust_remote_code=True` to allow custom code to be run.":
        ("needs-trust-remote-code", Verdict.HOPELESS),
    "ValueError: Model architectures ['X'] are not supported for now.": ("unknown-architecture", Verdict.HOPELESS),
    "OSError: [Errno 98] Address already in use": ("port-taken", Verdict.TRANSIENT),
    "error while attempting to bind on address ('127.0.0.1', 8000): address in use": ("port-taken", Verdict.TRANSIENT),
    "requests.exceptions.HTTPError: 401 Client Error: Unauthorized": ("bad-credentials", Verdict.HOPELESS),
    "huggingface_hub.errors.HfHubHTTPError: Client error '403 Forbidden'": ("bad-credentials", Verdict.HOPELESS),
    "Cannot access gated repo for url https://hub/m": ("bad-credentials", Verdict.HOPELESS),
    "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error.": ("missing-model", Verdict.HOPELESS),
    "OSError: x is not a local folder and is not a valid model identifier": ("missing-model", Verdict.HOPELESS),
    "gguf_init_from_file: failed to open GGUF file 'm.gguf'": ("missing-model", Verdict.HOPELESS),
    "OSError: We couldn't connect to 'https://hub' to load this file": ("hub-unreachable", Verdict.TRANSIENT),
    "socket.gaierror: Temporary failure in name resolution": ("hub-unreachable", Verdict.TRANSIENT),
    "ValueError: Free memory on device is less than desired GPU memory utilization": ("memory-held", Verdict.UNKNOWN),
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB": ("out-of-memory", Verdict.UNKNOWN),
    "RuntimeError: CUDA error: out of memory": ("out-of-memory", Verdict.UNKNOWN),
    "MemoryError": ("out-of-host-memory", Verdict.UNKNOWN),
    "terminate called after throwing an instance of 'std::bad_alloc'": ("out-of-host-memory", Verdict.UNKNOWN),
    "OSError: [Errno 12] Cannot allocate memory": ("out-of-host-memory", Verdict.UNKNOWN),
    "ValueError: World size (8) is larger than the number of available GPUs (4) in this node.":
        ("not-enough-gpus", Verdict.HOPELESS),
    "RuntimeError: CUDA error: invalid device ordinal": ("not-enough-gpus", Verdict.HOPELESS),
    "RuntimeError: No CUDA GPUs are available": ("not-enough-gpus", Verdict.HOPELESS),
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).":
        ("driver-mismatch", Verdict.HOPELESS),
    "RuntimeError: CUDA error: no kernel image is available for execution on the device":
        ("driver-mismatch", Verdict.HOPELESS),
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non "
    "supported HW": ("driver-mismatch", Verdict.HOPELESS),
    "CUDA driver version is insufficient for CUDA runtime version": ("driver-mismatch", Verdict.HOPELESS),
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered": ("gpu-fault", Verdict.UNKNOWN),
    "RuntimeError: CUDA error: an illegal instruction was encountered": ("gpu-fault", Verdict.UNKNOWN),
    "Fatal Python error: Illegal instruction": ("illegal-instruction", Verdict.HOPELESS),
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_7_1>: No space left on device (28)":
        ("shared-memory", Verdict.UNKNOWN),
    "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-rOiSCE (size 9637888)":
        ("shared-memory", Verdict.UNKNOWN),
    "OSError: [Errno 28] No space left on device": ("disk-full", Verdict.HOPELESS),
    "OSError: [Errno 122] Disk quota exceeded: '/home/u/.cache'": ("disk-full", Verdict.HOPELESS),
    "_pickle.UnpicklingError: pickle data was truncated": ("compile-cache", Verdict.UNKNOWN),
    "EOFError: Ran out of input": ("compile-cache", Verdict.UNKNOWN),
    "OSError: [Errno 116] Stale file handle: '/home/u/.triton/cache/x'": ("compile-cache", Verdict.UNKNOWN),
    "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:": ("compile-failed", Verdict.UNKNOWN),
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled system error":
        ("communication", Verdict.UNKNOWN),
    "RuntimeError: Gloo connectFullMesh failed with ...": ("communication", Verdict.UNKNOWN),
    "ModuleNotFoundError: No module named 'vllm'": ("missing-library", Verdict.HOPELESS),
    "sh: 1: exec: no-such-program: not found": ("missing-library", Verdict.HOPELESS),
}
EXCERPTS = {
    "hub-down-snapshot": "hub-unreachable",
    "hub-gated-snapshot": "bad-credentials",
    "hub-norepo-snapshot": "missing-model",
    "hub-offline-api": "missing-model",
    "hub-offline-snapshot": "missing-model",
    "pickle-empty": "compile-cache",
    "pickle-truncated": "compile-cache",
    "python-disk-full": "disk-full",
    "python-memory": "out-of-host-memory",
    "torch-host-memory": "out-of-host-memory",
    "torch-port-taken": "port-taken",
    "torch-rendezvous-timeout": "communication",
    "transformers-custom-code": "needs-trust-remote-code",
    "transformers-hub-busy": "hub-unreachable",
    "transformers-hub-down": "hub-unreachable",
    "transformers-hub-forbid": "bad-credentials",
    "transformers-hub-gated": "bad-credentials",
    "transformers-hub-gone": "missing-model",
    "transformers-hub-norepo": "missing-model",
    "transformers-hub-rev": "missing-model",
    "transformers-hub-unauth": "bad-credentials",
    "transformers-no-such-path": "missing-model",
    "transformers-offline": "missing-model",
    "transformers-unknown-architecture": "unknown-architecture",
}
"""Standard error of huggingface_hub 1.x, transformers 5.19, torch 2.13 (CPU) and CPython 3.11, with the fault made on
purpose: a hub on this machine that answers 401, 403, 404 or 503, one that is not there, a full disk, a taken port."""
GENERAL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, remote process exited"
SPECIFIC = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
LINES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=60)


@pytest.mark.parametrize(("line", "expected"), SEEN.items(), ids=SEEN)
def test_a_line_that_engines_print_names_its_cause(line: str, expected: tuple[str, Verdict]) -> None:
    found = diagnose("exited", "it exited", exit=Exit(1), lines=["before", line, "after"])
    assert (found.cause, found.verdict) == expected
    assert found.evidence == line
    assert found.advice


def test_every_common_rule_is_shown_by_a_line_above() -> None:
    assert {rule.cause for rule in COMMON_RULES} == {cause for cause, _ in SEEN.values()}


@pytest.mark.parametrize("rule", COMMON_RULES, ids=lambda rule: rule.cause)
def test_a_rule_compiles_and_says_what_to_do(rule: Rule) -> None:
    re.compile(rule.pattern)
    assert rule.advice


@pytest.mark.parametrize(
    "line",
    ["INFO loading weights took 401 ms", "progress 404/500", "INFO 2026-01-01 00:05:03 no connection yet", "GET / 200"],
)
def test_numbers_in_ordinary_lines_name_nothing(line: str) -> None:
    assert diagnose("exited", "it exited", exit=Exit(1), lines=[line]).cause == "exited"


def test_the_last_line_that_matches_counts_wherever_it_is() -> None:
    trace = ["frame"] * 150 + ["No space left on device"] + ["frame"] * 150
    assert diagnose("exited", "s", lines=["unrecognized arguments: --x", *trace]).cause == "disk-full"


def test_a_backend_s_own_rules_come_first() -> None:
    own = Rule("bad-gguf", "failed to load", Verdict.HOPELESS, "fetch it again")
    common = Rule("other", "failed", Verdict.TRANSIENT, "wait")
    assert diagnose("exited", "s", lines=["failed to load"], rules=[own, common]).cause == "bad-gguf"


@pytest.mark.parametrize(("first", "then"), [(GENERAL, SPECIFIC), (SPECIFIC, GENERAL)])
def test_a_cause_counts_before_its_consequences_wherever_they_are(first: str, then: str) -> None:
    assert diagnose("exited", "s", lines=[first, then]).cause == "out-of-memory"


@pytest.mark.parametrize(("excerpt", "cause"), EXCERPTS.items())
def test_what_libraries_really_print_names_the_cause(excerpt: str, cause: str) -> None:
    lines = (Path(__file__).parent / "excerpts" / f"{excerpt}.log").read_text().splitlines()
    assert diagnose("exited", "s", exit=Exit(1), lines=lines, phase="start").cause == cause


def test_every_excerpt_is_in_the_table() -> None:
    assert {path.stem for path in (Path(__file__).parent / "excerpts").glob("*.log")} >= set(EXCERPTS)


@pytest.mark.parametrize("line", ["nothing known", *SEEN])
@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_no_shell_can_run_is_hopeless_whatever_the_log_says(code: int, line: str) -> None:
    found = diagnose("exited", "s", exit=Exit(code), lines=[line])
    assert found.verdict is Verdict.HOPELESS
    assert found.advice


@pytest.mark.parametrize(
    ("code", "kills", "line", "cause", "verdict"),
    [
        (-9, 1, "nothing known", "oom-killed", Verdict.UNKNOWN),
        (-9, 1, SPECIFIC, "oom-killed", Verdict.UNKNOWN),
        (1, 2, "Worker proc died unexpectedly (exit code: -9)", "oom-killed", Verdict.UNKNOWN),
        (0, 1, GENERAL, "oom-killed", Verdict.UNKNOWN),
        (1, 1, SPECIFIC, "out-of-memory", Verdict.UNKNOWN),
        (-9, 0, SPECIFIC, "out-of-memory", Verdict.UNKNOWN),
        (-9, 0, "nothing known", "exited", Verdict.UNKNOWN),
        (-4, 0, "nothing known", "illegal-instruction", Verdict.HOPELESS),
        (-4, 0, GENERAL, "illegal-instruction", Verdict.HOPELESS),
        (-11, 0, "nothing known", "crashed", Verdict.UNKNOWN),
        (-7, 0, "nothing known", "crashed", Verdict.UNKNOWN),
        (-6, 0, "nothing known", "crashed", Verdict.UNKNOWN),
        (-6, 0, "  what():  std::bad_alloc", "out-of-host-memory", Verdict.UNKNOWN),
        (134, 0, "nothing known", "crashed", Verdict.UNKNOWN),
        (132, 0, "nothing known", "illegal-instruction", Verdict.HOPELESS),
        (-15, 0, "nothing known", "exited", Verdict.UNKNOWN),
        (0, 0, "nothing known", "exited", Verdict.UNKNOWN),
    ],
)
def test_exit_status_and_log_are_judged_together(
    code: int, kills: int, line: str, cause: str, verdict: Verdict
) -> None:
    found = diagnose("exited", "it ended", exit=Exit(code), lines=["before", line], oom_kills=kills)
    assert (found.cause, found.verdict) == (cause, verdict)
    assert found.summary.startswith("it ended")
    assert found.advice or code == 0


def test_a_crash_says_what_its_signal_means() -> None:
    assert "/dev/shm" in diagnose("exited", "s", exit=Exit(-signal.SIGBUS)).advice


@pytest.mark.parametrize(
    ("rule", "phase", "cause"),
    [("start", "start", "known"), ("start", "run", "exited"), ("run", "start", "exited"), ("run", "run", "known"),
     ("", "start", "known"), ("", "run", "known"), ("start", "", "known"), ("run", "", "known")],
)  # fmt: skip
def test_a_rule_counts_in_its_phase(rule: str, phase: str, cause: str) -> None:
    rules = [Rule("known", "it broke", Verdict.UNKNOWN, "mend it", rule)]
    assert diagnose("exited", "s", lines=["ERROR it broke"], rules=rules, phase=phase).cause == cause


def test_what_a_server_died_of_while_it_served_is_no_cause_of_a_failed_start() -> None:
    """Requests for pictures that cannot be fetched, say, are no hub that is down."""
    lines = ["ERROR ConnectionError: Connection refused", "ERROR 404 Client Error: Not Found"]
    assert diagnose("exited", "s", exit=Exit(1), lines=lines, phase="run").cause == "exited"


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exited with code 0"), (3, "exited with code 3"), (-9, "was killed by SIGKILL"),
     (-signal.SIGSEGV, "was killed by SIGSEGV"), (-200, "was killed by signal 200")],
)  # fmt: skip
def test_an_exit_is_said_in_words(code: int, text: str) -> None:
    assert Exit(code).text() == text


def test_the_text_holds_summary_evidence_advice_last_lines_and_the_log() -> None:
    text = Diagnosis("c", "what happened", Verdict.HOPELESS, "do this", "this line", 1, "/log", ("a", "b")).text()
    for words in ("what happened [c]", "shown by: this line", "what to do: do this", "| a", "| b", "whole log: /log"):
        assert words in text


@given(st.lists(LINES, max_size=50))
def test_the_tail_is_the_end_of_what_was_said(lines: list[str]) -> None:
    tail = diagnose("exited", "s", lines=lines, rules=()).tail
    assert len(tail) <= TAIL_LINES
    assert list(tail) == without_repeats(lines)[-TAIL_LINES:]


@given(st.lists(LINES, max_size=50))
def test_only_what_repeats_is_left_out(lines: list[str]) -> None:
    kept = without_repeats(lines)
    assert len(kept) <= len(lines)
    assert bool(kept) == bool(lines)
    assert all(any(line.startswith(one) or one.startswith(line) for one in kept) for line in set(lines[-1:]))


def test_what_was_said_before_a_thousand_repeats_is_still_seen() -> None:
    lines = ["the engine has died", *(f"12:{n:02} still waiting ({n})" for n in range(1000))]
    assert "the engine has died" in diagnose("no-progress", "s", lines=lines).tail


# Two failures are the same one if nothing but numbers differs.


@given(
    text=st.from_regex(r"[g-w ]{1,20}(\d{1,5}|0x[0-9a-f]{4,8})[g-w ]{1,20}", fullmatch=True),
    number=st.integers(0, 10**6),
    code=st.integers(-15, 255),
)
def test_numbers_make_no_difference(text: str, number: int, code: int) -> None:
    other = re.sub(r"0x[0-9a-f]+|\d+", str(number), text)
    one, two = (diagnose("exited", "s", exit=Exit(code), lines=[line], rules=()) for line in (text, other))
    assert one.signature == two.signature


@pytest.mark.parametrize(
    "other",
    [diagnose("exited", "s", exit=Exit(2), lines=["words"]), diagnose("exited", "s", exit=Exit(1), lines=["others"]),
     diagnose("no-progress", "s", exit=Exit(1), lines=["words"])],
)  # fmt: skip
def test_cause_exit_and_words_do(other: Diagnosis) -> None:
    assert diagnose("exited", "s", exit=Exit(1), lines=["words"]).signature != other.signature
