"""A Ray cluster: the connection to it, and places on it. The only module of the driver that imports Ray.

Calls that block run in threads, the others are awaited: on asyncio alone, since Ray's references know no other loop.
"""

from __future__ import annotations

import functools
import logging
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import anyio
import sniffio

from lifecycle.adapter import EngineLoad
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.errors import ConfigError
from lifecycle.ray.actor import Hosted, News, Welcome, own_version
from lifecycle.ray.missing import Stock, missing
from lifecycle.ray.place import NoPlace, PlaceLost
from lifecycle.ray.settings import address_of
from lifecycle.resources.probes import HttpProber

T = TypeVar("T")
CONNECT_TIMEOUT = 60.0
"""Seconds for Ray to connect; by itself it tries for more than two minutes where nobody answers (seen with 2.60)."""
REACH_TIMEOUT = 10.0
"""Seconds to find out whether anything listens there."""
POLL = 10.0
"""Seconds that an actor is asked to wait for news."""
SILENCE = 60.0
"""Seconds without an answer after which an actor counts as lost; Ray takes up to half a minute for a dead node."""
LOOK = 2.0
"""Seconds between two looks at what is missing."""
END_TIMEOUT = 8.0
"""Seconds for an actor to end its server before it is killed; a guard on its node then does the rest."""
NODE_ID = "ray.io/node-id"
"""The label that every node has (Ray's documentation, "Use labels to control scheduling"; 2.48 is the first version
whose placement groups heed labels)."""
NO_MODULE = "No module named 'lifecycle"


