"""Fleets on a real Ray cluster: two nodes on this machine, GPUs that are declared and not there, echo servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from lifecycle.config import load_config
from lifecycle.errors import StartFailed
from lifecycle.fleet.fleet import Fleet
from lifecycle.fleet.settings import FleetConfig
from lifecycle.journal import Record, of_chart, read_journal, replay
from lifecycle.ray.chart import PLACEMENT
from lifecycle.ray.facts import EVENTS, PlacementFacts
from lifecycle.ray.fleet import ray_fleet
from lifecycle.ray.settings import RayConfig
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import EVENTS as SERVER_EVENTS
from lifecycle.server_facts import Facts
from tests.engines.ray_nodes import Nodes, kill
from tests.fake import DIRECT
from tests.fronts import FAKE

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray in this interpreter: pip install -e '.[test,ray]'"),
]

GUARD = 120.0
"""Seconds after which a wait that should have ended long ago fails the test."""
SECRET = "a-key-that-nobody-may-read"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """A head and one node, with 2 CPUs and 2 GPUs each."""
    nodes = Nodes()
    try:
        nodes.head(cpus=2, gpus=2)
        nodes.add(cpus=2, gpus=2)
        yield nodes
    finally:
        nodes.end()


def until(holds: Callable[[], Any], what: str) -> Any:
    """Look again and again, since what other processes do is no event here."""
    deadline = time.monotonic() + GUARD
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not seen: {what}"
        time.sleep(0.05)
    return found


class Box:
    """One job's folder, and what of it runs on the nodes."""

    def __init__(self, folder: Path, cluster: Nodes) -> None:
        self.folder = folder
        self.cluster = cluster
        self.journal = folder / "journal.jsonl"
        self._started: list[subprocess.Popen[str]] = []

    def write(self, count: int) -> None:
        lines = [json.dumps({"id": f"r{number}", "prompt": f"number {number}"}) for number in range(count)]
        (self.folder / "in.jsonl").write_text("\n".join(lines) + "\n")

    def start(self, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """`stoker generate` on the cluster."""
        more = ["--backend", "echo", "--ray", self.cluster.address, "--set", f"state_dir={self.folder / 'state'}"]
        more += ["--set", f"env={json.dumps({'STOKER_TEST_BOX': str(self.folder)})}"]
        more += ["--journal", str(self.journal), "--max-tokens", "5", *words]
        process = subprocess.Popen(
            [sys.executable, "-m", "lifecycle.cli", "generate", "in.jsonl", "--output", "out.jsonl", *more],
            cwd=self.folder, env={**os.environ, **(env or {})}, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._started.append(process)
        return process

    def records(self) -> list[Record]:
        return list(read_journal(self.journal)) if self.journal.exists() else []

    def seen(self, event: str, server: str = "") -> list[Record]:
        return [each for each in self.records() if each.event == event and each.server.startswith(server)]

    def answers(self) -> list[dict[str, Any]]:
        path = self.folder / "out.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def processes(self) -> list[psutil.Process]:
        """Servers, keepers and guards of this box."""
        found = []
        for process in psutil.process_iter():
            try:
                words, variables = process.cmdline(), process.environ()
            except psutil.Error:
                continue
            guards = any("guard.py" in word for word in words) and str(self.folder / "state") in words
            if (guards or variables.get("STOKER_TEST_BOX") == str(self.folder)) and process.pid != os.getpid():
                found.append(process)
        return found

    def is_empty(self) -> bool:
        left = [each for each in self.processes() if each.status() != psutil.STATUS_ZOMBIE]
        return not left and not list((self.folder / "state" / "servers").glob("*.json"))

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def box(tmp_path: Path, cluster: Nodes) -> Iterator[Box]:
    """Nothing that a test has started on the nodes outlives it."""
    found = Box(tmp_path, cluster)
    yield found
    found.end()
    until(found.is_empty, "the end of all servers")


def check_once(box: Box, count: int) -> None:
    """Every record has one line, with an answer in it."""
    assert Counter(line["id"] for line in box.answers()) == Counter(f"r{number}" for number in range(count))
    assert all("generations" in line for line in box.answers())


def check_journal(box: Box) -> None:
    """It replays, of the places and of the servers that were at them."""
    places = replay(of_chart(box.records(), "placement"), PLACEMENT, EVENTS, PlacementFacts)
    assert {stand.state for stand in places.values()} <= PLACEMENT.final
    assert replay(of_chart(box.records(), "server"), SERVER, SERVER_EVENTS, Facts)


def test_a_job_is_spread_over_the_nodes_and_its_variables_travel_and_its_key_is_seen_nowhere(box: Box) -> None:
    box.write(600)
    job = box.start(
        "--replicas", "4", "--set", "latency=0.2", "--concurrency", "8", "--api-key-env", "MY_SECRET",
        "--set", "replica_gpus=1", env={"HF_HUB_OFFLINE": "1", "MY_SECRET": SECRET},
    )  # fmt: skip
    launched = until(lambda: len(found := box.seen("Launched")) == 4 and found, "four servers")
    servers = [psutil.Process(record.pid) for record in launched]
    for server in servers:
        assert server.environ()["HF_HUB_OFFLINE"] == "1"
        assert len(server.environ()["CUDA_VISIBLE_DEVICES"].split(",")) == 1
        assert not any(SECRET in word for word in server.cmdline())
    raylets = Counter(psutil.Process(record.detail["actor_pid"]).ppid() for record in box.seen("Placed"))
    assert sorted(raylets.values()) == [2, 2]
    said, _ = job.communicate(timeout=GUARD)
    assert job.returncode == 0, said
    check_once(box, 600)
    check_journal(box)
    texts = [path.read_bytes() for path in box.folder.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in text for text in (said.encode(), box.cluster.logs(), *texts))


def test_requests_without_the_key_that_was_made_up_are_refused(box: Box) -> None:
    import httpx

    box.write(1000)
    job = box.start("--set", "latency=0.2", "--concurrency", "2")
    until(lambda: box.seen("BecameReady"), "a server")
    (launched,) = box.seen("Launched")
    address = box.seen("Placed")[0].detail["node"]
    url = f"http://{address}:{launched.port}/v1/completions"
    assert httpx.post(url, json={"prompt": "Hello"}, trust_env=False).status_code == 401
    job.send_signal(signal.SIGTERM)
    assert job.wait(GUARD) == 143


def test_a_lost_node_costs_no_record(box: Box, cluster: Nodes) -> None:
    doomed = cluster.add(cpus=2, doomed=2)
    try:
        box.write(800)
        job = box.start("--replicas", "2", "--set", "latency=0.2", "--concurrency", "8", "--set",
                        'ray_resources={"doomed": 1}', "--set", "request_timeout=60")  # fmt: skip
        until(lambda: len(box.seen("BecameReady")) == 2, "two servers")
        until(lambda: len(box.answers()) > 20, "some answers")
        spare = cluster.add(cpus=2, doomed=2)
        try:
            kill(doomed.raylet.pid)
            said, _ = job.communicate(timeout=GUARD)
            assert job.returncode == 0, said
            assert box.seen("Lost")
            check_once(box, 800)
            check_journal(box)
            until(box.is_empty, "the end of what was on the node")
        finally:
            cluster.remove(spare)
    finally:
        cluster.remove(doomed)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_an_actor_that_is_ended_leaves_no_process_is_placed_anew_and_costs_no_record(
    box: Box, how: signal.Signals
) -> None:
    box.write(600)
    job = box.start("--replicas", "2", "--set", "latency=0.2", "--concurrency", "8", "--set", "backoff_initial=0.1")
    until(lambda: len(box.seen("BecameReady")) == 2, "two servers")
    first = box.seen("Placed", "echo-0")[0]
    server = box.seen("Launched", "echo-0")[0]
    os.kill(first.detail["actor_pid"], how)
    until(lambda: not psutil.pid_exists(first.detail["actor_pid"]), "the end of the actor's process")
    until(lambda: not psutil.pid_exists(server.pid or 0), "the end of its server")
    until(lambda: len(box.seen("Placed", "echo-0")) == 2, "another place")
    said, _ = job.communicate(timeout=GUARD)
    assert job.returncode == 0, said
    check_once(box, 600)
    check_journal(box)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_driver_that_ends(box: Box, how: signal.Signals) -> None:
    box.write(5000)
    job = box.start("--replicas", "2", "--set", "latency=0.2", "--concurrency", "4")
    until(lambda: len(box.seen("BecameReady")) == 2, "two servers")
    assert not box.is_empty()
    job.send_signal(how)
    job.wait(GUARD)
    until(box.is_empty, "the end of all servers")
    before = len(box.answers())
    assert before < 5000


def test_a_driver_that_is_told_to_end_drains_for_longer_than_ray_lets_a_crashed_one_live(box: Box) -> None:
    box.write(50)
    job = box.start("--set", "latency=5", "--concurrency", "2")
    until(lambda: len(box.answers()) == 2, "two answers")
    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=GUARD)
    assert job.returncode == 143, said
    assert len(box.answers()) == 4


def test_too_few_gpus_are_named_within_the_deadline(box: Box) -> None:
    box.write(1)
    job = box.start("--set", "replica_gpus=4", "--set", "placement_timeout=3")
    said, _ = job.communicate(timeout=GUARD)
    assert job.returncode == 1
    assert "[no-resources]" in said
    assert "no node has so many: 4 GPU are in the cluster, 4 of them free, and at most 2 on one node" in said
    assert "the placement group is PENDING" in said


def test_gpus_that_others_hold_are_named(box: Box) -> None:
    box.write(600)
    job = box.start("--replicas", "3", "--set", "replica_gpus=2", "--set", "placement_timeout=20", "--set",
                    "latency=0.3", "--concurrency", "4")  # fmt: skip
    said, _ = job.communicate(timeout=GUARD)
    assert job.returncode == 0, said
    (refused,) = box.seen("NotPlaced")
    assert "others hold it: 4 GPU are in the cluster, 0 of them free" in refused.detail["diagnosis"]["summary"]
    check_once(box, 600)


def test_a_node_with_another_version_of_stoker_is_named(box: Box, cluster: Nodes, tmp_path: Path) -> None:
    other = tmp_path / "other" / "stoker-99.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: stoker\nVersion: 99.1\n")
    node = cluster.add(cpus=1, env={"PYTHONPATH": str(other.parent)}, other=1)
    try:
        box.write(1)
        job = box.start("--set", 'ray_resources={"other": 1}')
        said, _ = job.communicate(timeout=GUARD)
        assert job.returncode == 1
        assert "has Stoker 99.1, and this driver has" in said
        assert "[other-stoker]" in said
    finally:
        cluster.remove(node)


