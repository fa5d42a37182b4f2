"""A registrar, a router that does what it is told late, twice or not at all, and replicas that come and go; on virtual
time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.router import RouterAdapter
from lifecycle.diagnosis import Diagnosis
from lifecycle.fleet.registrar import CHECK, Registrar
from lifecycle.fleet.registry import Call
from lifecycle.gate import Gate
from lifecycle.host import Answer, NoAnswer
from lifecycle.server_facts import Facts
from lifecycle.testing.clock import run_virtual

CALM = 200.0
"""Virtual seconds in which everything comes to rest: longer than whatever a call or a job takes."""


class Router:
    """What sglang-router does with its list: accepted at once, done later, in no order; forgotten at its end."""

    def __init__(self, seed: int = 0) -> None:
        self.gate = Gate("router")
        self.roll = random.Random(seed)
        self.servers: dict[str, str] = {}
        """URL by id."""
        self.told: list[tuple[str, str]] = []
        self.slow = 0.0
        """Longest time that a call takes."""
        self.late = 0.005
        """Longest time from a call to what it does."""
        self.deaf = False
        """No call gets an answer, but it may be heard."""
        self.refuses = False
        self.jobs: anyio.abc.TaskGroup | None = None
        self._ids = count()
        self.emptied = 0
        """How often the list became empty."""

    def start(self) -> None:
        self.servers.clear()
        self.gate.follow("Healthy", Facts(), "http://127.0.0.1:9000")

    def die(self) -> None:
        self.gate.follow("Draining", Facts(diagnosis=Diagnosis("exited", "it exited")), "")

    async def ask(self, call: Call) -> Answer:
        life = self.gate.life
        if not self.gate.is_open:
            raise NoAnswer("connection refused", refused=True)
        await anyio.sleep(self.roll.uniform(0, self.slow))
        answer = self.done(call, life)
        if self.deaf:
            await anyio.sleep(10)
            raise NoAnswer("no answer in 10 s")
        return answer

    def done(self, call: Call, life: int) -> Answer:
        if self.refuses:
            return Answer(500, "no")
        if call.method == "GET":
            return Answer(200, {"workers": [{"id": each, "url": url} for each, url in self.servers.items()]})
        assert self.jobs is not None
        if call.method == "DELETE":
            one = call.path.removeprefix("/workers/")
            self.told.append(("remove", self.servers.get(one, "?")))
            if one not in self.servers:
                return Answer(404, "not found")
            self.jobs.start_soon(self.later, life, lambda: self.servers.pop(one, None))
        else:
            url = str((call.body or {})["url"])
            self.told.append(("add", url))
            self.jobs.start_soon(self.later, life, lambda: self.added(url))
        return Answer(202, {"status": "accepted"})

    def added(self, url: str) -> None:
        if url not in self.servers.values():
            self.servers[f"id-{next(self._ids)}"] = url

    async def later(self, life: int, do: Callable[[], object]) -> None:
        await anyio.sleep(self.roll.uniform(0, self.late))
        if life == self.gate.life and self.gate.is_open:
            had = bool(self.servers)
            do()
            self.emptied += had and not self.servers

    @property
    def urls(self) -> list[str]:
        return sorted(self.servers.values())


class Replicas:
    """Gates that are opened and closed by hand; every change is told to the registrar, as a server's journal does."""

    def __init__(self, number: int) -> None:
        self.gates = [Gate(f"replica-{each}") for each in range(number)]
        self.drained: list[str] = []
        self.registrar: Registrar | None = None

    @property
    def open(self) -> list[Gate]:
        return [gate for gate in self.gates if gate.is_open]

    @property
    def urls(self) -> list[str]:
        return sorted(gate.leave.url for gate in self.open)

    def serve(self, number: int, port: int) -> None:
        self.gates[number].follow("Healthy", Facts(model="m"), f"http://127.0.0.1:{port}")
        self.changed()

    def leave(self, number: int, *, asked: bool = True) -> None:
        self.gates[number].follow("Draining", Facts(stopping=asked), self.gates[number].leave.url)
        self.changed()

    def changed(self) -> None:
        assert self.registrar is not None
        self.registrar.look()


