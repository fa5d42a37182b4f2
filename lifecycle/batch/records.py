"""One record of the input becomes a request; its answers become a line of output. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import NAMESPACE_URL, uuid5

import msgspec

from lifecycle.decoding import decode
from lifecycle.errors import InputError

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
PARAMS = "params"
"""The field of a record that holds its own generation parameters; they win over those of the job."""


class Prompts(Protocol):
    """Makes prompts of records: `lifecycle.batch.template.Template`."""

    def render(self, record: Mapping[str, Any], where: str = ...) -> str: ...


@dataclass(frozen=True)
class Defaults:
    """What a job asks for unless a record says otherwise."""

    model: str = ""
    system: str = ""
    """Put before the messages that have no system message of their own; turns a prompt into a chat."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Such as max_tokens, temperature, seed."""
    template: Prompts | None = None
    """Makes the prompt of every record; what else a record may hold that could be one does not count then."""
    bare: bool = False
    """Records are what a function makes its own requests of: any JSON object will do."""


@dataclass(frozen=True)
class Request:
    """A line that can be sent."""

    key: str
    """`custom_id`, or `id`, or where the record stands: line-N, row-N, FILE:line-N."""
    line: int
    """1 for the first line of its file."""
    path: str
    payload: Mapping[str, Any]
    record: Mapping[str, Any]
    """The line as it was."""
    batch: bool
    """An OpenAI batch line: its output has that format too."""


@dataclass(frozen=True)
class Malformed:
    """A line that cannot be sent, and why."""

    key: str
    line: int
    why: str
    record: Mapping[str, Any] = field(default_factory=dict)
    batch: bool = False


def parse(line: bytes, number: int, defaults: Defaults, where: str = "") -> Request | Malformed:
    """Turn line `number` of its file into a request. Never raises: what cannot be one is `Malformed`.

    `where` is how people find it, such as "part-3.jsonl, line 7"; default: "line N".
    """
    where = where or f"line {number}"
    key = where.replace(", ", ":").replace(" ", "-")
    try:
        record = decode(line)
    except msgspec.MsgspecError as error:
        return Malformed(key, number, f"{where} is not JSON: {error}")
    if not isinstance(record, dict):
        return Malformed(key, number, f"{where} is not a JSON object")
    plain = defaults.bare or defaults.template is not None
    batch = "custom_id" in record and not plain
    name = "custom_id" if batch else "id"
    own = record.get(name)
    if own is not None:
        if not isinstance(own, str | int) or isinstance(own, bool) or own == "":
            rest = {field: value for field, value in record.items() if field != name}
            return Malformed(key, number, f"{where}: {name!r} is neither a text nor a whole number", rest)
        key = str(own)
    if defaults.bare:
        return Request(key, number, "", {}, record, False)
    try:
        path, payload = _batch_request(record) if batch else _request(record, defaults, where)
    except ValueError as error:
        return Malformed(key, number, f"{where}: {error}", record, batch)
    except InputError as error:
        return Malformed(key, number, str(error), record, batch)
    if defaults.model:
        payload = {"model": defaults.model, **payload}
    return Request(key, number, path, payload, record, batch)


