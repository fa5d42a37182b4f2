"""A server that misbehaves on request. A script: `python fake_server.py --port 8000 ...`; standard library only.

It answers OpenAI's paths unless told otherwise, and each flag (`fake_parts.py`) adds one fault. What it counted is at
`GET /_stats`, and a test can change it while it runs: `POST /_routes`, `/_say`, `/_exit`, `/_kill_children`.
`lifecycle.testing.fake` writes its command lines.

A route is a list of rules; the first that still applies decides, none means the usual answer. A rule is an object:
`until` (seconds since the port was bound) and `first` (so many requests) say how long it applies; `status`, `body`,
`headers`, `delay` say what is answered; `do` can be `hang` (nothing), `headers` (headers, then nothing), `stall`
(half of the body, then nothing), `reset` (connection closed).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections import Counter
from typing import Any, NoReturn

from fake_parts import Output, parse, spawn, speak

BEGAN = time.monotonic()
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests",
           500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: "
GENERATING = ("/v1/chat/completions", "/v1/completions")


class Fake:
    """The state of the server: what was counted, what it does next."""

    def __init__(self, args: argparse.Namespace, out: Output, children: list[int]) -> None:
        self.args = args
        self.out = out
        self.children = children
        self.requests: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.bodies: Counter[str] = Counter()
        self.connections = self.in_flight = self.peak = self.disconnects = self.aborted = self.signals = 0
        self.draining = self.asleep = False
        self.bound_at = 0.0
        self.routes = dict(args.routes)
        self.rule_uses: Counter[tuple[str, int]] = Counter()
        self.background: set[asyncio.Task[None]] = set()

    def stats(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(), "attempt": self.args.attempt, "children": self.children,
            "uptime": time.monotonic() - BEGAN, "bound_at": self.bound_at,
            "requests": self.requests, "statuses": self.statuses, "bodies": self.bodies,
            "generations": sum(self.requests[path] for path in GENERATING), "connections": self.connections,
            "in_flight": self.in_flight, "peak": self.peak, "disconnects": self.disconnects, "aborted": self.aborted,
            "signals": self.signals,
        }  # fmt: skip

    def rule(self, path: str) -> dict[str, Any]:
        rules = self.routes.get(path, [])
        for number, rule in enumerate([rules] if isinstance(rules, dict) else rules):
            if "until" in rule and time.monotonic() - self.bound_at >= rule["until"]:
                continue
            if "first" in rule and self.rule_uses[path, number] >= rule["first"]:
                continue
            self.rule_uses[path, number] += 1
            found: dict[str, Any] = rule
            return found
        if path == "/health" and time.monotonic() - self.bound_at < self.args.ready_after:
            return {"status": 503}
        return {}

    def finish(self, code: int | None = None, by: str = "") -> NoReturn:
        """End now: by a signal if one is named, by an exit code otherwise."""
        self.out.flush()
        name = by or ("" if code is not None else self.args.die_by)
        if name:
            number = signal.Signals[name]
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            time.sleep(60)
        os._exit(self.args.exit_code if code is None else code)

    def later(self, seconds: float | None, action: Any) -> None:
        if seconds is not None:
            asyncio.get_running_loop().call_later(max(0.0, seconds - (time.monotonic() - BEGAN)), action)

    def on_term(self) -> None:
        self.signals += 1
        for text in self.args.say_on_term:
            self.out.line(text)
        if self.args.on_term == "exit":
            self.finish(self.args.term_code)
        elif self.args.on_term == "delay":
            asyncio.get_running_loop().call_later(self.args.term_delay, self.finish, self.args.term_code)
        elif self.args.on_term == "drain":
            self.draining = True
            self.end_if_drained()

    def end_if_drained(self) -> None:
        if self.draining and not self.in_flight:
            asyncio.get_running_loop().call_later(0.05, self.finish, self.args.term_code)  # let the last answer leave

    def inner_deadline(self) -> None:
        if not self.bound_at or time.monotonic() - self.bound_at < self.args.ready_after:
            self.out.line(f"fake: not ready after the inner deadline of {self.args.inner_deadline:g} s")
            self.finish(self.args.exit_code)

    async def run(self) -> None:
        loop, args = asyncio.get_running_loop(), self.args
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.on_term)
        self.later(args.exit_after, self.finish)
        self.later(args.inner_deadline, self.inner_deadline)
        speak(args, self.out)
        if args.repeat_line:
            self.background.add(loop.create_task(self.repeat()))
        await asyncio.sleep(args.bind_after)
        if args.exit_before_bind:
            self.finish()
        if args.no_bind:
            await asyncio.Event().wait()
        listener = self.bind(args.port)
        server = await loop.create_server(lambda: Connection(self), sock=listener, backlog=4096)
        self.bound_at = time.monotonic()
        if args.exit_after_bind is not None:
            loop.call_later(args.exit_after_bind, self.finish)
        if not args.no_banner:
            self.out.line(f"fake: listening on {args.host}:{listener.getsockname()[1]}")
        for text in args.say_ready:
            self.out.line(text)
        if args.extra_port or args.extra_offset:
            await asyncio.sleep(args.extra_after)
            for port in (*args.extra_port, *(args.port + offset for offset in args.extra_offset)):
                await loop.create_server(asyncio.Protocol, sock=self.bind(port))
        await server.serve_forever()

    def bind(self, port: int) -> socket.socket:
        listener = socket.socket(socket.AF_INET6 if ":" in self.args.host else socket.AF_INET)
        if not self.args.no_reuse:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.args.reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listener.bind((self.args.host, port))
            listener.listen(4096)
        except OSError as error:
            self.out.line("Traceback (most recent call last):")
            self.out.line(f"OSError: [Errno {error.errno}] {os.strerror(error.errno or 0)}: port {port}")
            self.finish(self.args.exit_code)
        return listener

    async def repeat(self) -> None:
        while True:
            self.out.line(self.args.repeat_line)
            await asyncio.sleep(self.args.repeat_every)


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection. A client that goes away cancels what it asked for, and is counted."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake
        self.buffer = b""
        self.task: asyncio.Task[None] | None = None
        self.method = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.fake.connections += 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.task is None:
            self.next_request()

    def next_request(self) -> None:
        head, end, rest = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        body, self.buffer = rest[:length], rest[length:]
        self.method, target, _ = first.split(" ", 2)
        self.task = asyncio.get_running_loop().create_task(self.handle(target.partition("?")[0], headers, body))
        self.task.add_done_callback(self.after)

    def after(self, task: asyncio.Task[None]) -> None:
        self.task = None
        if not task.cancelled() and task.exception() is not None:
            self.fake.out.line(f"fake: its own bug: {task.exception()!r}", 2)
            self.transport.close()
        elif not self.transport.is_closing():
            self.next_request()

    def connection_lost(self, error: Exception | None) -> None:
        if self.task is not None:
            self.fake.disconnects += 1
            self.fake.aborted += self.method == "GET"
            self.task.cancel()
            if self.fake.args.exit_after_aborted is not None and self.fake.aborted >= self.fake.args.exit_after_aborted:
                self.fake.finish()

    async def handle(self, path: str, headers: dict[str, str], body: bytes) -> None:
        fake = self.fake
        if path.startswith("/_"):
            self.control(path, json.loads(body or b"{}"))
            return
        fake.requests[path] += 1
        generating = path in GENERATING
        if generating:
            fake.bodies[prompt_of(body)] += 1
            last = fake.args.exit_after_requests
            if last is not None and sum(fake.requests[one] for one in GENERATING) >= last:
                fake.finish()
        if generating and fake.args.overload and fake.in_flight >= fake.args.overload:
            self.answer(503, error("overloaded"), {"Retry-After": fake.args.retry_after})
            return
        if fake.args.can_sleep and ((generating and fake.asleep) or (path == "/sleep" and fake.in_flight)):
            fake.finish()
        fake.in_flight += generating
        fake.peak = max(fake.peak, fake.in_flight)
        try:
            await self.obey(fake.rule(path), path, headers, body)
        finally:
            fake.in_flight -= generating
            fake.end_if_drained()

    async def obey(self, rule: dict[str, Any], path: str, headers: dict[str, str], body: bytes) -> None:
        await asyncio.sleep(rule.get("delay", 0.0))
        do = rule.get("do")
        if do == "reset":
            self.task = None  # our doing, not the client's
            self.transport.abort()
            return
        if do in ("headers", "stall"):
            self.transport.write(HEAD + b"application/json\r\nContent-Length: 100\r\n\r\n")
        if do == "stall":
            self.transport.write(b'{"id"')
        if do in ("hang", "headers", "stall"):
            await asyncio.Event().wait()
        if "status" in rule or "body" in rule:
            status = rule.get("status", 200)
            usual = {} if status < 400 else error(f"told so: {status}")
            self.answer(status, rule.get("body", usual), rule.get("headers"))
            return
        await self.usual(path, headers, body)

    async def usual(self, path: str, headers: dict[str, str], body: bytes) -> None:
        args = self.fake.args
        key = os.environ.get(args.need_key, "") if args.need_key else ""
        if self.fake.draining:
            self.answer(503, error("draining"))
        elif key and path != "/health" and headers.get("authorization") != f"Bearer {key}":
            self.answer(401, error("wrong key"))
        elif path == "/health" and self.method == "GET":
            self.answer(200, {"status": "ok"})
        elif path == "/v1/models" and self.method == "GET":
            self.answer(200, {"object": "list", "data": [{"id": args.model, "object": "model"}]})
        elif path in ("/sleep", "/wake_up") and self.method == "POST" and args.can_sleep:
            self.fake.asleep = path == "/sleep"
            self.answer(200, {})
        elif path in GENERATING and self.method == "POST":
            await self.generate(path, body)
        else:
            self.answer(404, error(f"no such path: {path}"))

    async def generate(self, path: str, body: bytes) -> None:
        args, fake = self.fake.args, self.fake
        try:
            payload = json.loads(body)
            payload["messages" if "chat" in path else "prompt"]
        except (ValueError, KeyError, TypeError):
            self.answer(400, error("not a request"))
            return
        if args.log_prompts:
            fake.out.line(f"fake: {body.decode('utf-8', 'replace')}")
        if not args.any_model and payload.get("model", args.model) != args.model:
            self.answer(404, error(f"the model {payload['model']!r} does not exist"))
            return
        await asyncio.sleep(args.reply_delay)
        count = min(args.tokens, payload.get("max_tokens") or args.tokens)
        words = [f" token{number}" for number in range(count)]
        words = ["x" * args.answer_bytes] if args.answer_bytes else words
        kind = "delta" if payload.get("stream") else "message"
        head = {"id": "fake", "object": "fake", "created": 0, "model": args.model}

        def choice(text: str, reason: str | None) -> dict[str, Any]:
            said = {kind: {"role": "assistant", "content": text}} if "chat" in path else {"text": text}
            return {**head, "choices": [{"index": 0, **said, "finish_reason": reason}]}

        if not payload.get("stream"):
            await asyncio.sleep(args.token_delay * len(words))
            usage = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": 1 + count}
            self.answer(200, {**choice("".join(words), "stop"), "usage": usage})
            return
        self.fake.statuses["200"] += 1
        self.transport.write(HEAD + b"text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number, word in enumerate(words, 1):
            await asyncio.sleep(args.token_delay)
            self.event(json.dumps(choice(word, "stop" if number == len(words) else None)))
        self.event("[DONE]")
        self.transport.write(b"0\r\n\r\n")

    def event(self, data: str) -> None:
        text = f"data: {data}\n\n".encode()
        self.transport.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")

    def answer(
        self, status: int, body: Any, headers: dict[str, str] | None = None, *, count: bool = True
    ) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(data)}", *(f"{key}: {value}" for key, value in (headers or {}).items())]
        self.fake.statuses[str(status)] += count
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + data)

    def control(self, path: str, body: Any) -> None:
        fake = self.fake
        if path == "/_routes":
            fake.routes.update(body)
            fake.rule_uses.clear()
        elif path == "/_say":
            fake.out.write(bytes.fromhex(body["hex"]) if "hex" in body else body["text"].encode() + b"\n")
        elif path == "/_exit":
            fake.finish(body.get("code"), body.get("signal", ""))
        elif path == "/_kill_children":
            for pid in fake.children:
                os.kill(pid, signal.SIGKILL)
        elif path != "/_stats":
            self.answer(404, error(f"no such path: {path}"), count=False)
            return
        self.answer(200, fake.stats(), count=False)


def prompt_of(body: bytes) -> str:
    """What a generation asks for, as JSON: the same text each time that it is sent again."""
    try:
        payload = json.loads(body)
        return json.dumps(payload.get("messages", payload.get("prompt")))
    except (ValueError, AttributeError):
        return body.decode("utf-8", "replace")


def error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "fake", "param": None, "code": None}}


def main() -> None:
    args = parse(sys.argv[1:])
    if args.on_term == "ignore":  # also before there is a handler
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    out = Output(args.block_buffered)
    children = [spawn(spec, out) for spec in args.child]
    for spec, pid in zip(args.child, children, strict=True):
        out.line(f"fake: child {spec} has pid {pid}")
    asyncio.run(Fake(args, out, children).run())


if __name__ == "__main__":
    main()