@asynccontextmanager
async def registered(router: Router, replicas: Replicas) -> AsyncIterator[Registrar]:
    registrar = Registrar(router.gate, lambda: replicas.open, RouterAdapter(), router.ask)
    replicas.registrar = registrar
    async with anyio.create_task_group() as group:
        router.jobs = group
        router.start()
        group.start_soon(registrar.run)
        yield registrar
        group.cancel_scope.cancel()


async def all_known(registrar: Registrar, replicas: Replicas) -> None:
    """Every replica serves, at 9001 and so on, and the router knows it."""
    for number in range(len(replicas.gates)):
        replicas.serve(number, 9001 + number)
    await registrar.until(lambda: registrar.have == len(replicas.gates))


def virtually(test: Callable[[], Awaitable[None]], backend: str, seed: int = 0) -> None:
    run_virtual(test, backend=backend, seed=seed)


both_loops = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@both_loops
def test_a_replica_gets_requests_from_when_it_is_healthy_until_it_is_not(backend: str) -> None:
    async def life() -> None:
        router, replicas = Router(), Replicas(2)
        async with registered(router, replicas) as registrar:
            await all_known(registrar, replicas)
            assert router.urls == replicas.urls
            replicas.leave(1)
            await replicas.gates[1].empty()
            assert router.urls == replicas.urls == ["http://127.0.0.1:9001"]

    virtually(life, backend)


@both_loops
def test_a_drain_waits_until_a_slow_router_has_forgotten_the_replica(backend: str) -> None:
    async def life() -> None:
        router, replicas = Router(), Replicas(2)
        async with registered(router, replicas) as registrar:
            await all_known(registrar, replicas)
            router.slow, router.late = 5.0, 7.0
            replicas.leave(0)
            assert replicas.gates[0].outside == 1
            await replicas.gates[0].empty()
            assert "http://127.0.0.1:9001" not in router.urls

    virtually(life, backend, seed=3)


@both_loops
def test_no_drain_waits_for_a_router_that_is_gone(backend: str) -> None:
    async def life() -> None:
        router, replicas = Router(), Replicas(1)
        async with registered(router, replicas) as registrar:
            await all_known(registrar, replicas)
            router.die()
            replicas.changed()
            replicas.leave(0)
            with anyio.fail_after(0.001):
                await replicas.gates[0].empty()

    virtually(life, backend)


@both_loops
def test_no_drain_waits_for_a_registrar_that_has_ended(backend: str) -> None:
    async def life() -> None:
        router, replicas = Router(), Replicas(1)
        async with registered(router, replicas) as registrar:
            await all_known(registrar, replicas)
        assert replicas.gates[0].outside == 0

    virtually(life, backend)


@both_loops
def test_a_router_that_was_started_again_is_told_of_all_replicas_again(backend: str) -> None:
    async def life() -> None:
        router, replicas = Router(), Replicas(3)
        async with registered(router, replicas) as registrar:
            await all_known(registrar, replicas)
            router.die()
            replicas.changed()
            assert registrar.have == 0
            replicas.leave(1, asked=False)
            router.start()
            replicas.changed()
            await registrar.until(lambda: registrar.have == 2)
            assert router.urls == replicas.urls

    virtually(life, backend)


@both_loops
def test_what_a_router_said_before_it_died_is_not_believed_of_the_next(backend: str) -> None:
    async def life() -> None:
        router, replicas = Router(), Replicas(1)
        async with registered(router, replicas) as registrar:
            await all_known(registrar, replicas)
            last_words = router.ask

            async def ask(call: Call) -> Answer:
                answer = await last_words(call)
                registrar._ask = last_words
                router.die()
                replicas.changed()
                router.start()
                replicas.changed()
                return answer

            registrar._ask = ask
            await anyio.sleep(CHECK)  # it looks, and dies
            await anyio.sleep(CHECK / 4)
            assert router.urls == replicas.urls

    virtually(life, backend)


@both_loops
def test_a_replica_that_was_restarted_unseen_is_known_at_its_new_address(backend: str) -> None:
    async def life() -> None:
        router, replicas = Router(), Replicas(1)
        async with registered(router, replicas) as registrar:
            await all_known(registrar, replicas)
            replicas.gates[0].follow("Draining", Facts(), "")
            replicas.serve(0, 9002)
            await registrar.until(lambda: registrar.registry.settled)
            assert router.urls == replicas.urls == ["http://127.0.0.1:9002"]

    virtually(life, backend)