def test_a_node_without_stoker_is_named(box: Box, cluster: Nodes, tmp_path: Path) -> None:
    none = tmp_path / "none" / "lifecycle"
    none.mkdir(parents=True)
    (none / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'lifecycle'\")\n")
    node = cluster.add(cpus=1, env={"PYTHONPATH": str(none.parent)}, none=1)
    try:
        box.write(1)
        job = box.start("--set", 'ray_resources={"none": 1}')
        said, _ = job.communicate(timeout=GUARD)
        assert job.returncode == 1
        assert "[no-stoker]" in said
    finally:
        cluster.remove(node)


def test_what_is_wrong_with_the_configuration_on_the_node_is_told(box: Box) -> None:
    box.write(1)
    job = box.start("--set", "latency=-1")
    said, _ = job.communicate(timeout=GUARD)
    assert job.returncode == 1
    assert "on node" in said
    assert "latency = -1 must not be negative" in said


@pytest.mark.parametrize(
    ("replicas", "each", "status", "says"),
    [
        (4, 1, "ok", "2 nodes alive, room for 4 replicas of 0.1 CPU and 1 GPU, 4 of them free now"),
        (5, 1, "warning", "room for 4 replicas"),
        (1, 3, "blocker", "at most 2 on one node"),
    ],
)
def test_what_the_cluster_has_is_held_against_what_is_asked_for(
    box: Box, replicas: int, each: int, status: str, says: str
) -> None:
    words = ["--set", f"replica_gpus={each}", "--set", "ray_cpus=0.1", "--ray", box.cluster.address]
    words = ["check", "--json", "--backend", "echo", "--replicas", str(replicas), *words]
    ended = subprocess.run([sys.executable, "-m", "lifecycle.cli", *words], capture_output=True, text=True)
    row = next(row for row in map(json.loads, ended.stdout.splitlines()) if row["name"] == "ray")
    assert row["status"] == status, row
    assert says in row["found"]


