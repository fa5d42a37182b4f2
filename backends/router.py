"""sglang-router: one OpenAI-compatible URL before many equal servers, which it is told of while it runs.

Facts seen with sglang-router 0.3.2, and with smg 1.13.0, as the same program is called now:

- It starts without servers in a tenth of a second. It opens two ports, for HTTP and for Prometheus; both bind with
  SO_REUSEADDR.
- `POST /workers` and `DELETE /workers/{id}` are answered 202 and done in the background, within some 10 ms; a server
  that does not answer is tried again up to 20 times, and one that is known already is refused only in the log (smg:
  with 409). `GET /workers` says what it has. Requests in flight at a server that is taken out go on to their end.
- `--control-plane-api-keys` lets nobody but the holder of that key change the list, and `--api-key` lets nobody but the
  holder of the other send requests. A server that is added with a key of its own is asked with that one, whatever the
  outsider has sent; without one it is sent what the outsider has sent.
- A request that meets 408, 429, a 5xx or a broken connection is sent again, five times in all within 0.4 s. A stream
  that has begun is not: it breaks off (smg sends an `error` first, and then `[DONE]`).
- Policy `cache_aware` chooses the same server in each of the five, until the circuit breaker makes it choose another
  one (without it 671 of 800 requests failed after one of three servers had been killed and was not taken out).
- The breaker counts a 503 for want of room like a death. Of two servers that took 20 requests a second together and had
  more to do, it let 1 a second through when it opened at 10 failures for 5 s, 4.5 for 1 s, and 10 when it opened at 100
  (as many as without it).
- SIGTERM: it stops to listen at once, lets what is in flight come to its end, and exits within a second of that.
- `power_of_two` ends a start without servers.
"""

from __future__ import annotations

import importlib.util
import math
import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.engine import interpreter, shebang
from backends.flags import flags
from lifecycle.adapter import Capabilities, Command, Launch, Phase
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Rule, Verdict
from lifecycle.errors import ConfigError
from lifecycle.fleet.registry import Call, Listed, Place
from lifecycle.secrets import api_key

MODULES = {"sglang_router": "sglang-router", "smg": "smg"}
"""The names under which it is imported, and what the package is called that has it."""
KEY_VARIABLE, CONTROL_VARIABLE = "STOKER_ROUTER_KEY", "STOKER_ROUTER_CONTROL_KEY"
LAUNCH = f"""
import importlib, os, sys
sys.path[:] = filter(None, sys.path)  # not from the current folder
words, missing = sys.argv[2:], None
for name in sys.argv[1].split(","):
    try:
        router = importlib.import_module(name + ".launch_router")
        break
    except ModuleNotFoundError as error:
        missing = missing or error
else:
    raise missing
for flag, name, form in (
    ("--api-key", "{KEY_VARIABLE}", "%s"),
    ("--control-plane-api-keys", "{CONTROL_VARIABLE}", "stoker:Stoker:admin:%s"),
):
    if os.environ.get(name):
        words += [flag, form % os.environ.pop(name)]
router.launch_router(router.parse_router_args(words))
"""
"""It takes keys by its command line alone, which every user of the machine can read: so they come by the environment
and are added inside the process. Its first word names the modules that it may be, the preferred one first."""
BREAKER = {"cb-failure-threshold": 100, "cb-timeout-duration-secs": 1, "cb-success-threshold": 1}
"""How many failures in a row open it, and for how long; its own defaults are 10, 60 and 3. A server that has died is
taken out by Stoker in milliseconds, between two attempts of a request: the breaker is for those that live and answer
nothing but errors until they are found out."""
POLICIES = ("cache_aware", "round_robin", "random", "manual")
NEWER_POLICIES = (*POLICIES, "least_load", "prefix_hash", "consistent_hashing", "passthrough")
"""Those of smg; both have power_of_two besides, which cannot be used here."""
OURS = {
    "host": "host", "port": "port", "api-key": "api_key_env", "policy": "policy", "request-timeout-secs":
    "request_timeout", "shutdown-grace-period-secs": "drain_timeout", "worker-urls": "replicas",
    "prometheus-port": "the free port that it gets", "control-plane-api-keys": "nothing: Stoker makes one",
}  # fmt: skip
DEFAULTS = {
    "log-level": "warn",  # at "info" it writes two lines for each request
    "disable-health-check": True,  # who is Healthy says the registrar; a probe of 5 s takes a long prefill for a death
    **BREAKER,
    "prometheus-host": "127.0.0.1",
}


@dataclass(frozen=True)
class RouterOptions:
    """How requests are spread."""

    policy: str = "cache_aware"
    """cache_aware (where the beginning of the prompt has been seen before, unless that is much busier), round_robin,
    random, or manual (by a header); smg also has least_load, prefix_hash, consistent_hashing and passthrough."""
    module: str = ""
    """The router's Python module: sglang_router, or smg, as it is called now. Default: the first that is installed."""