class RayCluster:
    """Implements `lifecycle.ray.place.Cluster`.

    Args:
        address: HOST:PORT of the head.

    Raises `ConfigError` if that is none, or Ray is not installed.
    """

    def __init__(self, address: str) -> None:
        self._host, self._port = address_of(address)
        self._address = address
        try:
            import ray
        except ImportError as error:
            raise ConfigError(f"ray = {address!r} needs Ray, which cannot be imported ({error}): install stoker[ray], "
                              "the same version of Ray as the cluster's") from None  # fmt: skip
        self._ray: Any = ray
        self._inside = 0
        self._ours = False
        self._turn = anyio.Lock()
        self._threads: anyio.CapacityLimiter | None = None

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """See `lifecycle.ray.place.Cluster`. A connection that the program had already is used, and left as it is."""
        if sniffio.current_async_library() != "asyncio":
            loop = sniffio.current_async_library()
            why = f"a fleet on Ray needs asyncio, and this program runs on {loop}"
            raise NoPlace(_hopeless("event-loop", why, "run it on asyncio, which is anyio's default"))
        async with self._turn:
            if self._inside == 0:
                await self._connect()
            self._inside += 1
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                async with self._turn:
                    self._inside -= 1
                    if self._inside == 0 and self._ours:
                        await self._blocking(self._ray.shutdown)

    async def stock(self) -> Stock:
        """What it has now. Only inside of `joined`."""
        return await self._blocking(lambda: _stock(self._ray))

    async def _connect(self) -> None:
        if self._ray.is_initialized():
            self._ours = False
            known = self._ray.get_runtime_context().gcs_address
            if known.rpartition(":")[2] != str(self._port):
                why = f"this program is connected to the Ray cluster {known}, and ray = {self._address!r} is another"
                raise NoPlace(_hopeless("ray-address", why, "name that one, or call ray.shutdown() before"))
            return
        await self._reach()
        begin = functools.partial(
            self._ray.init, address=self._address, log_to_driver=False, logging_level=logging.ERROR,
        )  # fmt: skip
        logging.getLogger("ray").setLevel(logging.ERROR)  # it warns that a thread cannot handle signals: we do
        try:
            with _own_sigterm(), anyio.fail_after(CONNECT_TIMEOUT):
                await self._blocking(begin)
        except TimeoutError:
            why = f"what listens there has not let Ray connect within {CONNECT_TIMEOUT:g} s"
            raise NoPlace(self._no_cluster(why)) from None
        except Exception as error:
            raise NoPlace(self._no_cluster(_first_line(error))) from None
        self._ours = True

    async def _reach(self) -> None:
        try:
            with anyio.fail_after(REACH_TIMEOUT):
                stream = await anyio.connect_tcp(self._host, self._port)
            await stream.aclose()
        except (OSError, TimeoutError) as error:
            raise NoPlace(self._no_cluster(f"nobody answers there ({_first_line(error)})")) from None

    def _no_cluster(self, why: str) -> Diagnosis:
        return _hopeless(
            "ray-address", f"no connection to the Ray cluster at {self._address}: {why}",
            "give the address that `ray start --head` has printed, run this on a node of that cluster, with the "
            "versions of Ray and Python that it has",
        )  # fmt: skip

    async def take(
        self, needs: Mapping[str, float], timeout: float, waiting: Callable[[str], None], avoid: Collection[str] = ()
    ) -> RayPlace:
        """See `lifecycle.ray.place.Cluster`: a placement group of one bundle, so that all of it is on one node."""
        place = await self._blocking(lambda: RayPlace(self, needs, avoid), abandon=False)
        try:
            with anyio.move_on_after(timeout):
                async with anyio.create_task_group() as group:
                    group.start_soon(self._tell, place, needs, waiting)
                    if avoid:
                        await self._check_others(place, needs, avoid)
                    welcome = await place.welcome()
                    group.cancel_scope.cancel()
                _check(welcome)
                place.node, place.node_id, place.pid = welcome.address, welcome.node_id, welcome.pid
                return place
            raise NoPlace(await self._overdue(place, needs, timeout))
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await place.release()
            if isinstance(error, BaseExceptionGroup):  # of one task
                raise error.exceptions[0] from None
            raise

    async def _check_others(self, place: RayPlace, needs: Mapping[str, float], avoid: Collection[str]) -> None:
        """Raises `NoPlace` if no other node could ever do."""
        stock = await self._blocking(place.stock)
        if not stock.could_do(needs):
            why = f"no node of the cluster but {len(avoid)} where it has failed could have {_words(needs)}"
            raise NoPlace(_hopeless("no-other-node", why, "add nodes to the cluster"))

    async def _tell(self, place: RayPlace, needs: Mapping[str, float], waiting: Callable[[str], None]) -> None:
        said = ""
        while True:
            await anyio.sleep(LOOK)
            text = await self._what_is_missing(place, needs) or "waiting for the actor to start"
            if text != said:
                waiting(text)
                said = text

    async def _what_is_missing(self, place: RayPlace, needs: Mapping[str, float]) -> str:
        """Nothing if the cluster has given all of it."""
        stock = await self._blocking(place.stock)
        return "" if stock.group.startswith("CREATED") else missing(needs, stock)

    async def _overdue(self, place: RayPlace, needs: Mapping[str, float], timeout: float) -> Diagnosis:
        after = f"not placed after placement_timeout = {timeout:g} s"
        lacks = await self._what_is_missing(place, needs)
        if lacks:
            return _hopeless(
                "no-resources", f"{after}: {lacks}", "lower replicas or what each of them needs, add nodes to the "
                "cluster, or raise placement_timeout to wait for others to end",
            )  # fmt: skip
        return Diagnosis(
            "actor-start", f"{after}: the cluster has given {_words(needs)}, and the actor's process has not answered",
            advice="look at the raylet's log on its nodes, and raise placement_timeout if they are slow",
        )  # fmt: skip

    async def _blocking(self, function: Callable[[], T], *, abandon: bool = True) -> T:
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(16)
        return await anyio.to_thread.run_sync(function, abandon_on_cancel=abandon, limiter=self._threads)


