"""`python -m benchmarks.soak --seconds N`: jobs of `stoker generate` on real processes, with a fault every few seconds.

Whatever is killed, filled or taken, the job is begun again, and in the end each prompt has the one line that it has in
a calm run, and nothing is left behind. Prints figures; exit code 1 if anything is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from lifecycle.batch.store.lock import take
from lifecycle.errors import OutputError
from lifecycle.resources.tree import descendants
from tests.processes.trees import command_line, is_alive, is_free, kill_together

RECORDS = 4000
"""Of one job: half a minute of work without faults. A job that is done is looked at and followed by another one."""
RATE = 80
"""Prompts for each second of a job that is to last all the time; half of what can be done without faults."""
LATENCY = 0.1
"""Seconds of an answer: there is always something in flight."""
PAUSES = (0.5, 4.0)
"""Seconds between faults."""
PATIENCE = 60.0
"""Seconds in which nothing is written and nothing ends, after which the run counts as stuck."""
SAMPLE = 0.1
"""Seconds between looks."""
THEFT = 1000
"""Tries, a millisecond apart, to be on a port before the next server is."""
SERVER = Path(__file__).with_name("soak_server.py")
SETTINGS = {
    "max_attempts": 1000, "backoff_initial": 0.05, "backoff_max": 0.5, "drain_timeout": 3, "terminate_timeout": 5,
    "liveness_interval": 0.5, "liveness_timeout": 1, "max_retries": 30,
}  # fmt: skip
RESUMED = {0, 1, 2, 4, 130, 143, -signal.SIGKILL}
"""Exit codes after which a job is begun again; it is through with 0. With 1 it has given its server up, which is right
only if that was killed twice in a row before it was ready (`[exited]`): such a start is not tried a third time."""


@dataclass
class Soak:
    """One soak in a folder of its own."""

    folder: Path
    roll: random.Random
    began: float = field(default_factory=time.monotonic)
    faults: Counter[str] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    """(seconds since the beginning, KiB of the manager)."""
    ports: set[int] = field(default_factory=set)
    jobs: int = 0
    answered: int = 0
    records: int = RECORDS
    given_up: Counter[str] = field(default_factory=Counter)
    """Causes for which a run gave its server up."""
    heard: int = 0
    """Bytes of what all runs have said before the present one."""
    manager: subprocess.Popen[bytes] | None = None
    noted: int = 0
    """The manager whose end was noted last."""

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    @property
    def mark(self) -> str:
        return self.folder.name

    @property
    def output(self) -> Path:
        return self.folder / f"out-{self.jobs}.jsonl"

    @property
    def environment(self) -> dict[str, str]:
        own = {"XDG_STATE_HOME": str(self.folder / "state"), "TMPDIR": str(self.folder / "tmp"), "SOAK": self.mark}
        return {**os.environ, **own, "PYTHONPATH": str(SERVER.parents[1])}

    def start(self, output: Path, *, latency: float = LATENCY) -> None:
        self.journal.unlink(missing_ok=True)
        server = [sys.executable, str(SERVER), "--host", "{host}", "--port", "{port}", "--model", "soak"]
        words = ["generate", "in.jsonl", "--output", str(output), "--backend", "custom", "--model", "soak"]
        words += ["--command", shlex.join([*server, "--latency", str(latency)]), "--max-tokens", "6"]
        words += ["--concurrency", "16", "--journal", str(self.journal)]
        for key, value in SETTINGS.items():
            words += ["--set", f"{key}={value}"]
        with (self.folder / "said").open("ab") as said:
            self.heard = said.tell()
            self.manager = subprocess.Popen(
                [sys.executable, "-P", "-m", "lifecycle.cli", *words], cwd=self.folder, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            )  # fmt: skip

    @property
    def journal(self) -> Path:
        return self.folder / "run.journal.jsonl"

    def ended(self) -> bool:
        """Whether the run is over; then its code is noted, and the job is through if that is 0."""
        assert self.manager is not None
        code = self.manager.poll()
        if code is None or self.manager.pid == self.noted:
            return code is not None
        self.noted = self.manager.pid
        self.codes[code] += 1
        unheard = code == -signal.SIGTERM and not self.journal.exists()  # Python itself was still starting
        if code not in RESUMED and not unheard:
            self.wrong.append(f"a run ended with {code}")
        if code == 1:
            said = (self.folder / "said").read_bytes()[self.heard :].decode("utf-8", "replace")
            why = next((line.strip() for line in reversed(said.splitlines()) if "given up" in line), "no reason")
            self.given_up[why[-200:]] += 1
            if not why.endswith("[exited]"):
                self.wrong.append(f"a run gave up: {why}")
        self.port()
        return True

    def port(self) -> int | None:
        """Of the server's latest attempt; all of them are remembered."""
        found = None
        with suppress(OSError):
            for line in self.journal.read_bytes().splitlines():
                with suppress(ValueError):
                    found = json.loads(line)["port"] or found
                    self.ports |= {found} if found else set()
        return found

    def tree(self) -> list[int]:
        """Keeper, server, child of the server: as many as there are at the moment."""
        assert self.manager is not None
        for pid in descendants(self.manager.pid):
            if "keeper.py" in command_line(pid):
                return [pid, *sorted(descendants(pid))]
        return []

    def wait(self, seconds: float, done: Callable[[], bool] = lambda: False) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not done():
            assert self.manager is not None
            with suppress(OSError, StopIteration, ValueError):
                lines = Path(f"/proc/{self.manager.pid}/status").read_text().splitlines()
                self.memory.append((self.now, int(next(x for x in lines if x.startswith("VmRSS")).split()[1])))
            time.sleep(SAMPLE)

    def strike(self, spared: bool) -> None:
        """One fault, drawn by chance; the manager may be spared."""
        names = [name for name in FAULTS if not spared or name in SPARING]
        (name,) = self.roll.choices(names, [FAULTS[each][0] for each in names])
        if FAULTS[name][1](self):
            self.faults[name] += 1

    def kill(self, place: int) -> bool:
        tree = self.tree()
        if len(tree) <= place:
            return False
        kill_together(tree[place])
        return True

    def kill_manager(self, number: int = signal.SIGKILL) -> bool:
        assert self.manager is not None
        self.manager.send_signal(number)
        return True

    def kill_manager_and_keeper(self) -> bool:
        assert self.manager is not None
        kill_together(self.manager.pid, *self.tree()[:1])
        return True

    def fill_the_disk(self) -> bool:
        """No file of the manager may grow by more than a few lines: EFBIG stands for ENOSPC, which needs a disk."""
        assert self.manager is not None
        with suppress(OSError, ProcessLookupError):
            size = self.output.stat().st_size + 2000
            resource.prlimit(self.manager.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            return True
        return False

    def steal_the_port(self) -> bool:
        """Kill the server, and listen where it did before the next one does."""
        port = self.port()
        if port is None or not self.kill(1):
            return False
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            for _ in range(THEFT):
                with suppress(OSError):
                    thief.bind(("127.0.0.1", port))
                    thief.listen()
                    self.wait(self.roll.uniform(*PAUSES))
                    return True
                time.sleep(0.001)
        return False

    def steal_the_lock(self) -> bool:
        """Kill the manager, and be faster than the next one."""
        assert self.manager is not None
        self.manager.kill()
        self.manager.wait()
        folder = next(iter(self.folder.glob(f".{self.output.name}*")), None)
        if folder is not None:
            with suppress(OutputError):
                lock = take(folder, self.output)
                self.ended()
                self.start(self.output)
                self.wait(PATIENCE, lambda: self.manager is not None and self.manager.poll() is not None)
                if self.manager.poll() != 2:
                    self.wrong.append(f"a run beside one that holds the lock ended with {self.manager.poll()}")
                self.manager.kill()
                lock.free()
                return True
        return False

    def look_at_the_job(self, calm: dict[int, Any]) -> None:
        lines = [json.loads(line) for line in self.output.read_text().splitlines()]
        numbers = Counter(line["number"] for line in lines)
        twice, missing = [n for n, times in numbers.items() if times > 1], calm.keys() - numbers.keys()
        other = [line["number"] for line in lines if line != calm.get(line["number"])]
        self.answered += len(numbers) - len(other)
        for what, which in (("twice", twice), ("missing", missing), ("other than in a calm run", other)):
            if which:
                self.wrong.append(f"job {self.jobs}: {len(which)} lines are {what}, such as {sorted(which)[:3]}")

    def left(self) -> dict[str, Sequence[object]]:
        """What is left behind, by kind."""
        mark = f"SOAK={self.mark}".encode()
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*") if mark in _read(path / "environ")]
        return {
            "processes": [pid for pid in pids if is_alive(pid) and pid != os.getpid()],
            "ports and leases held": [port for port in self.ports if not is_free(port)],
            "records of servers": list((self.folder / "state").rglob("servers/*.json")),
            "files in /dev/shm": list(Path("/dev/shm").glob(f"{self.mark}-*")),
            "temporary files": list((self.folder / "tmp").iterdir()),
            "locks held": [path for path in self.folder.glob(".out-*") if path.is_dir() and not _can_lock(path)],
        }

    def peak(self, first: float, last: float) -> float:
        """MiB, from one share of the time to another."""
        end = self.memory[-1][0] if self.memory else 0.0
        return max((size for at, size in self.memory if first * end <= at <= last * end), default=0) / 1024


FAULTS: dict[str, tuple[float, Callable[[Soak], bool]]] = {
    "the keeper is killed": (2, lambda soak: soak.kill(0)),
    "the server is killed": (3, lambda soak: soak.kill(1)),
    "a child of the server is killed": (2, lambda soak: soak.kill(2)),
    "the manager is killed": (2, Soak.kill_manager),
    "the manager and the keeper are killed": (2, Soak.kill_manager_and_keeper),
    "the manager is told to end": (1, lambda soak: soak.kill_manager(signal.SIGTERM)),
    "no room on the disk": (1, Soak.fill_the_disk),
    "somebody listens on the port": (2, Soak.steal_the_port),
    "somebody else has the lock": (1, Soak.steal_the_lock),
}


SPARING = {
    "the keeper is killed", "the server is killed", "a child of the server is killed", "somebody listens on the port",
}  # fmt: skip
"""Faults that a manager lives through."""


def _read(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""


def _can_lock(folder: Path) -> bool:
    try:
        take(folder, folder).free()
    except OutputError:
        return False
    return True


@contextmanager
def prepared(seed: int, records: int) -> Iterator[Soak]:
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        with (folder / "in.jsonl").open("w") as lines:
            for number in range(records):
                lines.write(json.dumps({"prompt": f"Say {number}", "number": number}) + "\n")
        soak = Soak(folder, random.Random(seed), records=records)
        try:
            yield soak
        finally:
            if soak.manager is not None:
                soak.manager.kill()
                soak.manager.wait()


def to_its_end(soak: Soak, output: Path, *, latency: float) -> bool:
    """Run a job to its end without faults; it may have to be begun again after the last one."""
    for _ in range(5):
        if soak.manager is None:
            soak.start(output, latency=latency)
        size, since = -1, time.monotonic()
        while not soak.ended():
            now = output.stat().st_size if output.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            if time.monotonic() - since > PATIENCE:
                soak.wrong.append(f"job {soak.jobs} is stuck")
                return False
            soak.wait(SAMPLE)
        assert soak.manager is not None
        code, soak.manager = soak.manager.returncode, None
        if code == 0:
            return True
    soak.wrong.append(f"job {soak.jobs} does not come to its end")
    return False


def run(seconds: float, seed: int, spared: bool) -> Soak:
    """`spared`: one manager works on one job all the time, so that its memory says something."""
    with prepared(seed, int(seconds * RATE) if spared else RECORDS) as soak:
        if not to_its_end(soak, soak.folder / "calm.jsonl", latency=0.0):
            return soak
        calm = {line["number"]: line for line in map(json.loads, (soak.folder / "calm.jsonl").read_text().splitlines())}
        soak.began, soak.memory, soak.codes = time.monotonic(), [], Counter()
        while soak.now < seconds and not soak.wrong:
            if soak.manager is None:
                soak.start(soak.output)
            soak.wait(soak.roll.uniform(*PAUSES), soak.ended)
            if not soak.ended():
                soak.strike(spared)
                continue
            assert soak.manager is not None
            code, soak.manager = soak.manager.returncode, None
            if code == 0:
                soak.look_at_the_job(calm)
                soak.output.unlink()
                soak.jobs += 1
        if to_its_end(soak, soak.output, latency=LATENCY):
            soak.look_at_the_job(calm)
        soak.wrong += [f"{len(left)} {kind}, such as {left[0]}" for kind, left in soak.left().items() if left]
        said = (soak.folder / "said").read_text(errors="replace")
        if "Traceback" in said:
            soak.wrong.append(f"a traceback: {said[said.index('Traceback'):][:2000]}")
        if soak.wrong:
            soak.wrong.append(f"the last words: {said[-1500:]}")
        return soak


def main() -> int:
    parser = argparse.ArgumentParser(description="Jobs on real processes with a fault every few seconds.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="of the faults; their moments differ all the same")
    parser.add_argument("--spare-manager", action="store_true", help="one manager for all the time")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    print(f"soak of {args.seconds:g} s, seed {seed}", flush=True)
    soak = run(args.seconds, seed, args.spare_manager)
    first, last = soak.peak(0, 0.25), soak.peak(0.75, 1)
    figures = [
        Figure("jobs through", soak.jobs + 1, "", 1, at_least=True),
        Figure("prompts answered exactly once", soak.answered, "", (soak.jobs + 1) * soak.records, at_least=True),
        Figure("faults", soak.faults.total(), ""),
        *(Figure(f"- {name}", count, "") for name, count in sorted(soak.faults.items())),
        *(Figure(f"runs that ended with {code}", count, "") for code, count in sorted(soak.codes.items())),
        Figure("peak memory of the manager, first quarter", first, "MiB"),
        Figure("peak memory of the manager, last quarter", last, "MiB", 1.15 * first + 4),
        *(Figure(f"given up: {why}", count, "") for why, count in soak.given_up.items()),
        Figure("ports used", len(soak.ports), ""),
        Figure("things wrong or left behind", len(soak.wrong), "", 0),
    ]
    for figure in figures:
        print(f"{figure.value:10,.5g} {figure.unit:3}  {figure.what}{'' if figure.holds else '  MISSED'}")
    print("\n".join(soak.wrong), file=sys.stderr)
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