def _batch_request(record: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    method, url, body = record.get("method", "POST"), record.get("url"), record.get("body")
    if method != "POST":
        raise ValueError(f"'method' is {method!r}; only POST can be sent")
    if not isinstance(url, str) or not url.startswith("/"):
        raise ValueError(f"'url' is {url!r}; it must be a path such as {CHAT}")
    if not isinstance(body, dict):
        raise ValueError("'body' is not a JSON object")
    if body.get("stream"):
        raise ValueError("'body' asks for a stream, which a batch cannot write down")
    return url, body


def _request(record: Mapping[str, Any], defaults: Defaults, where: str) -> tuple[str, Mapping[str, Any]]:
    params = record.get(PARAMS, {})
    if not isinstance(params, dict):
        raise ValueError(f"{PARAMS!r} is not a JSON object")
    parameters = {**defaults.parameters, **params}
    if parameters.get("stream"):
        raise ValueError(f"{PARAMS!r} asks for a stream, which a line of output cannot hold")
    if defaults.template is not None:
        return _prompted(defaults.template.render(record, where), defaults, parameters)
    if "messages" in record:
        messages = record["messages"]
        if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
            raise ValueError("'messages' is not a list of JSON objects")
        return CHAT, {**parameters, "messages": _with_system(messages, defaults.system)}
    if "prompt" not in record:
        raise ValueError("it has none of 'prompt', 'messages' and 'custom_id'")
    prompt = record["prompt"]
    if not isinstance(prompt, str):
        raise ValueError("'prompt' is not a text")
    return _prompted(prompt, defaults, parameters)


def _prompted(prompt: str, defaults: Defaults, parameters: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if defaults.system:
        return CHAT, {**parameters, "messages": _with_system([{"role": "user", "content": prompt}], defaults.system)}
    return COMPLETIONS, {**parameters, "prompt": prompt}


Ask = str | Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""A prompt, messages, or a whole payload."""


def asked_for(ask: Ask, defaults: Defaults) -> tuple[str, dict[str, Any]]:
    """(path, payload) of what a function asks for: a prompt, messages, or a whole payload.

    Raises `ValueError` if it is none of these.
    """
    if isinstance(ask, str):
        path, payload = _prompted(ask, defaults, defaults.parameters)
    elif isinstance(ask, Mapping):
        path, payload = CHAT if "messages" in ask else COMPLETIONS, {**defaults.parameters, **ask}
    elif ask and all(isinstance(each, Mapping) for each in ask):
        path, payload = CHAT, {**defaults.parameters, "messages": _with_system(list(map(dict, ask)), defaults.system)}
    else:
        raise ValueError(f"{ask!r} is neither a prompt, nor messages, nor a payload")
    return path, {"model": defaults.model, **payload} if defaults.model else dict(payload)


def _with_system(messages: list[dict[str, Any]], system: str) -> list[dict[str, Any]]:
    if not system or messages[0].get("role") in ("system", "developer"):
        return messages
    return [{"role": "system", "content": system}, *messages]


def answered(request: Request, *answers: Mapping[str, Any]) -> dict[str, Any]:
    """The line of output for its answers: one for each rollout. An answer of another shape than OpenAI's becomes an
    error that shows it."""
    if request.batch:
        return _batch_line(request.key, 200, answers[0], None)
    try:
        found = [generation for answer in answers for generation in generations(answer)]
    except OddAnswer as error:
        return refused(request, str(error), body=error.body)
    return {**_without(request.record, "error"), "id": _id(request), "generations": found}


class OddAnswer(ValueError):
    """An answer has not the shape of OpenAI's. `body` is the beginning of it."""

    def __init__(self, why: str, body: str) -> None:
        super().__init__(why)
        self.body = body


def generations(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The texts of an answer. Raises `OddAnswer`."""
    try:
        texts = [_generation(choice) for choice in answer["choices"]]
        if not texts:
            raise ValueError("it has no choices")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"the answer has not the shape of a completion: {error!r}"
        raise OddAnswer(why, str(answer)[:500]) from None
    usage = answer.get("usage")
    # `usage` is the whole answer's: with several choices it stands once, with the first.
    texts[0]["usage"] = usage if isinstance(usage, dict) else None
    return texts


def resulted(request: Request, results: Sequence[Any]) -> dict[str, Any]:
    """The line of output for what a function made of a record: one result for each rollout."""
    return {**_without(request.record, "error"), "id": _id(request), "results": list(results)}


def _generation(choice: Mapping[str, Any]) -> dict[str, Any]:
    message = choice.get("message")
    said: Mapping[str, Any] = choice if message is None else message
    text = said.get("text" if message is None else "content")
    reasoning = said.get("reasoning_content") or said.get("reasoning")
    return {
        "text": "" if text is None else str(text),
        "reasoning": reasoning,
        "finish_reason": choice.get("finish_reason"),
        "usage": None,
    }


def refused(
    line: Request | Malformed, why: str, *, status: int | None = None, body: str = "", kind: str = "request"
) -> dict[str, Any]:
    """The line of output for a line that has no answer and never will."""
    error: dict[str, Any] = {"kind": kind, "message": why, "line": line.line}
    if status is not None:
        error["status"] = status
    if body:
        error["body"] = body
    if line.batch:
        content = _decoded(body)
        return _batch_line(line.key, status, content, {"code": kind, "message": why, "line": line.line})
    return {**_without(line.record, "generations"), "id": _id(line), "error": error}


def _without(record: Mapping[str, Any], field: str) -> dict[str, Any]:
    """A record that was the output of an earlier job must not keep that job's result beside this one's."""
    return {name: value for name, value in record.items() if name != field}


def malformed(line: Malformed) -> dict[str, Any]:
    """The line of output for a malformed line."""
    return refused(line, line.why, kind="malformed")


def _batch_line(
    key: str, status: int | None, body: Mapping[str, Any] | str | None, error: Mapping[str, Any] | None
) -> dict[str, Any]:
    """OpenAI's batch output (platform.openai.com/docs/guides/batch): made from the key, so it is the same each time."""
    response = None if status is None else {"status_code": status, "request_id": _stable(f"req:{key}"), "body": body}
    return {"id": f"batch_req_{_stable(key)}", "custom_id": key, "response": response, "error": error}


def _stable(text: str) -> str:
    return uuid5(NAMESPACE_URL, text).hex


def _decoded(body: str) -> Mapping[str, Any] | str | None:
    try:
        decoded: Mapping[str, Any] = decode(body)
    except msgspec.MsgspecError:
        return body or None
    return decoded


def _id(line: Request | Malformed) -> Any:
    """The record's own id as it was, or the key that was made for it."""
    own = line.record.get("id")
    return own if str(own) == line.key else line.key
