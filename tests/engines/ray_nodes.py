"""A real Ray cluster of several nodes on this machine, for tests: ended by its own processes only."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from socket import socket

import psutil

STORE = 80 * 2**20
"""Bytes of shared memory of a node's object store, the least that Ray takes being 75 MiB."""
START = 90.0
"""Seconds for a node to be there: `ray start` takes 3 of them on an idle machine."""
END = 15.0
RAY = Path(sys.executable).with_name("ray")


def free_port() -> int:
    with closing(socket()) as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
        return number


class Node:
    """One `ray start --block`: it leads a session in which all that belongs to the node is."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def raylet(self) -> psutil.Process:
        """Its daemon, whose children are the workers."""
        (found,) = (each for each in psutil.Process(self.process.pid).children() if each.name() == "raylet")
        return found

    def started(self) -> None:
        """Return when it says that it is."""
        deadline = time.monotonic() + START
        while b"Ray runtime started." not in self._log.read_bytes():
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def end(self) -> None:
        """SIGTERM, which ends all of it; whatever is left then is killed."""
        members = [each for each in psutil.process_iter() if _session(each.pid) == self.process.pid]
        self.process.terminate()
        try:
            self.process.wait(END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for each in members:
            if each.is_running():
                each.kill()


class Nodes:
    """A cluster: its head first, then further nodes."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ry-", dir="/tmp"))  # Ray's sockets need a short path
        self.address = f"127.0.0.1:{free_port()}"
        self._all: list[Node] = []

    def head(self, *, cpus: int, gpus: int = 0) -> Node:
        port = self.address.rpartition(":")[2]
        return self._start(
            "--head", "--port", port, "--include-dashboard=false", "--temp-dir", str(self.folder / "ray"), cpus=cpus,
            gpus=gpus,
        )  # fmt: skip

    def add(
        self, *, cpus: int, gpus: int = 0, env: Mapping[str, str] | None = None, **resources: float
    ) -> Node:
        """One more node, with these resources, whether there is such hardware or not, and variables."""
        return self._start(
            "--address", self.address, "--resources", json.dumps(resources), cpus=cpus, gpus=gpus, env=env
        )

    def _start(self, *words: str, cpus: int, gpus: int, env: Mapping[str, str] | None = None) -> Node:
        log = self.folder / f"node-{len(self._all)}.log"
        more = ("--num-cpus", str(cpus), "--num-gpus", str(gpus), "--object-store-memory", str(STORE))
        with log.open("wb") as output:
            process = subprocess.Popen(
                (str(RAY), "start", *words, *more, "--disable-usage-stats", "--block"), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=self.folder,
                env={**os.environ, **(env or {})},
            )  # fmt: skip
        self._all.append(Node(process, log))
        self._all[-1].started()
        return self._all[-1]

    def remove(self, node: Node) -> None:
        """End one."""
        self._all.remove(node)
        node.end()

    def end(self) -> None:
        """All of them, the head last."""
        for node in reversed(self._all):
            node.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def logs(self) -> bytes:
        """All that Ray has written down."""
        return b"".join(path.read_bytes() for path in self.folder.rglob("*") if path.is_file())


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
