"""The requests of a job: so many at once, counted, each record's with its own parameters and seeds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio

from lifecycle.batch.adaptive import Adaptive
from lifecycle.batch.records import Ask, Defaults, asked_for
from lifecycle.batch.slots import Slots
from lifecycle.batch.summary import Tally, is_cut, tokens_of

Send = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""(path, payload) to an answer: `Server.request`."""
SEEDS = 1 << 31
"""Seeds are below this: engines take a C int or more."""


class Asker:
    """Sends the requests of a job, no more at once than `slots` lets in."""

    def __init__(self, send: Send, slots: Slots, tally: Tally, adaptive: Adaptive | None = None) -> None:
        self._send = send
        self._slots = slots
        self._tally = tally
        self._adaptive = adaptive

    async def ask(self, path: str, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """One answer. Raises what the server's client raises."""
        tally = self._tally
        async with self._slots:
            began = anyio.current_time()
            tally.request_began()
            try:
                answer = await self._send(path, payload)
            except BaseException:
                tally.request_failed()
                self._learn(began, 0, ok=False)
                raise
            prompt, completion = tokens_of(answer.get("usage"))
            tally.request_answered(anyio.current_time() - began, prompt, completion, cut=is_cut(answer))
            self._learn(began, completion, ok=True)
            return answer

    def _learn(self, began: float, tokens: int, *, ok: bool) -> None:
        if self._adaptive is not None:
            now = anyio.current_time()
            self._adaptive.finished(now, now - began, tokens, self._slots.in_use, ok)
            self._slots.limit = self._adaptive.limit


class Generate:
    """What a rollout function asks with: `await generate("prompt", max_tokens=20)`. Requests of all records share the
    job's limit of requests in flight; each waits for the server, and is repeated, as every request is.

    Attributes:
        rollout: 0 for the first rollout of the record, 1 for the second, ...
        seed: a number that no other rollout of the job has; sent with each request that names none, if the job has a
            seed or makes several rollouts.
    """

    def __init__(self, asker: Asker, defaults: Defaults, rollout: int, seed: int | None) -> None:
        self._asker = asker
        self._defaults = defaults
        self.rollout = rollout
        self.seed = seed

    async def __call__(self, ask: Ask, *, path: str = "", **parameters: Any) -> dict[str, Any]:
        """Send a prompt, messages, or a whole payload; OpenAI's answer.

        Args:
            ask: a text (a completion; a chat if the job has a system message), a list of messages, or a payload.
            path: default: /v1/chat/completions if there are messages, else /v1/completions.
            parameters: such as max_tokens; they win over the job's.

        Raises `RequestError` and its kinds, as `Server.request` does, and `ValueError` for an `ask` that is nothing of
        these. Whatever a rollout function lets through becomes the error of its record.
        """
        own, payload = asked_for(ask, self._defaults)
        payload.update(parameters)
        if self.seed is not None:
            payload.setdefault("seed", self.seed)
        return dict(await self._asker.ask(path or own, payload))


def seed_of(given: Any, number: int, rollout: int, rollouts: int) -> int | None:
    """The seed of one rollout of a record: its own, the same in every run. None: none need be sent.

    Args:
        given: the job's or the record's seed, if it has one: the first rollout gets it as it is.
        number: of the record in the input.
    """
    if rollouts == 1:
        return given if isinstance(given, int) else None
    base = given if isinstance(given, int) else number * rollouts
    return (base + rollout) % SEEDS