def test_replicas_on_the_cluster_are_one_url_that_outlives_the_loss_of_one(box: Box) -> None:
    config = box.folder / "config.toml"
    config.write_text(
        f"""
        backend = "echo"
        ray = {json.dumps(box.cluster.address)}
        replicas = 2
        backoff_initial = 0
        state_dir = {json.dumps(str(box.folder / "state"))}
        env = {{ STOKER_TEST_BOX = {json.dumps(str(box.folder))} }}
        router_python = {json.dumps(sys.executable)}
        router_policy = "round_robin"
        [router_settings]
        env = {{ PYTHONPATH = {json.dumps(FAKE)} }}
        """
    )
    words = ["serve", "--config", str(config), "--journal", str(box.journal)]
    with subprocess.Popen(
        [sys.executable, "-m", "lifecycle.cli", *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            until(lambda: box.seen("BecameReady", "echo-0"), "a replica that serves")
            assert complete(url)
            kill(int(box.seen("Placed", "echo-0")[0].detail["actor_pid"]))
            until(lambda: len(box.seen("BecameReady", "echo-0")) == 2, "the same replica, placed anew")
            assert complete(url)
            process.terminate()
            process.communicate(timeout=GUARD)
            assert process.returncode == 0
        finally:
            process.kill()


def complete(url: str) -> Any:
    body = json.dumps({"model": "echo", "prompt": "Hello", "max_tokens": 3}).encode()
    asked = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with DIRECT.open(asked, timeout=GUARD) as answer:
        return json.loads(answer.read())["choices"]


def test_a_server_that_fails_on_one_node_is_tried_on_another_one_and_then_given_up(box: Box) -> None:
    box.write(1)
    job = box.start("--backend", "custom", "--command", "sh -c 'exit 3' {port}", "--set", "backoff_initial=0.1")
    said, _ = job.communicate(timeout=GUARD)
    assert job.returncode == 1
    assert "exited with code 3" in said
    assert len({placed.detail["node_id"] for placed in box.seen("Placed")}) == len(box.seen("Placed")) == 2
    assert len(box.seen("Launched")) == 4, "two starts that fail alike are enough on each"


@pytest.mark.anyio
async def test_a_rolling_restart_refuses_no_request(box: Box) -> None:
    settings: dict[str, Any] = {"latency": 0.02, "state_dir": str(box.folder / "state")}
    config, adapter = load_config("echo", env={"STOKER_TEST_BOX": str(box.folder)}, **settings)
    records: list[Record] = []
    fleet: Fleet = ray_fleet(
        config, RayConfig(box.cluster.address), FleetConfig(2, 2), adapter=adapter, listener=records.append
    )
    answered = 0

    async def ask() -> None:
        nonlocal answered
        while True:
            await fleet.complete({"prompt": "Hello", "max_tokens": 2})
            answered += 1

    async with fleet:
        with anyio.fail_after(GUARD):
            first = await fleet.healthy()
            async with anyio.create_task_group() as group:
                for _ in range(6):
                    group.start_soon(ask)
                await fleet.rolling_restart()
                group.cancel_scope.cancel()
            assert not set(first) & set(fleet.urls)
    assert answered > 0
    assert fleet.client.retries == 0
    assert Counter(each.server for each in records if each.event == "Placed") == {"echo-0/ray": 2, "echo-1/ray": 2}


@pytest.mark.anyio
async def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    config, adapter = load_config("echo", state_dir=str(tmp_path))
    async with ray_fleet(config, RayConfig("127.0.0.1:1"), FleetConfig(1), adapter=adapter) as fleet:
        with pytest.raises(StartFailed, match=r"no connection to the Ray cluster .*nobody answers there"):
            await fleet.healthy()