class RouterAdapter:
    """A `lifecycle.fleet.registry.Routing` as well."""

    name = "router"
    capabilities = Capabilities(
        extra_ports=1,
        settings=frozenset({"python"}),
        ready_paths=("/liveness",),
        liveness_path="/liveness",
        reports_model=False,
        generates=False,
        defaults={"startup_timeout": 60.0},
    )
    options = RouterOptions
    rules = (
        Rule("router-missing", r"No module named '?(?:sglang_router|smg)\b", Verdict.HOPELESS,
             "install it in the interpreter that `python` names (or router_python): pip install sglang-router"),
        Rule("unknown-flag", r"unrecognized arguments: .*--(?:control-plane-api-keys|disable-health-check)",
             Verdict.HOPELESS, "this router is too old: pip install 'sglang-router>=0.3.2'"),
        Rule("port-taken", r"(?:Error starting router|RuntimeError): Address already in use|"
             r"failed to install Prometheus metrics exporter: FailedToCreateHTTPListener", Verdict.TRANSIENT,
             "another process took a port of the router; it is started again"),
        Rule("bad-configuration", r"Configuration error: ", Verdict.HOPELESS,
             "correct the setting that the line names (policy, engine_args)"),
    )  # fmt: skip

    def __init__(self) -> None:
        self.control_key = secrets.token_urlsafe(24)
        """For those of its paths that change the list of servers: of this process, known to nobody else."""

    def check(self, config: ServerConfig) -> None:
        """Find the program. Raises `ConfigError`."""
        if config.command or config.model:
            what = "command" if config.command else "model"
            raise ConfigError(f"{what} is set, but backend 'router' serves what its replicas serve: leave it out")
        chosen = RouterOptions(**config.options)
        policy, module = chosen.policy, chosen.module
        if module and module not in MODULES:
            raise ConfigError(f"module = {module!r} is none of {', '.join(MODULES)}")
        if policy == "power_of_two":
            raise ConfigError(
                "policy = 'power_of_two' ends a router that starts without servers, and replicas are added when they "
                "are Healthy: use cache_aware or round_robin"
            )
        known = NEWER_POLICIES if module == "smg" else POLICIES
        if policy not in known:
            newer = ", which only module = 'smg' has" if policy in NEWER_POLICIES else ""
            raise ConfigError(f"policy = {policy!r}{newer} is none of {', '.join(known)}")
        router_python(config.python)
        flags(config.engine_args, ours=OURS)

    def command(self, launch: Launch) -> Command:
        config = launch.config
        (metrics,) = launch.extra_ports
        args = {
            "host": config.host,
            "port": launch.port,
            "prometheus-port": metrics,
            "policy": RouterOptions(**config.options).policy,
            "request-timeout-secs": max(1, math.ceil(config.request_timeout)),
            "shutdown-grace-period-secs": max(1, math.ceil(config.drain_limit)),
        }
        given = {key.lstrip("-").replace("_", "-") for key in config.engine_args}
        args |= {key: value for key, value in DEFAULTS.items() if key not in given}
        modules = RouterOptions(**config.options).module or ",".join(MODULES)
        words = (*flags(args), *flags(config.engine_args, ours=OURS))
        argv = (router_python(config.python), "-c", LAUNCH, modules, *words)
        env: dict[str, str | None] = {"NO_COLOR": "1", **config.env, CONTROL_VARIABLE: self.control_key}
        env[KEY_VARIABLE] = api_key(config)
        return Command(argv, env)

    def phase(self, line: str) -> Phase | None:
        if "Starting router on" in line:
            return Phase("starting")
        return Phase("listening") if "Starting server on" in line else None

    # the list of servers: README of sglang-router 0.3.2, "Control plane"

    def listing(self) -> Call:
        return Call("GET", "/workers")

    def listed(self, body: Any) -> tuple[Listed, ...]:
        """Raises `ValueError` for what is no list of workers."""
        if not isinstance(body, dict) or not isinstance(body.get("workers"), list):
            raise ValueError(f"GET /workers gave no list of workers, but {str(body)[:200]!r}")
        return tuple(Listed(str(each["id"]), str(each["url"])) for each in body["workers"])

    def add(self, place: Place, key: str | None) -> Call:
        keyed = {"api_key": key} if key else {}
        # Without `model_id` it is "unknown", and so says /v1/models.
        return Call("POST", "/workers", {"url": place.url, "model_id": place.model, **keyed})

    def remove(self, listed: Listed) -> Call:
        return Call("DELETE", f"/workers/{listed.id}")


def router_python(given: str) -> str:
    """The interpreter that the router is installed in. Raises `ConfigError` if it cannot be found."""
    if given:
        try:
            return interpreter("", given)
        except ConfigError as error:
            raise ConfigError(f"router: {error}") from None
    if any(importlib.util.find_spec(module) is not None for module in MODULES):
        return sys.executable
    for package in MODULES.values():
        command = shutil.which(package)
        behind = shebang(Path(command)) if command else None
        if behind is not None:
            return behind
    raise ConfigError(
        f"no router is installed where Stoker is ({sys.executable}), and no command {' or '.join(MODULES.values())} "
        "is on PATH: pip install 'stoker[router]', or name the interpreter that it is installed in with --router-python"
    )


adapter = RouterAdapter()
