"""Why a server ended: rules that name a cause, verdicts that decide about another attempt, texts that help."""

from __future__ import annotations

import re
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.diagnosis import COMMON_RULES, TAIL_LINES, Diagnosis, Exit, Rule, Verdict, diagnose, without_repeats

SEEN = {
    "vllm: error: unrecognized arguments: --disable-log-requests": ("unknown-flag", Verdict.HOPELESS),
    "error: invalid argument: --no-such-flag": ("unknown-flag", Verdict.HOPELESS),
    "OSError: [Errno 98] Address already in use": ("port-taken", Verdict.TRANSIENT),
    "error while attempting to bind on address ('127.0.0.1', 8000): address in use": ("port-taken", Verdict.TRANSIENT),
    "requests.exceptions.HTTPError: 401 Client Error: Unauthorized": ("bad-credentials", Verdict.HOPELESS),
    "Cannot access gated repo for url https://hub/m": ("bad-credentials", Verdict.HOPELESS),
    "OSError: x is not a local folder and is not a valid model identifier": ("missing-model", Verdict.HOPELESS),
    "gguf_init_from_file: failed to open GGUF file 'm.gguf'": ("missing-model", Verdict.HOPELESS),
    "OSError: We couldn't connect to 'https://hub' to load this file": ("hub-unreachable", Verdict.TRANSIENT),
    "socket.gaierror: Temporary failure in name resolution": ("hub-unreachable", Verdict.TRANSIENT),
    "ValueError: Free memory on device is less than desired GPU memory utilization": ("memory-held", Verdict.TRANSIENT),
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB": ("out-of-memory", Verdict.UNKNOWN),
    "OSError: [Errno 28] No space left on device": ("disk-full", Verdict.HOPELESS),
    "ModuleNotFoundError: No module named 'vllm'": ("missing-library", Verdict.HOPELESS),
    "sh: 1: exec: no-such-program: not found": ("missing-library", Verdict.HOPELESS),
}
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


@pytest.mark.parametrize("line", ["nothing known", *SEEN])
@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_no_shell_can_run_is_hopeless_whatever_the_log_says(code: int, line: str) -> None:
    found = diagnose("exited", "s", exit=Exit(code), lines=[line])
    assert found.verdict is Verdict.HOPELESS
    assert found.advice


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
    text=st.from_regex(r"[a-z ]{1,20}(\d{1,5}|0x[0-9a-f]{4,8})[a-z ]{1,20}", fullmatch=True),
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
