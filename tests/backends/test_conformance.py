"""Each backend keeps what the kit asks of any backend."""

from __future__ import annotations

import sys
from typing import Any

from backends.custom import adapter as custom
from backends.echo import adapter as echo
from backends.endpoint import adapter as endpoint
from backends.llamacpp import adapter as llamacpp
from backends.ray import Installed
from backends.ray import adapter as ray
from backends.router import adapter as router
from backends.sglang import adapter as sglang
from backends.vllm import adapter as vllm
from lifecycle.adapter import Phase, Prepared
from lifecycle.testing.conformance import AdapterConformance
from tests.backends import test_sglang_command, test_vllm_command
from tests.fake import fake_command


class TestEcho(AdapterConformance):
    adapter = echo
    phases = {"phase: loading 3/5": Phase("loading", 3, 5)}  # noqa: RUF012


class TestCustom(AdapterConformance):
    adapter = custom
    config = {"command": fake_command(extra_port="{port1}"), "model": "fake", "ports": 1}  # noqa: RUF012


class TestEndpoint(AdapterConformance):
    adapter = endpoint
    config = {"base_url": "http://127.0.0.1:9"}  # noqa: RUF012


class TestLlamaCpp(AdapterConformance):
    adapter = llamacpp
    config = {"model": "user/repository", "binary": sys.executable}  # noqa: RUF012
    failures = {"error: invalid argument: --wrong": "unknown-flag"}  # noqa: RUF012
    phases = {"main: model loaded": Phase("loaded")}  # noqa: RUF012


class TestRouter(AdapterConformance):
    adapter = router
    config = {"python": sys.executable}  # noqa: RUF012


class TestSglang(AdapterConformance):
    adapter = sglang
    config = {"model": "me/model"}  # noqa: RUF012
    prepared = Prepared(None, test_sglang_command.engine())


class TestVllm(AdapterConformance):
    adapter = vllm
    config = {"model": "me/model"}  # noqa: RUF012
    prepared = Prepared(None, test_vllm_command.engine())


HEAD: dict[str, Any] = {
    "nodes": 2, "node_address": "127.0.0.2", "head_address": "127.0.0.2", "num_cpus": 1, "num_gpus": 0,
    "allow_exposed": True,
}  # fmt: skip


class TestRay(AdapterConformance):
    adapter = ray
    config = HEAD
    prepared = Prepared(None, Installed(sys.executable, True))
