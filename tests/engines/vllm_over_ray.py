"""What vLLM does over Ray, without vLLM, which refuses Ray on a CPU: attaches itself to the cluster that RAY_ADDRESS
names, has one worker placed for each GPU, and then serves its API. Each answer tells what the workers' environment is.

`environment` makes a folder that looks like a virtual environment with vLLM in it, on top of one that has Ray. This
file is the stand-in's `vllm/entrypoints/cli/main.py` too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

OPTIONS = Path(__file__).parent / "options" / "vllm-0.32.0.json"
PARSER = f"""
import argparse, json
from pathlib import Path

def make_arg_parser(parser):
    for option in json.loads(Path({str(OPTIONS)!r}).read_text()):
        names = option["names"]
        if not names:
            parser.add_argument(option["dest"], nargs=option["nargs"])
        elif option["kind"] == "flag":
            parser.add_argument(*names, dest=option["dest"], action="store_true")
        else:
            parser.add_argument(*names, dest=option["dest"], nargs=option["nargs"])
    return parser
"""
WORKERS: list[Any] = []
"""Those that are placed; they live as long as somebody knows them."""
TOLD = ("VLLM_HOST_IP", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def environment(folder: Path, ray: Path) -> Path:
    """A folder with `bin/python`, which has Ray from the interpreter `ray`, and a package called vllm."""
    lib = folder / "env" / "lib" / "python3.11" / "site-packages"
    for package in ("utils", "entrypoints/common", "entrypoints/cli"):
        (lib / "vllm" / package).mkdir(parents=True)
    for package in (".", "utils", "entrypoints", "entrypoints/common", "entrypoints/cli"):
        (lib / "vllm" / package / "__init__.py").touch()
    (lib / "vllm/utils/argparse_utils.py").write_text("from argparse import ArgumentParser as FlexibleArgumentParser\n")
    (lib / "vllm/entrypoints/common/cli_args.py").write_text(PARSER)
    (lib / "vllm/entrypoints/cli/main.py").write_text(Path(__file__).read_text(encoding="utf-8"))
    (lib / "vllm-0.32.0.dist-info").mkdir()
    (lib / "vllm-0.32.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.32.0\n")
    python = folder / "env" / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="{lib}"\nexec "{ray}" "$@"\n')
    python.chmod(0o755)
    return python


def place(count: int) -> list[dict[str, Any]]:
    """Have `count` workers placed, each with a GPU, and ask each for its environment."""
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
    group = placement_group([{"GPU": 1.0}] * count, strategy="PACK")
    ray.get(group.ready(), timeout=60)
    copied = [name for name in os.environ.get("VLLM_RAY_EXTRA_ENV_VARS_TO_COPY", "").split(",") if name]
    environ = {name: os.environ[name] for name in copied if name in os.environ}

    @ray.remote(num_gpus=1, num_cpus=0)
    class Worker:
        def told(self) -> dict[str, Any]:
            for name, value in environ.items():
                os.environ.setdefault(name, value)
            return {**{name: os.environ.get(name) for name in TOLD}, "ray": ray.util.get_node_ip_address()}

    for at in range(count):
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=at)
        WORKERS.append(Worker.options(scheduling_strategy=where).remote())  # type: ignore[attr-defined]
    told: list[dict[str, Any]] = ray.get([worker.told.remote() for worker in WORKERS], timeout=60)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--host", "--served-model-name", "--distributed-executor-backend"):
        parser.add_argument(name)
    for name in ("--port", "--tensor-parallel-size"):
        parser.add_argument(name, type=int, default=1)
    args, _ = parser.parse_known_args()
    assert args.distributed_executor_backend == "ray"
    told = place(args.tensor_parallel_size)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            models = {"data": [{"id": args.served_model_name}]}
            self.say({"/health": {}, "/v1/models": models}.get(self.path))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.say({"choices": [{"text": json.dumps(told)}], "usage": {"completion_tokens": 1}})

        def say(self, what: Any) -> None:
            body = json.dumps(what).encode()
            self.send_response(404 if what is None else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
