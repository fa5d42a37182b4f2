"""A small router with the command line, the HTTP and the manners of sglang-router 0.3.2, as far as Stoker uses them.

tests/engines/test_router.py runs the same tests on the real one. FAKE_ROUTER, JSON, makes it worse than that:

- "slow": seconds that each call about the list of servers takes;
- "late": seconds from a call to what it does;
- "fail": so many calls about the list are answered 500 at first;
- "forget": additions that are accepted and not done, at first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

ATTEMPTS, PAUSE, GROWTH = 5, 0.05, 1.5
AGAIN = frozenset((408, 429, 500, 502, 503, 504))
HOP = frozenset(("host", "content-length", "authorization", "connection", "accept-encoding"))


@dataclass
class Worker:
    url: str
    model: str
    key: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    failures: int = 0


class FakeRouter:
    def __init__(self, args: argparse.Namespace, faults: dict[str, float]) -> None:
        self.args = args
        self.control = args.control_plane_api_keys[0].split(":", 3)[3] if args.control_plane_api_keys else args.api_key
        self.faults = faults
        self.workers: dict[str, Worker] = {}
        self.next = count()
        self.jobs: set[asyncio.Task[None]] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**29)
        app.router.add_get("/workers", self.controlled(self.list_workers))
        app.router.add_post("/workers", self.controlled(self.add_worker))
        app.router.add_delete("/workers/{id}", self.controlled(self.remove_worker))
        app.router.add_get("/v1/models", self.models)
        for path in ("/health", "/liveness"):
            app.router.add_get(path, self.alive)
        for path in ("/v1/completions", "/v1/chat/completions"):
            app.router.add_post(path, self.route)
        return app

    async def alive(self, request: web.Request) -> web.Response:
        return web.Response(text="OK")

    def controlled(
        self, handler: Callable[[web.Request], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def checked(request: web.Request) -> web.Response:
            if self.control and request.headers.get("Authorization") != f"Bearer {self.control}":
                return web.Response(status=401, text="Invalid authentication token")
            await asyncio.sleep(self.faults.get("slow", 0))
            if self.faults.get("fail", 0) > 0:
                self.faults["fail"] -= 1
                return web.json_response({"error": "no"}, status=500)
            return await handler(request)

        return checked

    async def list_workers(self, request: web.Request) -> web.Response:
        listed = [
            {"id": each.id, "url": each.url, "model_id": each.model, "is_healthy": True, "load": 0}
            for each in self.workers.values()
        ]
        return web.json_response({"workers": listed, "total": len(listed), "stats": {}})

    async def add_worker(self, request: web.Request) -> web.Response:
        body = await request.json()
        worker = Worker(body["url"], body.get("model_id", "unknown"), body.get("api_key", ""))
        if self.faults.get("forget", 0) > 0:
            self.faults["forget"] -= 1
        else:
            self.later(self.added(worker))
        return web.json_response({"status": "accepted", "worker_id": worker.id, "url": worker.url}, status=202)

    async def remove_worker(self, request: web.Request) -> web.Response:
        found = [url for url, each in self.workers.items() if each.id == request.match_info["id"]]
        if not found:
            return web.json_response({"error": "not found", "code": "WORKER_NOT_FOUND"}, status=404)
        self.later(self.removed(found[0]))
        return web.json_response({"status": "accepted"}, status=202)

    def later(self, job: Awaitable[None]) -> None:
        async def do() -> None:
            await asyncio.sleep(self.faults.get("late", 0.005))
            await job

        task = asyncio.create_task(do())
        self.jobs.add(task)
        task.add_done_callback(self.jobs.discard)

    async def added(self, worker: Worker) -> None:
        if worker.url in self.workers:
            return  # it says so in its log only
        for number in range(20):
            try:
                async with self.http.get(f"{worker.url}/health") as answer:
                    if answer.status == 200:
                        self.workers.setdefault(worker.url, worker)
                        return
            except ClientError:
                pass
            await asyncio.sleep(min(5, 2**number))

    async def removed(self, url: str) -> None:
        self.workers.pop(url, None)

    async def models(self, request: web.Request) -> web.Response:
        names = {each.model for each in self.workers.values()}
        if not names:
            return web.Response(status=503, text="No models available")
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    async def route(self, request: web.Request) -> web.StreamResponse:
        if self.args.api_key and request.headers.get("Authorization") != f"Bearer {self.args.api_key}":
            return web.Response(status=401)
        body = await request.read()
        answer: web.StreamResponse = web.Response(status=503)
        for attempt in range(ATTEMPTS):
            worker = self.choose()
            if worker is None:
                answer = failure(503, "no_available_workers", "No available workers")
            else:
                answer = await self.ask(worker, request, body)
            if answer.status not in AGAIN or answer.prepared:
                break
            await asyncio.sleep(PAUSE * GROWTH**attempt)
        return answer

    def choose(self) -> Worker | None:
        good = [each for each in self.workers.values() if each.failures < self.args.cb_failure_threshold]
        return good[next(self.next) % len(good)] if good else None

    async def ask(self, worker: Worker, request: web.Request, body: bytes) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        if worker.key:
            headers["Authorization"] = f"Bearer {worker.key}"
        try:
            async with self.http.post(worker.url + request.path, data=body, headers=headers) as answer:
                kind = answer.headers.get("Content-Type", "")
                worker.failures = worker.failures + 1 if answer.status >= 500 else 0
                if answer.status != 200 or "event-stream" not in kind:
                    whole = await answer.read()
                    return web.Response(status=answer.status, body=whole, headers={"Content-Type": kind})
                stream = web.StreamResponse(headers={"Content-Type": kind})
                await stream.prepare(request)
                try:
                    async for piece in answer.content.iter_any():
                        await stream.write(piece)
                except ClientError:
                    if request.transport is not None:
                        request.transport.abort()
                return stream
        except ClientError as error:
            worker.failures += 1
            return failure(500, "call_upstream_request_error", str(error))

    async def serve(self) -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        connector, limit = TCPConnector(limit=0, force_close=True), ClientTimeout(total=self.args.request_timeout_secs)
        async with ClientSession(connector=connector, timeout=limit) as http:
            self.http = http
            runner = web.AppRunner(self.app(), shutdown_timeout=self.args.shutdown_grace_period_secs)
            await runner.setup()
            args = self.args
            metrics = await asyncio.start_server(lambda r, w: w.close(), args.prometheus_host, args.prometheus_port)
            await web.TCPSite(runner, args.host, args.port, reuse_address=True, backlog=1024).start()
            await ended.wait()
            metrics.close()
            for job in self.jobs:
                job.cancel()
            await runner.cleanup()


def failure(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=status)


def parse_router_args(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--host", default="0.0.0.0")
    add("--prometheus-host", default="0.0.0.0")
    add("--port", type=int, default=30000)
    add("--prometheus-port", type=int, default=29000)
    add("--policy", choices=("random", "round_robin", "cache_aware", "power_of_two", "manual"), default="cache_aware")
    add("--log-level", choices=("debug", "info", "warn", "error"), default="info")
    add("--request-timeout-secs", type=int, default=1800)
    add("--shutdown-grace-period-secs", type=int, default=180)
    add("--cb-timeout-duration-secs", type=int, default=60)
    add("--cb-failure-threshold", type=int, default=10)
    add("--cb-success-threshold", type=int, default=3)
    add("--disable-health-check", action="store_true")
    add("--api-key")
    add("--control-plane-api-keys", nargs="*", default=[])
    return parser.parse_args(words)


def launch_router(args: argparse.Namespace) -> None:
    asyncio.run(FakeRouter(args, json.loads(os.environ.get("FAKE_ROUTER", "{}"))).serve())