class RayPlace:
    """Implements `lifecycle.ray.place.Place`. Made in a thread: these calls block."""

    def __init__(self, cluster: RayCluster, needs: Mapping[str, float], avoid: Collection[str] = ()) -> None:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ray = self._ray = cluster._ray
        self._blocking = cluster._blocking
        self.node, self.node_id, self.pid = "", "", 0
        self._avoid = frozenset(avoid)
        elsewhere = [{NODE_ID: f"!in({','.join(sorted(avoid))})"}] if avoid else None
        self._group = placement_group(  # gone with its job, like the actor
            [dict(needs)], strategy="STRICT_PACK", bundle_label_selector=elsewhere
        )
        others = {name: amount for name, amount in needs.items() if name not in ("CPU", "GPU")}
        self._actor: Any = (
            ray.remote(Hosted)
            .options(
                num_cpus=needs.get("CPU", 0),
                num_gpus=needs.get("GPU", 0),
                resources=others,
                max_restarts=0,  # the slot places it anew: elsewhere, with a server that nobody knows
                scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group=self._group),
            )
            .remote()
        )

    async def welcome(self) -> Welcome:
        """Returns when the actor lives. Raises `NoPlace` if it never will."""
        try:
            return await self._actor.welcome.remote()  # type: ignore[no-any-return]
        except self._ray.exceptions.RayError as error:
            if NO_MODULE in str(error):
                why = f"the node's Python has no Stoker: {_last_line(error)}"
                advice = "install the same version of Stoker beside Ray on every node"
                raise NoPlace(_hopeless("no-stoker", why, advice)) from None
            raise NoPlace(Diagnosis("actor-start", f"the actor could not be started: {_last_line(error)}")) from None

    async def start(self, config: ServerConfig, variables: Mapping[str, str], key: str | None) -> str:
        """See `lifecycle.ray.place.Place`."""
        return await self._asked(self._actor.start.remote(config, dict(variables), key))

    async def news(self, after: int) -> list[News]:
        """See `lifecycle.ray.place.Place`."""
        return await self._asked(self._actor.news.remote(after, POLL))

    async def stop(self, within: float | None) -> None:
        """See `lifecycle.ray.place.Place`."""
        await self._asked(self._actor.stop.remote(within))

    async def kill(self) -> None:
        """See `lifecycle.ray.place.Place`."""
        await self._asked(self._actor.kill.remote())

    async def load(self) -> EngineLoad | None:
        """See `lifecycle.ray.place.Place`."""
        return await self._asked(self._actor.load.remote())

    async def answers(self, url: str) -> bool:
        """See `lifecycle.ray.place.Place`."""
        prober = HttpProber(url)
        try:
            return await prober.listening()
        finally:
            await prober.aclose()

    async def _asked(self, answer: Awaitable[T]) -> T:
        try:
            with anyio.fail_after(SILENCE):
                return await answer
        except TimeoutError:
            raise PlaceLost(f"the actor on {self.node} has said nothing for {SILENCE:g} s") from None
        except self._ray.exceptions.RayError as error:
            raise PlaceLost(_last_line(error)) from None

    async def release(self) -> None:
        """See `lifecycle.ray.place.Place`."""
        if self.pid:
            with anyio.move_on_after(END_TIMEOUT), suppress(self._ray.exceptions.RayError):
                await self._actor.end.remote()
        with suppress(self._ray.exceptions.RayError, RuntimeError):
            await self._blocking(self._give_back)

    def _give_back(self) -> None:
        from ray.util.placement_group import remove_placement_group

        self._ray.kill(self._actor, no_restart=True)
        remove_placement_group(self._group)

    def stock(self) -> Stock:
        """What the cluster has now. Blocks."""
        from ray.util.placement_group import placement_group_table

        group = placement_group_table(self._group)
        state = (group.get("stats") or {}).get("scheduling_state")
        said = " ".join(filter(None, (group.get("state", "UNKNOWN"), f"({state})" if state else "")))
        return _stock(self._ray, self._avoid, said)


def _stock(ray: Any, avoid: Collection[str] = (), group: str = "") -> Stock:
    """What the cluster has now, but for some nodes. Blocks."""
    nodes = tuple(node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in avoid)
    return Stock(ray.cluster_resources(), ray.available_resources(), nodes, group)


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """SIGTERM means afterwards what it meant before. Ray takes it for a crash of its own: it prints a stack, and three
    seconds later an alarm aborts the process, in the middle of its drain (ray 2.60, absl's failure signal handler)."""
    alarm = signal.getitimer(signal.ITIMER_REAL)[0]
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # nobody else may say what signals do
            handler = signal.getsignal(signal.SIGTERM)
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)
                signal.siginterrupt(signal.SIGTERM, False)
            if not alarm:  # SIGTERM came meanwhile
                signal.alarm(0)


def _check(welcome: Welcome) -> None:
    """Raises `NoPlace` if the node has another version of Stoker than this driver."""
    mine = own_version()
    if welcome.stoker != mine:
        why = f"node {welcome.address} ({welcome.python}) has Stoker {welcome.stoker}, and this driver has {mine}"
        raise NoPlace(_hopeless("other-stoker", why, "install the same version on all nodes"))


def _hopeless(cause: str, summary: str, advice: str) -> Diagnosis:
    return Diagnosis(cause, summary, Verdict.HOPELESS, advice)


def _words(needs: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in needs.items())


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _last_line(error: BaseException) -> str:
    """Of a remote traceback, which is many lines, the words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
