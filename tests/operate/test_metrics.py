"""What Prometheus is shown of servers and their requests, and what it is not."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

import anyio
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from lifecycle.errors import ConfigError, RequestRefused
from lifecycle.journal import Kind, Record
from lifecycle.operate.accounts import MOST_CAUSES, MOST_NAMES, OTHER
from lifecycle.operate.metrics import Metrics
from lifecycle.server_chart import SERVER
from lifecycle.testing import Life, run_virtual
from lifecycle.testing.strategies import lives
from tests.fleet.simulated_fleet import FleetWorld
from tests.operate.much import metrics_of_much
from tests.served import GUARD, HELLO, fake
from tests.simulation.world import World

both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
BASE_UNITS = ("_seconds", "_bytes", "_ratio", "_tokens")


def watching(world: World) -> Metrics:
    """Metrics on virtual time."""
    metrics = Metrics(clock=anyio.current_time)
    world.server.journal.listen(metrics)
    metrics.watch(world.server)
    return metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    found: float | None = metrics.registry.get_sample_value(name, labels)
    return found


def samples(metrics: Metrics, name: str) -> Mapping[tuple[str, ...], float]:
    """The samples of one name, by the values of their labels without the server's and the chart's."""
    return {
        tuple(text for label, text in sorted(each.labels.items()) if label not in ("server", "chart")): each.value
        for family in metrics.registry.collect()
        for each in family.samples
        if each.name == name
    }


@both
def test_a_life_with_a_crash_is_counted_state_by_state(backend: str) -> None:
    async def body() -> None:
        world = World(Life(ready=2.0, exits=5.0, code=-9), Life(ready=1.0))
        metrics = watching(world)
        who = {"server": "simulated", "chart": "server"}
        async with world.server as server:
            await server.driver.wait("Backoff")
            await server.healthy()
            await anyio.sleep(10.0)
            state = samples(metrics, "stoker_state")
            assert state == {(name.name,): float(name.name == "Healthy") for name in SERVER.states}
            spent = samples(metrics, "stoker_state_seconds_total")
            assert spent["Healthy",] == pytest.approx(13.0, abs=0.2)
            assert spent["Backoff",] == pytest.approx(1.0, abs=0.2)
            await anyio.sleep(1.0)
            assert samples(metrics, "stoker_state_seconds_total")["Healthy",] == pytest.approx(spent["Healthy",] + 1.0)
        assert value(metrics, "stoker_state", **who, stoker_state="Stopped") == 1.0
        assert value(metrics, "stoker_attempts_total", **who) == 2.0
        assert samples(metrics, "stoker_failures_total") == {("exited",): 1.0}
        assert samples(metrics, "stoker_transitions_total")["Draining", "Healthy", "Exited"] == 1.0
        assert value(metrics, "stoker_start_duration_seconds_count", server="simulated") == 2.0
        assert value(metrics, "stoker_start_duration_seconds_sum", server="simulated") == pytest.approx(3.0, abs=0.2)
        after = samples(metrics, "stoker_state_seconds_total")
        await anyio.sleep(100.0)
        assert samples(metrics, "stoker_state_seconds_total") == after, "time after the end is nobody's"

    run_virtual(body, backend=backend)


@given(
    several=st.lists(lives(), min_size=1, max_size=3),
    wait=st.floats(0.01, 30.0),
    loop=st.sampled_from(["asyncio", "trio"]),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_one_state_is_lit_and_all_time_and_every_transition_is_in_the_account(
    several: list[Life], wait: float, loop: str
) -> None:
    async def body() -> None:
        world = World(*several)
        metrics = watching(world)
        began = anyio.current_time()
        async with world.server:
            await anyio.sleep(wait)
            lit = [name for name, on in samples(metrics, "stoker_state").items() if on]
            assert lit == [(world.server.state,)]
            over = world.server.state in SERVER.final
            spent = sum(samples(metrics, "stoker_state_seconds_total").values())
            assert over or spent == pytest.approx(anyio.current_time() - began)
        moves = [record for record in world.records if record.kind is Kind.TRANSITION]
        assert sum(samples(metrics, "stoker_transitions_total").values()) == len(moves)
        assert value(metrics, "stoker_attempts_total", server="simulated", chart="server") == world.server.starts

    run_virtual(body, backend=loop)


@both
def test_requests_are_counted_by_what_became_of_them_and_seen_while_they_last(backend: str) -> None:
    async def body() -> None:
        world = World(Life(ready=1.0, exits=4.0, reply=5.0), Life(ready=1.0, reply=2.0))
        metrics = watching(world)
        async with world.server as server, anyio.create_task_group() as group:
            group.start_soon(server.chat, {"messages": []})
            await anyio.sleep(0.5)
            assert value(metrics, "stoker_requests_waiting", server="simulated") == 1.0
            assert value(metrics, "stoker_requests_in_flight", server="simulated") == 0.0
            await anyio.sleep(1.5)
            assert value(metrics, "stoker_requests_waiting", server="simulated") == 0.0
            assert value(metrics, "stoker_requests_in_flight", server="simulated") == 1.0
        assert samples(metrics, "stoker_requests_total") == {("answered", "/v1/chat/completions"): 1.0}
        assert value(metrics, "stoker_request_attempts_total", server="simulated") == 2.0
        assert value(metrics, "stoker_request_duration_seconds_count", server="simulated") == 1.0
        slow = value(metrics, "stoker_request_duration_seconds_sum", server="simulated")
        assert slow is not None
        assert slow > 5.0, "with its wait and both its attempts"

    run_virtual(body, backend=backend)


@both
def test_a_fleet_says_how_many_replicas_serve_are_away_and_are_lost(backend: str) -> None:
    async def body() -> None:
        bad = Life(ready=None, exits=0.5, code=2, says=((0.1, "error: unrecognized arguments: --x"),))
        metrics = Metrics(clock=anyio.current_time)
        world = FleetWorld([bad, Life(ready=1.0), Life(ready=3.0)], replicas=3, min_healthy=1)
        for each in (world.fleet.journal, *(slot.replica.journal for slot in world.fleet.slots)):  # type: ignore[attr-defined]
            each.listen(metrics)
        metrics.watch(world.fleet)

        def replicas() -> Mapping[tuple[str, ...], float]:
            return samples(metrics, "stoker_fleet_replicas")

        async with world.fleet:
            await anyio.sleep(0.2)
            assert replicas() == {("healthy",): 0.0, ("away",): 3.0, ("lost",): 0.0}
            await anyio.sleep(1.8)
            assert replicas() == {("healthy",): 1.0, ("away",): 1.0, ("lost",): 1.0}
            await world.fleet.complete({"prompt": "1"})
            await anyio.sleep(3.0)
            assert replicas() == {("healthy",): 2.0, ("away",): 0.0, ("lost",): 1.0}
        assert replicas()["healthy",] == 0.0
        assert value(metrics, "stoker_fleet_min_healthy", server="simulated") == 1.0
        servers = {s.labels["server"] for f in metrics.registry.collect() for s in f.samples if "server" in s.labels}
        assert servers == {"simulated", "simulated-0", "simulated-1", "simulated-2"}
        assert value(metrics, "stoker_requests_waiting", server="simulated") == 0.0

    run_virtual(body, backend=backend)


@pytest.mark.anyio
async def test_tokens_are_those_that_the_server_has_counted_and_no_text_of_anybody_is_shown(tmp_path: Path) -> None:
    metrics, secret = Metrics(), "sk-secret-0123456789"
    server = fake(tmp_path, env={"MY_TOKEN": secret})
    server.journal.listen(metrics)
    metrics.watch(server)
    async with server:
        with anyio.fail_after(GUARD):
            answer = await server.chat({**HELLO, "user": secret})
            async with server.stream({**HELLO, "stream_options": {"include_usage": True}}) as chunks:
                last = [chunk async for chunk in chunks][-1]
            with pytest.raises(RequestRefused):
                await server.request(f"/v1/no/such/path?key={secret}", {"prompt": secret})
    used = [answer["usage"], last.get("usage") or {}]
    for kind in ("prompt", "completion"):
        counted = sum(each.get(f"{kind}_tokens", 0) for each in used)
        assert value(metrics, f"stoker_{kind}_tokens_total", server="custom") == counted > 0
    assert value(metrics, "stoker_requests_total", server="custom", path=OTHER, outcome="refused") == 1.0
    assert value(metrics, "stoker_request_first_chunk_seconds_count", server="custom") == 1.0
    shown = generate_latest(metrics.registry).decode()
    assert secret not in shown
    assert "hello" not in shown
    assert str(tmp_path) not in shown


def families(text: str) -> list[Metric]:
    return list(parse(text))


def test_names_follow_the_conventions_and_both_formats_can_be_parsed() -> None:
    metrics = metrics_of_much()
    found = families(generate_latest(metrics.registry).decode())
    open_text = openmetrics(metrics.registry).decode()  # type: ignore[no-untyped-call]
    assert {each.name for each in parse_openmetrics(open_text)} <= {  # type: ignore[no-untyped-call]
        each.name for each in found
    }
    assert len(found) > 15
    for family in found:
        if family.name.endswith("_created"):  # the library's own
            continue
        assert re.fullmatch(r"stoker(_[a-z]+)+", family.name), family.name
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            counted = sample.name.endswith(("_total", "_bucket", "_count", "_sum"))
            assert counted == (family.type in ("counter", "histogram")), sample.name
            assert set(sample.labels) <= {
                "server", "chart", "state", "stoker_state", "before", "after", "event", "cause", "kind", "condition",
                "path", "outcome", "le",
            }  # fmt: skip
            assert sample.value >= 0.0
        if "duration" in family.name or "timestamp" in family.name:
            assert family.name.endswith(BASE_UNITS)


def numbered(count: int) -> Iterable[Record]:
    for number in range(count):
        who, cause = f"server-{number}", {"diagnosis": {"cause": f"cause-{number}"}}
        yield Record(1, 1.0, who, 0, Kind.BEGIN, after="Idle", detail={"chart": "server", "facts": {}})
        yield Record(2, 2.0, who, 1, Kind.TRANSITION, "Exited", "Idle", "Failed", cause)


def test_names_and_causes_without_end_do_not_grow_without_end() -> None:
    few, many = Metrics(), Metrics()
    for metrics, count in ((few, MOST_NAMES), (many, 3 * MOST_NAMES)):
        for record in numbered(count):
            metrics(record)
    size = len(generate_latest(few.registry))
    assert len(generate_latest(many.registry)) < 1.01 * size
    assert sum(samples(many, "stoker_attempts_total").values()) > 0
    failures = [s for f in many.registry.collect() for s in f.samples if s.name == "stoker_failures_total"]
    assert len({each.labels["cause"] for each in failures}) == MOST_CAUSES + 1
    assert sum(each.value for each in failures) == 3 * MOST_NAMES, "none is lost"


def test_a_server_that_lives_again_under_its_name_goes_on_counting() -> None:
    metrics = Metrics()
    for _ in range(2):
        for record in numbered(1):
            metrics(record)
    assert value(metrics, "stoker_attempts_total", server="server-0", chart="server") == 2.0


def test_they_are_served_on_loopback_until_the_end_and_a_port_that_is_taken_is_named() -> None:
    metrics = metrics_of_much()
    with metrics.served(0) as url:
        answer = httpx.get(url, trust_env=False)
        assert "stoker_transitions_total" in answer.text
        port = httpx.URL(url).port
        assert port is not None
        assert httpx.URL(url).host == "127.0.0.1"
        with pytest.raises(ConfigError, match=rf"metrics = {port}.*choose another port"), metrics.served(port):
            pass
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))
