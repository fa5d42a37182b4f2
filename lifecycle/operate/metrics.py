"""Metrics of servers, groups and fleets for Prometheus: records of journals and requests in, metrics out.

    metrics = Metrics()
    server = Server(config, listener=metrics)
    metrics.watch(server)
    with metrics.served(9464):
        async with server:
            ...

Names follow Prometheus' conventions (https://prometheus.io/docs/practices/naming/): base units, `_total` for what is
counted. Labels have few values each: names of servers, states, events, causes. None holds a text that a prompt or a
log has, so none can hold a secret. Needs `pip install 'stoker[metrics]'`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol

import anyio

from lifecycle.adapter import EngineLoad
from lifecycle.batch.summary import tokens_of
from lifecycle.chart import Chart
from lifecycle.client import Client
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError
from lifecycle.gate import Gate
from lifecycle.journal import Record
from lifecycle.observing import Request
from lifecycle.operate.accounts import MOST_NAMES, OTHER, Account, Accounts

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, StateSetMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise ConfigError("metrics need prometheus-client: pip install 'stoker[metrics]'") from None

REQUEST_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
"""Seconds. An answer takes from a few milliseconds (one token) to `request_timeout`."""
START_BUCKETS = (0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600)
"""Seconds. A start takes from a quarter of one (a small server) to the whole `startup_timeout`."""
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/models")
"""Paths that are told apart; all others are counted together."""


LOAD_INTERVAL = 5.0
"""Seconds between two questions to an engine for its own figures: a third of what Prometheus usually waits."""


class Loaded(Protocol):
    """What can be asked what its engine works on: a `Server`, a `Group`, a `Fleet`, a `Front`."""

    @property
    def config(self) -> ServerConfig: ...

    async def load(self) -> EngineLoad | None: ...


class Watchable(Loaded, Protocol):
    """What requests go through: a `Server`, a `Group`, a `Fleet`."""

    @property
    def client(self) -> Client: ...


class Metrics(Collector):
    """A journal listener, and an observer of requests, whose numbers Prometheus reads.

    Args:
        registry: where they are registered. Default: one of their own, which `served` shows. A registry that others
            show too (`prometheus_client.REGISTRY`) takes one such object only.
        charts: of your own, so that all their states are known from the beginning.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        charts: Iterable[Chart[Any]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from lifecycle.diagram import CHARTS

        self.registry = registry or CollectorRegistry()
        self._accounts = Accounts((*CHARTS.values(), *charts), clock)
        self._lock = Lock()
        self._watched: dict[str, Watchable] = {}
        self._open: dict[str, int] = {}
        self._loads: dict[str, EngineLoad] = {}
        self._starting: dict[str, float] = {}
        own: dict[str, Any] = {"registry": self.registry}
        self._starts = Histogram(
            "stoker_start_duration_seconds", "From the launch to Healthy.", ["server"], buckets=START_BUCKETS, **own
        )
        self._seconds = Histogram(
            "stoker_request_duration_seconds", "Answered requests, with all that they waited and all their attempts.",
            ["server"], buckets=REQUEST_BUCKETS, **own,
        )  # fmt: skip
        self._first = Histogram(
            "stoker_request_first_chunk_seconds", "Streams, until the first piece of the answer came.", ["server"],
            buckets=REQUEST_BUCKETS, **own,
        )  # fmt: skip
        self._requests = Counter("stoker_requests", "Requests that are over.", ["server", "path", "outcome"], **own)
        self._attempts = Counter("stoker_request_attempts", "Times that requests were sent.", ["server"], **own)
        self._prompt = Counter("stoker_prompt_tokens", "Tokens of the prompts that were answered.", ["server"], **own)
        self._completion = Counter("stoker_completion_tokens", "Tokens of their answers.", ["server"], **own)
        self.registry.register(self)

    def __call__(self, record: Record) -> None:
        """Take a record of a journal."""
        with self._lock:
            self._accounts(record)
            name = self._accounts.name(record.server)
        if name == OTHER or record.before == record.after:
            return
        if record.after == "Starting":
            self._starting[name] = record.time
            return
        began = self._starting.pop(name, None)
        if began is not None and record.after == "Healthy":
            self._starts.labels(name).observe(record.time - began)

    def watch(self, service: Watchable) -> None:
        """Count the requests that are sent through it from now on. Of several with one name the last one's are shown
        as in flight."""
        label = service.config.label
        if label in self._watched or len(self._watched) < MOST_NAMES:
            self._watched[label] = service
        else:
            label = OTHER
        self._open.setdefault(label, 0)

        def begin(request: Request) -> Callable[[], None]:
            self._open[label] += 1
            return lambda: self._over(label, request)

        service.client.observers.append(begin)

    async def sample(self, service: Loaded) -> None:
        """Ask the engine every few seconds what it works on, whoever sent that, for ever."""
        label = service.config.label
        while True:
            load = await service.load()
            if load is not None:
                self._loads[label] = load
            else:
                self._loads.pop(label, None)
            await anyio.sleep(LOAD_INTERVAL)

    @contextmanager
    def served(self, port: int, host: str = "127.0.0.1") -> Iterator[str]:
        """Let Prometheus read them at http://HOST:PORT/metrics, which is what this gives, while the body runs; from a
        thread of their own, so that they can be read whatever the program does.

        Args:
            port: 0: any that is free.
            host: literal address to bind. Whoever can reach it can read them.

        Raises `ConfigError` if it cannot be bound.
        """
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise ConfigError(
                f"metrics = {port}: {host}:{port} cannot be bound: {error.strerror}; choose another port with --metrics"
            ) from None
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def collect(self) -> Iterator[Metric]:
        """What is not counted by itself, as it is now. Called for each scrape, from any thread."""
        with self._lock:
            accounts = [(name, account) for name, account in self._accounts.of.items() if name != OTHER]
            families = [*self._standing(accounts), *self._counted(), *self._fleets(accounts)]
        return iter((*families, *self._traffic()))

    def _standing(self, accounts: list[tuple[str, Account]]) -> Iterator[Metric]:
        labels = ["server", "chart"]
        state = StateSetMetricFamily("stoker_state", "The state: 1 for the present one, 0 for others.", labels=labels)
        since = GaugeMetricFamily("stoker_state_since_timestamp_seconds", "When it came to it.", labels=labels)
        spent = CounterMetricFamily("stoker_state_seconds", "Time spent in each state.", labels=[*labels, "state"])
        for name, account in accounts:
            state.add_metric([name, account.chart], dict(self._accounts.states(account)))
            since.add_metric([name, account.chart], account.since)
            for each, seconds in self._accounts.seconds(account).items():
                spent.add_metric([name, account.chart, each], seconds)
        yield from (state, since, spent)

    def _counted(self) -> Iterator[Metric]:
        labels = ["server", "chart"]
        moves = CounterMetricFamily("stoker_transitions", "Transitions.", labels=[*labels, "before", "after", "event"])
        starts = CounterMetricFamily("stoker_attempts", "Starts begun, failed ones too.", labels=labels)
        failures = CounterMetricFamily("stoker_failures", "Failures, by diagnosed cause.", labels=[*labels, "cause"])
        problems = CounterMetricFamily(
            "stoker_cleanup_problems", "Cleanups that took too long (overrun) or raised.", labels=[*labels, "kind"]
        )
        for name, account in self._accounts.of.items():
            who = [name, account.chart]
            starts.add_metric(who, account.attempts)
            for move, count in account.transitions.items():
                moves.add_metric([*who, *move], count)
            for cause, count in account.failures.items():
                failures.add_metric([*who, cause], count)
            for kind, count in account.problems.items():
                problems.add_metric([*who, kind], count)
        yield from (moves, starts, failures, problems)

    def _fleets(self, accounts: list[tuple[str, Account]]) -> Iterator[Metric]:
        replicas = GaugeMetricFamily(
            "stoker_fleet_replicas", "Replicas that serve (healthy), will again (away), never will (lost).",
            labels=["server", "condition"],
        )  # fmt: skip
        needed = GaugeMetricFamily("stoker_fleet_min_healthy", "Replicas that are needed.", labels=["server"])
        for name, account in accounts:
            if account.replicas is not None:
                healthy, lost = len(account.healthy), len(account.lost)
                away = max(0, account.replicas - healthy - lost)
                for condition, count in (("healthy", healthy), ("away", away), ("lost", lost)):
                    replicas.add_metric([name, condition], count)
                needed.add_metric([name], account.min_healthy)
        yield from (replicas, needed)

    def _traffic(self) -> Iterator[Metric]:
        here = GaugeMetricFamily("stoker_requests_in_flight", "Requests that a server has now.", labels=["server"])
        wait = GaugeMetricFamily("stoker_requests_waiting", "Requests that wait for a server.", labels=["server"])
        engine = GaugeMetricFamily(
            "stoker_engine_requests", "What engines say that they work on (running) and have not begun (waiting).",
            labels=["server", "condition"],
        )  # fmt: skip
        for label, load in tuple(self._loads.items()):
            engine.add_metric([label, "running"], load.running)
            engine.add_metric([label, "waiting"], load.waiting)
        for label, service in tuple(self._watched.items()):
            gates = gates_of(service)
            for gate in gates:
                here.add_metric([gate.label], gate.in_flight)
            sent = sum(gate.in_flight for gate in gates)
            wait.add_metric([label], max(0, self._open[label] - sent))
        yield from (here, wait, engine)

    def _over(self, label: str, request: Request) -> None:
        self._open[label] -= 1
        server = self._accounts.name(request.server or label)
        path = f"/{request.path.removeprefix('/')}"
        self._requests.labels(server, path if path in PATHS else OTHER, request.outcome).inc()
        self._attempts.labels(server).inc(request.attempts)
        if request.outcome == "answered":
            self._seconds.labels(server).observe(request.seconds)
        if request.first is not None:
            self._first.labels(server).observe(request.first)
        prompt, completion = tokens_of((request.answer or {}).get("usage"))
        self._prompt.labels(server).inc(max(0, prompt))
        self._completion.labels(server).inc(max(0, completion))


def gates_of(service: Any) -> tuple[Gate, ...]:
    """The gates of the servers behind a service: its own, or one for each replica of a fleet."""
    if hasattr(service, "slots"):
        return tuple(slot.replica.gate for slot in service.slots)
    return (service.gate,)
