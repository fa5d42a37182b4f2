"""Two hundred starts, each ended by SIGKILL at a random moment: of the manager, the server or a child of its engine."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.figures import Figure
from lifecycle.errors import PortTaken
from lifecycle.resources.local import lease_dir
from lifecycle.resources.ports import hold_ports
from lifecycle.resources.tree import descendants
from tests.fake import fake_command
from tests.processes.trees import command_line, processes_named

RUNS = 200
AT_ONCE = 4
LATEST = 1.5
"""Seconds after its start at which a run is hit: from before the keeper lives to well after it is healthy."""
PATIENCE = 10.0
"""Seconds after which a process counts as a survivor. A keeper gives an orphaned tree 2 s after SIGTERM."""
CHILDREN = ["same", "session", "double", "session,ignore-term"]
VICTIMS = ("manager", "server", "child")
MANAGER = Path(__file__).parents[1] / "tests" / "processes" / "manager.py"


def measure() -> list[Figure]:
    roll = random.Random(11)
    plans = [(number, roll.uniform(0, LATEST), VICTIMS[number % 3], roll.random()) for number in range(RUNS)]
    with tempfile.TemporaryDirectory(prefix="stoker-kills-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda plan: _one(Path(folder) / str(plan[0]), *plan[1:]), plans))
        left = processes_named(folder)
    return [
        Figure(f"{RUNS} starts killed at random moments: survivors", sum(one[0] for one in found) + len(left), "", 0),
        Figure("ports or leases held", sum(one[1] for one in found), "", 0),
    ]


def _one(folder: Path, after: float, victim: str, which: float) -> tuple[int, int]:
    """(survivors, ports or leases held) of one run."""
    folder.mkdir()
    settings = {
        "backend": "custom", "model": "fake", "state_dir": str(folder), "backoff_initial": 0.1,
        "command": fake_command(child=CHILDREN, say=[str(folder)]),
    }  # fmt: skip
    with (folder / "journal").open("wb") as journal:
        manager = subprocess.Popen(
            [sys.executable, str(MANAGER), json.dumps(settings)], stdout=journal, stderr=subprocess.DEVNULL,
            cwd=MANAGER.parents[2],
        )  # fmt: skip
    time.sleep(after)
    _hit(manager.pid, victim, which)
    if victim != "manager":
        time.sleep(0.3)
        manager.terminate()
    try:
        manager.wait(30)
    except subprocess.TimeoutExpired:
        manager.kill()
        manager.wait()
    return _survivors(folder), _held(_ports(folder / "journal"))


def _hit(manager: int, victim: str, which: float) -> None:
    """SIGKILL, if there is such a process already."""
    keepers = [pid for pid in descendants(manager) if "keeper.py" in command_line(pid)]
    tree = sorted(pid for keeper in keepers for pid in descendants(keeper))
    targets: Sequence[int] = [manager] if victim == "manager" else tree[:1] if victim == "server" else tree[1:]
    if targets:
        os.kill(targets[int(which * len(targets))], signal.SIGKILL)


def _survivors(folder: Path) -> int:
    """Processes with the folder in their command line that will not go."""
    deadline = time.monotonic() + PATIENCE
    while (left := processes_named(str(folder))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return len(left)


def _ports(journal: Path) -> list[int]:
    records = [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]
    return [record["port"] for record in records if record.get("port")]


def _held(ports: Sequence[int]) -> int:
    """How many of these ports cannot be leased and held again."""
    refused = 0
    for port in set(ports):
        try:
            hold_ports("127.0.0.1", port, 1, lease_dir()).release()
        except (PortTaken, OSError):
            refused += 1
    return refused
