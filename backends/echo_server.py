"""The echo server itself: a process of its own, `python -m backends.echo_server --port 8000`.

OpenAI's HTTP for completions and chat completions, streamed or not. On SIGTERM it drains: it refuses new requests with
503, finishes those in flight, and exits with 0. A second SIGTERM ends it at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any, NoReturn

from aiohttp import web

from backends.echo_text import answer, count_tokens

KEY_VARIABLE = "STOKER_API_KEY"
LARGEST_BODY = 256 * 1024 * 1024
LARGEST_N = 128
DEFAULT_COMPLETION_TOKENS = 16
"""`max_tokens` of /v1/completions if a request gives none: OpenAI's API reference."""
LOADING_STEPS = 5
BACKLOG = 4096
"""Connections that may wait to be accepted; the kernel caps it at net.core.somaxconn (4096 by default on Linux)."""


@dataclass(eq=False)
class Refusal(Exception):
    """An answer that is an OpenAI error object."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after: int | None = None

    def response(self) -> web.Response:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return web.json_response({"error": error}, status=self.status, headers=headers)


@dataclass(frozen=True)
class Choice:
    """One answer to one prompt, complete before it is sent."""

    tokens: list[str]
    reason: str


@dataclass(frozen=True)
class Job:
    """A request that has been understood."""

    chat: bool
    choices: list[Choice]
    usage: dict[str, int]
    stream: bool
    include_usage: bool


class Echo:
    """The state of a server: how many requests came, how many are in flight, whether it drains."""

    def __init__(self, args: argparse.Namespace, key: str | None) -> None:
        self.args = args
        self.key = key
        self.seen = 0
        self.in_flight = 0
        self.answered = 0
        self.tokens = 0
        self.seconds_spent = 0.0
        self.draining = False
        self.done = asyncio.Event()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=LARGEST_BODY, middlewares=[self.guard])
        app.router.add_get("/health", self.health)
        app.router.add_get("/load", self.load)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/completions", self.generate)
        app.router.add_post("/v1/chat/completions", self.generate)
        return app

    @web.middleware
    async def guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            if request.path != "/health" and not self.authorised(request):
                raise Refusal(401, "the key is missing or wrong", "authentication_error", code="invalid_api_key")
            return await handler(request)
        except Refusal as refusal:
            return refusal.response()
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return Refusal(error.status, f"{request.method} {request.path}: {error.reason}").response()

    def authorised(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return self.key is None or compare_digest(given, f"Bearer {self.key}".encode())

    async def health(self, request: web.Request) -> web.Response:
        if self.draining:
            raise Refusal(503, "the server is draining", "service_unavailable")
        return web.json_response({"status": "ok", "in_flight": self.in_flight})

    async def load(self, request: web.Request) -> web.Response:
        """What it works on, and what it has done; `clock` moves as long as it is not stuck."""
        told = {"running": self.in_flight, "answered": self.answered, "tokens": self.tokens}
        return web.json_response({**told, "seconds": self.seconds_spent, "clock": time.monotonic()})

    async def models(self, request: web.Request) -> web.Response:
        model = {"id": self.args.model, "object": "model", "created": 0, "owned_by": "stoker"}
        return web.json_response({"object": "list", "data": [model]})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        if self.draining:
            raise Refusal(503, "the server is draining", "service_unavailable", retry_after=1)
        args = self.args
        self.seen += 1
        number = self.seen
        if number == args.crash_after:
            say(f"crash_after: killing myself at request {number}")
            os.kill(os.getpid(), signal.SIGKILL)
        if args.overload_at and self.in_flight >= args.overload_at:
            raise Refusal(503, f"more than {args.overload_at} requests at once", "service_unavailable", retry_after=1)
        if int(number * args.fail_rate) > int((number - 1) * args.fail_rate):
            raise Refusal(500, f"fail_rate: request {number} was chosen to fail", "server_error")
        self.in_flight += 1
        began = time.monotonic()
        try:
            job = understand(await read_json(request), args.model, chat=request.path.endswith("chat/completions"))
            head = {"id": f"echo-{number}", "created": int(time.time()), "model": args.model}
            answer: web.StreamResponse
            if job.stream:
                answer = await self.stream(request, job, head)
            else:
                await asyncio.sleep(args.latency + self.seconds(max(len(choice.tokens) for choice in job.choices)))
                answer = web.json_response(whole(job, head))
            self.answered += 1
            self.tokens += sum(len(choice.tokens) for choice in job.choices)
            self.seconds_spent += time.monotonic() - began
            return answer
        finally:
            self.in_flight -= 1
            if self.draining and not self.in_flight:
                self.done.set()

    def seconds(self, tokens: int) -> float:
        """How long `tokens` take after the first of them may be sent."""
        return tokens / self.args.token_rate if self.args.token_rate else 0.0

    async def stream(self, request: web.Request, job: Job, head: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        async for part in self.parts(job, head):
            await response.write(part)
        await response.write_eof()
        return response

    async def parts(self, job: Job, head: dict[str, Any]) -> AsyncIterator[bytes]:
        """The events of a streamed answer, each when it is due; all at once if there is no token rate."""
        began = asyncio.get_running_loop().time() + self.args.latency
        await asyncio.sleep(self.args.latency)
        waiting = b""
        for step, chunks in enumerate(steps(job, head)):
            waiting += b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
            if self.args.token_rate:
                yield waiting
                waiting = b""
                await asyncio.sleep(began + self.seconds(step + 1) - asyncio.get_running_loop().time())
        yield waiting + b"data: [DONE]\n\n"

    def drain(self) -> None:
        """SIGTERM: take nothing new, end when nothing is left. The second one does not wait."""
        if self.draining:
            say("phase: ended by a second signal")
            os._exit(1)
        self.draining = True
        say(f"phase: draining {self.in_flight} in flight")
        if not self.in_flight:
            self.done.set()


async def read_json(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refusal(400, "the body is not a JSON object")
    return body


def understand(body: dict[str, Any], model: str, *, chat: bool) -> Job:
    """Check a request and make its answers. Raises `Refusal`."""
    asked = body.get("model", model)
    if asked != model:
        raise Refusal(404, f"the model {asked!r} does not exist; this one does: {model!r}", "not_found_error",
                      "model", "model_not_found")  # fmt: skip
    limit = body.get("max_completion_tokens") if chat else None
    limit = body.get("max_tokens") if limit is None else limit
    if limit is None and not chat:
        limit = DEFAULT_COMPLETION_TOKENS
    if limit is not None and (not is_whole(limit) or limit < 1):
        raise Refusal(400, f"max_tokens is {limit!r}, not a whole number from 1", param="max_tokens")
    n = 1 if body.get("n") is None else body["n"]
    if not is_whole(n) or not 1 <= n <= LARGEST_N:
        raise Refusal(400, f"n is {n!r}, not a whole number from 1 to {LARGEST_N}", param="n")
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) for text in stop):
        raise Refusal(400, "stop is neither a string nor a list of strings", param="stop")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise Refusal(400, "stream_options is not an object", param="stream_options")
    prompts = [chat_prompt(body.get("messages"))] if chat else completion_prompts(body.get("prompt"))
    sampling = {key: body.get(key) for key in ("seed", "temperature", "top_p")}
    choices = []
    for prompt in prompts:
        for index in range(n):
            key = json.dumps([sampling, index], sort_keys=True)
            ignore_eos = bool(body.get("ignore_eos")) and limit is not None
            choices.append(Choice(*answer(prompt, key=key, limit=limit, ignore_eos=ignore_eos, stop=stop)))
    asked_for = sum(count_tokens(prompt) for prompt in prompts)
    made = sum(len(choice.tokens) for choice in choices)
    usage = {"prompt_tokens": asked_for, "completion_tokens": made, "total_tokens": asked_for + made}
    return Job(chat, choices, usage, bool(body.get("stream")), bool(options.get("include_usage")))


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def chat_prompt(messages: Any) -> str:
    """All messages as one prompt. Raises `Refusal` if they are not messages."""
    if not isinstance(messages, list) or not messages:
        raise Refusal(400, "messages is not a list of at least one message", param="messages")
    return "\n".join(message_text(message) for message in messages)


def message_text(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Refusal(400, "a message is not an object with a role and a content", param="messages")
    if isinstance(content, list):
        parts = [part.get("text", "") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(content, str):
        raise Refusal(400, "the content of a message is neither a string nor a list of parts", param="messages")
    return content


def completion_prompts(prompt: Any) -> list[str]:
    """A string, a list of strings, a list of token ids, or a list of such lists. Raises `Refusal` for anything else."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(part, str) for part in prompt):
            return prompt
        if all(is_whole(part) for part in prompt):
            return [" ".join(map(str, prompt))]
        if all(isinstance(part, list) and part and all(map(is_whole, part)) for part in prompt):
            return [" ".join(map(str, part)) for part in prompt]
    raise Refusal(400, "prompt is neither a string nor a list of strings nor of token ids", param="prompt")


