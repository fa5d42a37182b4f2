"""A command line that no longer fits the installed engine, and models that are not what was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.served import GUARD, HELLO, fake, given_up, healthy, starts

pytestmark = pytest.mark.anyio
EXCERPTS = Path(__file__).parents[1] / "excerpts"
DIES: dict[str, Any] = {"exit_before_bind": True}


@pytest.mark.fault(42, 43)
@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"disable_log_requests": True}, "error: unrecognized arguments: --disable-log-requests"),
        ({"on_term": "nonsense"}, "error: argument --on-term: invalid choice: 'nonsense'"),
        ({"bind_after": "soon"}, "error: argument --bind-after: invalid float value: 'soon'"),
    ],
)
async def test_a_flag_that_the_engine_refuses_is_tried_once_and_its_line_is_shown(
    tmp_path: Path, flags: dict[str, Any], line: str
) -> None:
    server = fake(tmp_path, flags, max_attempts=5)
    with anyio.fail_after(GUARD):
        error = await given_up(server)
    assert error.diagnosis.cause == "unknown-flag"
    assert error.diagnosis.exit_code == 2
    assert line in error.diagnosis.evidence
    assert len(starts(server)) == 1


@pytest.mark.fault(44)
async def test_a_name_that_the_server_does_not_serve_is_found_before_a_request_is_sent(tmp_path: Path) -> None:
    error = await given_up(fake(tmp_path, {"model": "/models/llama"}, model="/models/llama", served_name="llama"))
    assert error.diagnosis.cause == "wrong-model"
    assert "'/models/llama'" in str(error)
    assert "not 'llama'" in str(error)


@pytest.mark.fault(44)
async def test_a_name_that_it_serves_is_what_requests_get_without_saying_it(tmp_path: Path) -> None:
    async with fake(tmp_path, {"model": "llama"}, model="/models/llama", served_name="llama") as server:
        await healthy(server)
        assert (await server.chat(HELLO))["object"] == "fake"


@pytest.mark.fault(45, 95)
@pytest.mark.parametrize(
    ("excerpt", "cause"),
    [
        ("transformers-hub-gone", "missing-model"),
        ("transformers-hub-gated", "bad-credentials"),
        ("transformers-hub-unauth", "bad-credentials"),
        ("transformers-offline", "missing-model"),
        ("transformers-custom-code", "needs-trust-remote-code"),
        ("transformers-unknown-architecture", "unknown-architecture"),
        ("transformers-no-such-path", "missing-model"),
    ],
)
async def test_a_model_that_cannot_be_had_is_named_out_of_a_long_trace_and_tried_once(
    tmp_path: Path, excerpt: str, cause: str
) -> None:
    """Real traces; what comes after them is the noise of an engine that was waiting for it."""
    words = [line for line in (EXCERPTS / f"{excerpt}.log").read_text().splitlines() if line.strip()]
    wrapper = ["Traceback (most recent call last):", "RuntimeError: Engine core initialization failed. See root cause."]
    server = fake(tmp_path, {**DIES, "say_err": [*words, *wrapper]}, max_attempts=5)
    error = await given_up(server)
    assert error.diagnosis.cause == cause
    assert error.diagnosis.evidence in {line.strip() for line in words}
    assert error.diagnosis.advice
    assert len(starts(server)) == 1


@pytest.mark.fault(94)
async def test_a_hub_that_comes_back_costs_attempts_and_no_more(tmp_path: Path) -> None:
    words = [line for line in (EXCERPTS / "transformers-hub-busy.log").read_text().splitlines() if line.strip()]
    down = {**DIES, "say_err": words}
    async with fake(tmp_path, attempts=[down, down, {}], max_attempts=4, backoff_initial=0.02) as server:
        await healthy(server)
    assert len(starts(server)) == 3


@pytest.mark.fault(94)
@pytest.mark.parametrize("here", [False, True])
async def test_a_hub_that_is_down_matters_less_if_the_weights_are_on_this_disk(tmp_path: Path, here: bool) -> None:
    repository = tmp_path / "hf" / "hub" / "models--user--model"
    snapshot = repository / "snapshots" / "abc123"
    if here:
        snapshot.mkdir(parents=True)
        (snapshot / "model.safetensors").write_bytes(b"weights")
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("abc123")
    words = [line for line in (EXCERPTS / "transformers-hub-down.log").read_text().splitlines() if line.strip()]
    settings: dict[str, Any] = {"model": "user/model", "env": {"HF_HOME": str(tmp_path / "hf")}, "max_attempts": 1}
    error = await given_up(fake(tmp_path, {**DIES, "say_err": words}, **settings))
    assert error.diagnosis.cause == "hub-unreachable"
    assert ("HF_HUB_OFFLINE" in error.diagnosis.advice) == here
    assert (str(snapshot) in error.diagnosis.advice) == here
