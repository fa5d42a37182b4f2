"""Startup, readiness and liveness are three questions; here are the last two. Asks a `Prober`, decides, and no more.

Readiness is: the path that means it answers, the model is the one that was asked for, and one token came back. A listed
model is not yet a model that can serve, and an HTTP 200 can be somebody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from lifecycle.adapter import Capabilities
from lifecycle.config import ServerConfig
from lifecycle.host import Answer, NoAnswer, Prober


@dataclass(frozen=True)
class NotYet:
    """Ask again. `reason` is what was missing; `path` the readiness path that has been found, so that the others need
    not be asked again."""

    reason: str
    path: str = ""


@dataclass(frozen=True)
class Ready:
    """It serves: under this model name, and asked at this path."""

    model: str
    path: str


@dataclass(frozen=True)
class WrongServer:
    """Something answers that is not what was asked for. Asking again cannot help."""

    reason: str


@dataclass(frozen=True)
class WrongKey:
    """It is up, and our key is missing or wrong. Asking again cannot help."""

    status: int


Readiness = NotYet | Ready | WrongServer | WrongKey

MODELS = "/v1/models"
REFUSED = (401, 403)
LONGEST_TEXT = 300
"""Characters of a refusal that are passed on to people: a page of HTML says nothing."""


async def readiness(
    prober: Prober,
    capabilities: Capabilities,
    config: ServerConfig,
    so_far: Readiness | None = None,
    asks: Callable[[str], None] = lambda what: None,
) -> Readiness:
    """Ask once whether a server is ready.

    Args:
        so_far: the last answer, if there was one.
        asks: told what is missing now, in words: an answer may take minutes.
    """
    known = so_far.path if isinstance(so_far, NotYet) else ""
    paths = (config.ready_path,) if config.ready_path else (known,) if known else capabilities.ready_paths
    try:
        asks(f"no answer yet at {' or '.join(paths)}")
        path, answer = await _first_known(prober, paths, config.probe_timeout)
        if answer.status in REFUSED:
            return WrongKey(answer.status)
        if answer.status == 404 and config.ready_path:
            return WrongServer(f"ready_path = {config.ready_path!r} is not known to the server (HTTP 404)")
        if not is_good(answer):
            return NotYet(f"{path} says {words(answer)}")
        model = await served_model(prober, capabilities, config, path)
        if not isinstance(model, str):
            return model
        asks("no first token yet")
        return await _generates(prober, capabilities, config, path, model)
    except NoAnswer as error:
        return NotYet(str(error), known)


async def _first_known(prober: Prober, paths: Iterable[str], timeout: float) -> tuple[str, Answer]:
    """The first of `paths` that is not 404, and its answer; the last one if all are."""
    path, answer = "", Answer(404, "")
    for path in paths:
        answer = await prober.get(path, timeout)
        if answer.status != 404:
            break
    return path, answer


async def served_model(
    prober: Prober, capabilities: Capabilities, config: ServerConfig, path: str = ""
) -> str | NotYet | WrongServer | WrongKey:
    """The name under which the server serves our model."""
    wanted = config.served_name or config.model
    if not capabilities.reports_model:
        return wanted
    answer = await prober.get(MODELS, config.probe_timeout)
    if answer.status in REFUSED:
        return WrongKey(answer.status)
    if answer.status == 404:
        return WrongServer(f"{MODELS} is not known to the server: it is not OpenAI-compatible (HTTP 404)")
    if not is_good(answer):
        return NotYet(f"{MODELS} says {answer.status}", path)
    names = _names(answer.body)
    if not names:
        return NotYet(f"{MODELS} lists no model", path)
    if not wanted:
        return names[0]
    if wanted in names:
        return wanted
    return WrongServer(f"the server serves {', '.join(map(repr, names))}, not {wanted!r}")


def _names(body: Any) -> list[str]:
    models = body.get("data") if isinstance(body, dict) else None
    return [str(model["id"]) for model in models or () if isinstance(model, dict) and "id" in model]


async def _generates(
    prober: Prober, capabilities: Capabilities, config: ServerConfig, path: str, model: str
) -> Readiness:
    if not capabilities.generates:
        return Ready(model, path)
    answer = await _generate(prober, model, config.warmup_timeout)
    if answer.status in REFUSED:
        return WrongKey(answer.status)
    if is_good(answer):
        return Ready(model, path)
    if answer.status == 404:
        return WrongServer("the server knows neither /v1/completions nor /v1/chat/completions (HTTP 404)")
    if 400 <= answer.status < 500 and answer.status not in (408, 425, 429):
        return WrongServer(f"the server refuses a request for one token (HTTP {answer.status}): {answer.body}")
    return NotYet(f"a request for one token got {answer.status}", path)


async def _generate(prober: Prober, model: str, timeout: float) -> Answer:
    """Ask for one token, as a completion or, where there are none, as a chat."""
    limits = {"model": model, "max_tokens": 1, "temperature": 0}
    answer = await prober.post("/v1/completions", {**limits, "prompt": "Hello"}, timeout)
    if answer.status in (404, 405, 501):
        chat = {**limits, "messages": [{"role": "user", "content": "Hello"}]}
        answer = await prober.post("/v1/chat/completions", chat, timeout)
    return answer


async def one_token(prober: Prober, model: str, timeout: float) -> bool:
    """Whether one token can be had within `timeout` seconds. Raises `NoAnswer` if nothing at all comes back."""
    return is_good(await _generate(prober, model, timeout))


async def liveness(prober: Prober, path: str, timeout: float) -> bool:
    """Whether `path` answers well within `timeout` seconds."""
    try:
        return is_good(await prober.get(path, timeout))
    except NoAnswer:
        return False


def words(answer: Answer) -> str:
    """An answer for people: its status, and its text if that is short."""
    text = answer.body.strip() if isinstance(answer.body, str) else ""
    return f"{answer.status}: {text}" if 0 < len(text) <= LONGEST_TEXT else str(answer.status)


def is_good(answer: Answer) -> bool:
    """Whether an answer is a success (2xx)."""
    return 200 <= answer.status < 300