@both_loops
def test_replaced_one_by_one_the_router_always_has_one(backend: str) -> None:
    async def life() -> None:
        router, replicas = Router(), Replicas(2)
        async with registered(router, replicas) as registrar:
            await all_known(registrar, replicas)
            router.late = 3.0
            for turn in range(1, 10):
                for number in (0, 1):
                    replicas.leave(number)
                    await replicas.gates[number].empty()
                    replicas.serve(number, 9001 + number if turn % 2 else 9100 + 2 * turn + number)
            await anyio.sleep(CALM)
            assert router.urls == replicas.urls
            assert router.emptied == 0

    virtually(life, backend, seed=5)


@both_loops
def test_a_server_that_it_never_told_of_is_taken_out_soon(backend: str) -> None:
    async def life() -> None:
        router, replicas = Router(), Replicas(1)
        async with registered(router, replicas) as registrar:
            await all_known(registrar, replicas)
            router.added("http://127.0.0.1:9999")
            await anyio.sleep(CHECK + 1)
            assert router.urls == replicas.urls

    virtually(life, backend)


@both_loops
def test_at_rest_the_router_is_asked_seldom_and_told_nothing(backend: str) -> None:
    async def life() -> None:
        router, replicas = Router(), Replicas(1)
        async with registered(router, replicas) as registrar:
            await all_known(registrar, replicas)
            await anyio.sleep(1000)
            assert router.told == [("add", "http://127.0.0.1:9001")]

    virtually(life, backend)


STEPS = st.one_of(
    st.tuples(st.just("serve"), st.integers(0, 2), st.integers(9001, 9004)),
    st.tuples(st.just("leave"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("router"), st.booleans(), st.just(0)),
    st.tuples(st.just("trouble"), st.sampled_from(["slow", "late", "deaf", "refuses", "none"]), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([0.001, 0.1, 3.0, 30.0]), st.just(0)),
)


@given(steps=st.lists(STEPS, max_size=25), seed=st.integers(0, 2**16), backend=st.sampled_from(["asyncio", "trio"]))
@settings(deadline=None)
def test_whatever_happens_the_list_is_right_in_the_end_and_no_drain_ends_before_it_is(
    steps: list[tuple[str, object, object]], seed: int, backend: str
) -> None:
    async def life() -> None:
        router, replicas = Router(seed), Replicas(3)

        def known(url: str) -> bool:
            return router.gate.is_open and url in router.urls

        async def watch(gate: Gate, url: str) -> None:
            await gate.empty()
            early = known(url) and url not in replicas.urls and not router.deaf and router.late < 1
            assert not early, f"the drain of {url} is over, and the router still sends requests there"

        async with anyio.create_task_group() as drains, registered(router, replicas) as registrar:
            for name, first, second in steps:
                match name, first:
                    case "serve", int(number):
                        if not replicas.gates[number].is_open:
                            taken = {gate.leave.url for gate in replicas.gates}
                            port = int(str(second))
                            if f"http://127.0.0.1:{port}" not in taken:
                                replicas.serve(number, port)
                    case "leave", int(number):
                        if replicas.gates[number].is_open:
                            url = replicas.gates[number].leave.url
                            told = registrar.registry.told.get(url)
                            seen = told in registrar.registry.have
                            replicas.leave(number, asked=bool(second))
                            if seen:
                                drains.start_soon(watch, replicas.gates[number], url)
                    case "router", bool(lives):
                        if lives != router.gate.is_open:
                            (router.start if lives else router.die)()
                            replicas.changed()
                    case "trouble", str(kind):
                        router.slow = 4.0 if kind == "slow" else 0.0
                        router.late = 30.0 if kind == "late" else 0.005
                        router.deaf, router.refuses = kind == "deaf", kind == "refuses"
                    case "wait", float(seconds):
                        await anyio.sleep(seconds)
            router.slow, router.late, router.deaf, router.refuses = 0.0, 0.005, False, False
            if not router.gate.is_open:
                router.start()
                replicas.changed()
            await anyio.sleep(CALM)
            assert router.urls == replicas.urls
            assert registrar.have == len(replicas.urls)
            assert [gate.outside for gate in replicas.gates] == [int(gate.is_open) for gate in replicas.gates]

    run_virtual(life, backend=backend, seed=seed)
