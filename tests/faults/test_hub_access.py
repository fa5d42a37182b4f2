"""A start needs a remote service although the weights are on this disk (rows 95 and 96 of the faults people met)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.served import fake, given_up, healthy, starts

pytestmark = pytest.mark.anyio
DIES: dict[str, Any] = {"exit_before_bind": True}
EXCERPTS = Path(__file__).parents[1] / "excerpts"


@pytest.mark.fault(95)
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["401 Client Error: Unauthorized for url: https://hub/api/models/m"], id="a refused key"),
        pytest.param((EXCERPTS / "transformers-hub-gated.log").read_text().splitlines(), id="a gated model"),
        pytest.param((EXCERPTS / "transformers-hub-unauth.log").read_text().splitlines(), id="no key at all"),
    ],
)
async def test_row_95_a_hub_that_refuses_the_key_is_asked_once_and_the_key_is_what_is_named(
    tmp_path: Path, words: list[str]
) -> None:
    server = fake(tmp_path, {**DIES, "say_err": [word for word in words if word.strip()]}, max_attempts=5)
    error = await given_up(server)
    assert len(starts(server)) == 1
    assert error.diagnosis.cause in ("bad-credentials", "missing-model")
    assert "HF_TOKEN" in error.diagnosis.advice


@pytest.mark.fault(96)
async def test_row_96_offline_mode_reaches_every_process_of_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set for the server, or where Stoker was started. For the workers of a Ray cluster see the tests with real Ray."""
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    flags = {"child": ["same", "session"]}
    async with fake(tmp_path, flags, env={"HF_HUB_OFFLINE": "1"}) as server:
        await healthy(server)
        process = server.activities.process
        assert process is not None
        environments = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in process.pids()]  # noqa: ASYNC240
    assert len(environments) == 3
    for variables in environments:
        assert {b"HF_HUB_OFFLINE=1", b"TRANSFORMERS_OFFLINE=1"} <= set(variables)
