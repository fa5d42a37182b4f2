"""Readiness as a table: what a server answers, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.adapter import Capabilities
from lifecycle.config import ServerConfig
from lifecycle.host import Answer, NoAnswer
from lifecycle.probing import NotYet, Readiness, Ready, WrongKey, WrongServer, liveness, one_token, readiness

pytestmark = pytest.mark.anyio
LISTED = {"data": [{"id": "m"}]}
GOOD: dict[str, Any] = {
    "/health": 200, "/v1/models": (200, LISTED), "/v1/completions": 200, "/v1/chat/completions": 200
}  # fmt: skip
SILENT = "no answer"


class Told:
    """A prober whose server answers as it is told: a status, a status and a body, or nothing."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def get(self, path: str, timeout: float) -> Answer:
        self.asked.append(path)
        answer = self.answers.get(path, 404)
        if answer == SILENT:
            raise NoAnswer(f"GET {path}: no answer in {timeout:g} s")
        return Answer(*answer) if isinstance(answer, tuple) else Answer(answer, "")

    async def post(self, path: str, payload: Mapping[str, Any], timeout: float) -> Answer:
        assert payload["max_tokens"] == 1
        return await self.get(path, timeout)

    async def listening(self) -> bool:
        return True

    async def aclose(self) -> None: ...


async def ask(answers: Mapping[str, Any], so_far: Readiness | None = None, **settings: Any) -> Readiness:
    config = ServerConfig("x", **{"model": "m", **settings})
    return await readiness(Told({**GOOD, **answers}), Capabilities(), config, so_far)


READY = Ready("m", "/health")
TABLE: list[tuple[dict[str, Any], Readiness | type]] = [
    ({}, READY),
    ({"/health": 204}, READY),
    ({"/health": 503}, NotYet),
    ({"/health": 500}, NotYet),
    ({"/health": 302}, NotYet),
    ({"/health": SILENT}, NotYet),
    ({"/health": 401}, WrongKey(401)),
    ({"/health": 403}, WrongKey(403)),
    ({"/health": 404}, Ready("m", "/v1/models")),
    ({"/v1/models": 401}, WrongKey(401)),
    ({"/v1/models": 404}, WrongServer),
    ({"/v1/models": 503}, NotYet),
    ({"/v1/models": SILENT}, NotYet),
    ({"/v1/models": (200, {"data": []})}, NotYet),
    ({"/v1/models": (200, "<html>")}, NotYet),
    ({"/v1/models": (200, {"data": [{"id": "other"}]})}, WrongServer),
    ({"/v1/models": (200, {"data": [{"id": "other"}, {"id": "m"}]})}, READY),
    ({"/v1/models": (200, {"data": [{"id": "M"}, {"id": "m-2"}]})}, WrongServer),
    ({"/v1/completions": 500}, NotYet),
    ({"/v1/completions": 429}, NotYet),
    ({"/v1/completions": 408}, NotYet),
    ({"/v1/completions": SILENT}, NotYet),
    ({"/v1/completions": 401}, WrongKey(401)),
    ({"/v1/completions": 400}, WrongServer),
    ({"/v1/completions": 404}, READY),
    ({"/v1/completions": 405}, READY),
    ({"/v1/completions": 501}, READY),
    ({"/v1/completions": 404, "/v1/chat/completions": 404}, WrongServer),
    ({"/v1/completions": 404, "/v1/chat/completions": 503}, NotYet),
    ({"/health": 404, "/v1/models": 404}, NotYet),
]


@pytest.mark.fault(46, 48, 49)
@pytest.mark.parametrize(("answers", "expected"), TABLE, ids=[str(answers) for answers, _ in TABLE])
async def test_what_follows_from_an_answer(answers: dict[str, Any], expected: Readiness | type) -> None:
    found = await ask(answers)
    assert isinstance(found, expected) if isinstance(expected, type) else found == expected


@pytest.mark.parametrize("answers", [row for row, expected in TABLE if expected in (NotYet, WrongServer)])
async def test_whoever_is_not_ready_is_told_what_is_missing(answers: dict[str, Any]) -> None:
    found = await ask(answers)
    assert isinstance(found, NotYet | WrongServer)
    status = next(reversed(answers.values()))
    assert (str(status) in found.reason) if isinstance(status, int | str) else found.reason


async def test_both_names_are_said_when_the_model_is_another() -> None:
    found = await ask({"/v1/models": (200, {"data": [{"id": "theirs"}]})}, model="ours")
    assert isinstance(found, WrongServer)
    assert "'theirs'" in found.reason
    assert "'ours'" in found.reason


async def test_the_served_name_is_what_counts_and_with_neither_name_the_server_says_its_own() -> None:
    assert await ask({}, model="/models/m.gguf", served_name="m") == READY
    assert await ask({}, model="", served_name="") == READY


@pytest.mark.fault(49)
async def test_a_path_that_was_found_is_asked_again_and_the_others_are_not() -> None:
    prober = Told({**GOOD, "/health": 404, "/v1/completions": 503})
    first = await readiness(prober, Capabilities(), ServerConfig("x", model="m"))
    assert isinstance(first, NotYet)
    prober.asked.clear()
    await readiness(prober, Capabilities(), ServerConfig("x", model="m"), first)
    assert "/health" not in prober.asked


async def test_a_ready_path_that_is_set_is_the_only_one_and_must_exist() -> None:
    assert await ask({"/ready": 200, "/health": 503}, ready_path="/ready") == Ready("m", "/ready")
    found = await ask({}, ready_path="/healthcheck")
    assert isinstance(found, WrongServer)
    assert "ready_path = '/healthcheck'" in found.reason


async def test_what_a_backend_does_not_have_is_not_asked_for() -> None:
    prober = Told({"/health": 200})
    facts = Capabilities(ready_paths=("/health",), reports_model=False, generates=False)
    assert await readiness(prober, facts, ServerConfig("x", model="m")) == READY
    assert prober.asked == ["/health"]


ANSWERS = st.sampled_from([200, 204, 302, 400, 401, 403, 404, 405, 429, 500, 503, SILENT, (200, LISTED)])


@given(st.fixed_dictionaries(dict.fromkeys(GOOD, ANSWERS)))
async def test_ready_means_that_every_gate_was_passed(answers: dict[str, Any]) -> None:
    found = await ask(answers)
    if isinstance(found, Ready):
        path = "/health" if answers["/health"] != 404 else "/v1/models"
        assert found == Ready("m", path)
        assert answers["/v1/models"] == (200, LISTED)
        token = answers["/v1/completions"]
        token = answers["/v1/chat/completions"] if token in (404, 405) else token
        assert token in (200, 204, (200, LISTED))
    if isinstance(found, WrongKey):
        assert found.status in answers.values()


@pytest.mark.parametrize(("answer", "alive"), [(200, True), (204, True), (503, False), (404, False), (SILENT, False)])
async def test_alive_is_a_good_answer_in_time(answer: Any, alive: bool) -> None:
    assert await liveness(Told({"/health": answer}), "/health", 1) is alive


async def test_a_token_is_had_as_a_completion_or_as_a_chat() -> None:
    assert await one_token(Told(GOOD), "m", 1)
    assert await one_token(Told({"/v1/chat/completions": 200}), "m", 1)
    assert not await one_token(Told({"/v1/completions": 500}), "m", 1)
    with pytest.raises(NoAnswer):
        await one_token(Told({"/v1/completions": SILENT}), "m", 1)
