"""Which lines of a log may name a cause: the engine's own errors, and never what its users wrote."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.diagnosis import Exit, diagnose
from lifecycle.evidence import Level, evidence, read

TRIGGERS = (
    "CUDA out of memory",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "OSError: [Errno 28] No space left on device",
    "ModuleNotFoundError: No module named 'torch'",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356",
    "_pickle.UnpicklingError: pickle data was truncated",
    "EngineCore encountered a fatal error.",
    "Fatal Python error: Illegal instruction",
)
VLLM = "(APIServer pid=42) INFO 12-01 14:12:19 [logger.py:39] "
FAILED = "(APIServer pid=42) ERROR 12-01 14:12:19 [serving.py:88] "
ACCESS = "(APIServer pid=42) INFO:     127.0.0.1:51234 - \"POST /v1/chat/completions HTTP/1.1\" 200 OK"
TRACE = ["Traceback (most recent call last):", '  File "engine.py", line 7, in step', "    run()"]


def cause(*lines: str, code: int = 1, quotes: tuple[str, ...] = ()) -> str:
    return diagnose("exited", "s", exit=Exit(code), lines=lines, phase="run", quotes=quotes).cause


QUOTED = {
    "a record of a request": [f"{VLLM}Received request 7: prompt: '%s', params: SamplingParams(n=1)"],
    "a record of many lines": [f"{VLLM}Received request 7: prompt: What is this?", f"{VLLM}%s", f"{VLLM}Thank you."],
    "a prompt printed raw": ["request 7: please explain", "%s", "thank you"],
    "a prompt printed raw behind a record": ["INFO:     request: please explain", "%s"],
    "a pasted traceback": ["prompt: please explain", *TRACE, "%s", ACCESS],
    "a pasted log": ["prompt: please explain", "%s", *TRACE, "%s", "and what to do?", "INFO: request 8"],
    "a JSON body": [json.dumps({"messages": [{"role": "user", "content": "%s"}], "max_tokens": 5})],
    "a JSON body over several lines": ["{", '  "prompt": "%s"', "}"],
    "a JSON log": [json.dumps({"level": "INFO", "message": "%s"})],
    "a JSON log of an error about it": [json.dumps({"level": "ERROR", "message": "bad prompt '%s'"})],
    "an access log": [f"{ACCESS[:-8].replace('/v1/chat/completions', '/v1/x?q=%s')} 404 Not Found"],
    "a warning": ["WARNING 12-01 14:12:19 [x.py:1] %s", "2026-12-01 14:12:19,123 - engine - WARNING - %s"],
    "an error about a prompt": [f"{FAILED}Error in preprocessing prompt inputs: '%s'"],
    "an error that quotes": ["ERROR:root:cannot parse '%s'", "ERROR ValueError: prompt '%s' is too long"],
    "the traceback of one request": ["ERROR:    Exception in ASGI application", *TRACE, "%s"],
    "the same, each line of it with a prefix": [
        f"{FAILED}Error in preprocessing prompt inputs", *(f"{FAILED}{line}" for line in TRACE), f"{FAILED}%s"
    ],
    "SGLang's record of a request": ["[2026-12-01 14:50:46] Receive: obj=GenerateReqInfo(text='%s')"],
}  # fmt: skip


@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.parametrize("vehicle", QUOTED.values(), ids=QUOTED)
@pytest.mark.parametrize("code", [0, 1, -9])
def test_what_a_user_wrote_names_no_cause(vehicle: list[str], trigger: str, code: int) -> None:
    lines = [line.replace("%s", trigger) for line in vehicle]
    assert cause(*lines, code=code) == "exited"
    assert cause("INFO ready", *lines, "INFO still serving", code=code) == "exited"


@given(st.lists(st.sampled_from(TRIGGERS) | st.text(max_size=40), max_size=5), st.sampled_from(["'", '"', "`"]))
def test_no_prompt_in_quotes_names_a_cause(words: list[str], quote: str) -> None:
    text = " ".join(words).replace(quote, "").replace("\n", " ")
    assert cause(f"{FAILED}request failed: {quote}{text}{quote}", f"{VLLM}prompt: {quote}{text}{quote}") == "exited"


OWN = {
    "last words": [ACCESS, *TRACE, TRIGGERS[1]],
    "vLLM's block": [
        f"(EngineCore pid=7) ERROR 12-01 14:12:19 [core.py:843] {line}"
        for line in ("EngineCore encountered a fatal error.", *TRACE, TRIGGERS[1])
    ] + [ACCESS, f"{VLLM}Shutting down"],
    "a child's traceback that vLLM marks": [f"(Worker pid=9) {line}" for line in (*TRACE, TRIGGERS[1])] + [ACCESS],
    "SGLang's scheduler": [
        "[2026-12-01 14:50:46 TP0] Scheduler hit an exception: Traceback (most recent call last):", *TRACE[1:],
        TRIGGERS[1], ACCESS, "[2026-12-01 14:50:46] SIGQUIT received. signum=None, frame=None.",
    ],
    "torch's C++ parts": ["[rank0]:[E1201 14:12:19.123 x.cpp:632] CUDA out of memory"],
    "a JSON log": [json.dumps({"level": "error", "message": "CUDA out of memory"})],
    "a wrapper after it": [
        "ERROR 12-01 14:12:19 [core.py:1] torch.OutOfMemoryError: CUDA out of memory.", *TRACE,
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ],
}  # fmt: skip
LAST_WORDS = {
    "llama.cpp": ["CUDA error: out of memory", "  current device: 0, in function alloc at ggml-cuda.cu:1"],
    "C++": ["terminate called after throwing an instance of 'std::bad_alloc'", "  what():  std::bad_alloc"],
}


@pytest.mark.parametrize("lines", OWN.values(), ids=OWN)
def test_the_engine_s_own_error_names_the_cause(lines: list[str]) -> None:
    assert cause("INFO ready", *lines) == "out-of-memory"


@pytest.mark.parametrize("lines", LAST_WORDS.values(), ids=LAST_WORDS)
def test_last_words_count_if_the_process_has_crashed(lines: list[str]) -> None:
    assert cause("INFO ready", *lines, code=-6) in ("out-of-memory", "out-of-host-memory")
    assert cause("INFO ready", *lines, code=134) in ("out-of-memory", "out-of-host-memory")
    assert cause("INFO ready", *lines, code=1) == "exited"
    assert cause("INFO ready", *lines, ACCESS, code=-6) == "crashed"


def test_an_error_of_one_request_hides_no_later_one_of_the_engine() -> None:
    assert cause("ERROR:    Exception in ASGI application", *TRACE, "ValueError: no", *OWN["last words"]) == (
        "out-of-memory"
    )


def test_a_line_that_the_backend_knows_as_a_quote_never_counts() -> None:
    line = "ERROR CUDA out of memory"
    assert cause(line) == "out-of-memory"
    assert cause(line, quotes=(r"^ERROR",)) == "exited"
    assert diagnose("exited", "s", lines=[line], phase="start", quotes=(r"^ERROR",)).cause == "exited"


def test_before_it_was_ready_a_pattern_may_be_anywhere_but_in_a_record_below_error() -> None:
    assert diagnose("exited", "s", lines=["worker 3 says: CUDA out of memory"], phase="start").cause == "out-of-memory"
    for line in ("INFO trying again after CUDA out of memory", "WARNING 12-01 14:12:19 [x.py:1] CUDA out of memory"):
        assert diagnose("exited", "s", lines=[line], phase="start").cause == "exited"


@pytest.mark.parametrize(
    ("line", "message", "level"),
    [
        ("(EngineCore_DP0 pid=123) ERROR 12-01 14:12:19 [core.py:843] it broke", "it broke", Level.ERROR),
        ("INFO 12-01 14:12:19 [core.py:843] well", "well", Level.ORDINARY),
        ("[2026-12-01 14:50:46 DP0 TP1] well", "well", Level.UNTOLD),
        ("INFO:     Started server process [7]", "Started server process [7]", Level.ORDINARY),
        ("ERROR:root:it broke", "it broke", Level.ERROR),
        ("2026-12-01 14:12:19,123 - engine.core - ERROR - it broke", "it broke", Level.ERROR),
        ("2026-12-01T14:12:19.123Z CRITICAL it broke", "it broke", Level.ERROR),
        ("0.00.123.456 E srv  load_model: it broke", "srv  load_model: it broke", Level.ERROR),
        ("0.00.123.456 I srv  load_model: well", "srv  load_model: well", Level.ORDINARY),
        ("[W1201 14:12:19.123456789 socket.cpp:460] [c10d] well", "[c10d] well", Level.ORDINARY),
        ("[rank0]: Traceback (most recent call last):", "Traceback (most recent call last):", Level.UNTOLD),
        ("INFORMATION is no level", "INFORMATION is no level", Level.UNTOLD),
        ("just words", "just words", Level.UNTOLD),
        ("", "", Level.UNTOLD),
    ],
)
def test_what_loggers_put_in_front_is_taken_off(line: str, message: str, level: Level) -> None:
    parts = read(line)
    assert (parts.message, parts.level) == (message, level)


@given(st.lists(st.text(max_size=80) | st.sampled_from(TRIGGERS) | st.sampled_from(TRACE), max_size=20), st.booleans())
def test_evidence_is_lines_of_the_log_in_their_order(lines: list[str], serving: bool) -> None:
    found = [one.text for one in evidence(lines, serving=serving)]
    rest = iter(lines)
    assert all(any(line == text for line in rest) for text in found)