def whole(job: Job, head: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request that is not streamed."""
    choices = []
    for index, choice in enumerate(job.choices):
        text = "".join(choice.tokens)
        said = {"message": {"role": "assistant", "content": text}} if job.chat else {"text": text}
        choices.append({"index": index, **said, "logprobs": None, "finish_reason": choice.reason})
    kind = "chat.completion" if job.chat else "text_completion"
    return {**head, "object": kind, "choices": choices, "usage": job.usage}


def steps(job: Job, head: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The chunks of a streamed answer, by the token that each waits for."""
    kind = {**head, "object": "chat.completion.chunk" if job.chat else "text_completion"}
    longest = max(len(choice.tokens) for choice in job.choices)
    found: list[list[dict[str, Any]]] = [[] for _ in range(longest + 1)]
    for index, choice in enumerate(job.choices):
        if job.chat:
            found[0].append({**kind, "choices": [chunk(index, {"delta": {"role": "assistant", "content": ""}})]})
        for at, token in enumerate(choice.tokens):
            said: dict[str, Any] = {"delta": {"content": token}} if job.chat else {"text": token}
            found[at].append({**kind, "choices": [chunk(index, said)]})
        end: dict[str, Any] = {"delta": {}} if job.chat else {"text": ""}
        found[len(choice.tokens)].append({**kind, "choices": [chunk(index, end, choice.reason)]})
    if job.include_usage:
        found[-1].append({**kind, "choices": [], "usage": job.usage})
    return found


def chunk(index: int, said: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": index, **said, "logprobs": None, "finish_reason": reason}


def say(line: str) -> None:
    print(line, flush=True)


async def load(seconds: float) -> None:
    """Pretend to load a model, and say how far it has got."""
    for done in range(LOADING_STEPS if seconds else 0):
        say(f"phase: loading {done}/{LOADING_STEPS}")
        await asyncio.sleep(seconds / LOADING_STEPS)


async def serve(args: argparse.Namespace, key: str | None) -> None:
    """Load, listen, and serve until drained."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: os._exit(0))  # nothing is in flight before it listens
    loop.add_signal_handler(signal.SIGINT, lambda: os._exit(0))
    await load(args.startup_delay)
    echo = Echo(args, key)
    # A client that goes away must not keep a drain waiting: its handler is cancelled.
    runner = web.AppRunner(echo.app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    # SO_REUSEADDR alone: a port that is held for us does not stop it, and no second server can listen beside it.
    site = web.TCPSite(runner, args.host, args.port, reuse_address=True, backlog=BACKLOG)
    try:
        await site.start()
    except OSError as error:
        raise SystemExit(f"error: cannot listen on {args.host}:{args.port}: {os.strerror(error.errno or 0)}") from None
    loop.add_signal_handler(signal.SIGTERM, echo.drain)
    loop.add_signal_handler(signal.SIGINT, echo.drain)
    say(f"phase: listening on {args.host}:{args.port}, model {args.model}")
    await echo.done.wait()
    await runner.cleanup()
    say("drained")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="echo_server", description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="echo", help="the name that /v1/models reports and requests must use")
    for name in ("latency", "token-rate", "startup-delay", "fail-rate"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    for name in ("crash-after", "overload-at"):
        parser.add_argument(f"--{name}", type=int, default=0)
    return parser.parse_args(argv)


def main() -> NoReturn:
    asyncio.run(serve(parse(sys.argv[1:]), os.environ.get(KEY_VARIABLE) or None))
    sys.exit(0)


if __name__ == "__main__":
    main()
