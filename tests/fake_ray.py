"""Ray as its launcher sees it: `ray start --block` and the register of a cluster's nodes, in a folder of files.

`environment` makes a folder that looks like a virtual environment with Ray in it. What a node does is in this file too:
it is the stand-in's `ray/scripts/scripts.py` and `ray/_raylet.py`. Standard library only.

The variable FAKE_RAY names the register: each node has a file there, and is alive as long as its process is. A file
called `port-in-use` makes the next node fail as one whose port is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def environment(folder: Path, version: str = "2.60.0", *, wrapper: bool = False) -> Path:
    """A folder with `bin/python` and a package called ray. `wrapper`: the interpreter is the child of a shell."""
    lib = folder / "env" / "lib" / "python3.11" / "site-packages"
    (lib / "ray" / "scripts").mkdir(parents=True)
    for name in ("__init__.py", "scripts/__init__.py"):
        (lib / "ray" / name).touch()
    for name in ("scripts/scripts.py", "_raylet.py"):
        (lib / "ray" / name).write_text(Path(__file__).read_text(encoding="utf-8"))
    (lib / f"ray-{version}.dist-info").mkdir()
    (lib / f"ray-{version}.dist-info" / "METADATA").write_text(f"Name: ray\nVersion: {version}\n")
    python = folder / "env" / "bin" / "python"
    python.parent.mkdir()
    run = f'"{sys.executable}" "$@"'
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="{lib}"\n{run if wrapper else "exec " + run}\n')
    python.chmod(0o755)
    return python


def register() -> Path:
    return Path(os.environ["FAKE_RAY"])


class GcsClient:
    """The part of `ray._raylet.GcsClient` that is used."""

    def __init__(self, address: str) -> None:
        pass

    def get_all_node_info(self, timeout: float) -> dict[str, Any]:
        nodes = [json.loads(path.read_text()) for path in sorted(register().glob("node-*"))]
        return {
            str(number): SimpleNamespace(
                node_manager_address=node["address"], node_manager_port=node["port"],
                state=0 if lives(node["pid"]) else 1, resources_total={"GPU": node["gpus"]},
            )
            for number, node in enumerate(nodes)
        }  # fmt: skip


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("command", choices=["start"])
    for name in ("--head", "--block"):
        parser.add_argument(name, action="store_true")
    for name in ("--port", "--node-manager-port"):
        parser.add_argument(name, type=int)
    for name in ("--num-gpus", "--node-ip-address", "--temp-dir", "--address"):
        parser.add_argument(name)
    args, _ = parser.parse_known_args()
    here = register()
    with (here / "argv").open("a") as file:
        print(json.dumps(sys.argv), file=file)
    environ = {name: os.environ.get(name) for name in ("RAY_ADDRESS", "VLLM_HOST_IP", "HF_HUB_OFFLINE", "TMPDIR")}
    (here / f"environ-{args.node_ip_address}").write_text(json.dumps(environ))
    taken = here / "port-in-use"
    if taken.exists():
        taken.unlink()
        sys.exit(f"Failed to bind to port {args.port}: Address already in use")
    (Path(args.temp_dir) / "session").mkdir()
    number = args.port if args.head else args.node_manager_port
    with socket.create_server(("0.0.0.0", number)):
        node = {"address": args.node_ip_address, "port": number, "gpus": float(args.num_gpus or 0), "pid": os.getpid()}
        (here / f"node-{args.node_ip_address}").write_text(json.dumps(node))
        print("Ray runtime started", flush=True)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
