"""A node of a Ray cluster, its head or another: `ray start --block`. What runs on the cluster is a server of its own.

Facts of 2.60, seen with two nodes on one host. With `--block` every daemon stays a child of the one that started them,
which ends when one of them dies, and ends all of them on SIGTERM. `ray stop` would end every Ray process of the host,
and is never called. Head and node managers listen on every address of the host, whatever they are told, and whoever
reaches them can run code: so a cluster has a token. 127.0.0.1 is taken for "whatever address this host has";
127.0.0.2 is not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from backends.engine import find_installed, numbers, site_packages
from backends.flags import flags
from backends.nodes import interface_env, meeting_point, refuse_homeless, refuse_rank
from backends.ray_cluster import ask_cluster, missing_node, missing_nodes
from lifecycle.adapter import PRIVATE, Ask, Capabilities, Command, Launch, Phase, Prepared
from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Rule, Verdict
from lifecycle.errors import ConfigError
from lifecycle.group.plan import Member
from lifecycle.preflight import Check, ok, warning
from lifecycle.resources.cgroup import memory_limit
from lifecycle.resources.gpus import VISIBLE, gpus
from lifecycle.resources.process import private_tmpdir
from lifecycle.secrets import api_key

OLDEST = "2.40"
"""The oldest Ray whose head is known to answer `backends.ray_cluster`."""
MODULE = "ray.scripts.scripts"
"""Run with `-m`, so that the interpreter is ours to choose; the `ray` command is this module."""
LONGEST_SOCKET, SESSION = 107, "/session_2026-12-02_16-50-54_360724_4194304/sockets/plasma_store"
"""Bytes that the kernel allows for the path of a UNIX socket (unix(7)), and what Ray adds to its temporary folder."""
LONGEST_TMPDIR = LONGEST_SOCKET - len(SESSION)
ALONE = "127.0.0.2"
"""Address of a cluster of one node, which nobody else need reach."""
TAKEN_FOR_ANY = ("127.0.0.1", "::1", "localhost")
"""Addresses in whose place Ray takes another one (`resolve_ip_for_localhost`)."""
PORTS = (
    "node-manager-port", "object-manager-port", "dashboard-agent-grpc-port", "dashboard-agent-listen-port",
    "runtime-env-agent-port", "metrics-export-port",
)  # fmt: skip
"""Ports of every node. Those of the head: its own, the dashboard's, and the one of Ray Client."""
OF_HEAD = ("dashboard-port", "ray-client-server-port")
SPARE_PORTS = 16
"""Ports for workers beyond one for each CPU and two for each GPU: those of drivers and of actors without either."""
LEAST_STORE = 80 * 1024 * 1024
"""Bytes. Ray refuses less than 75 MiB (`ray_constants.OBJECT_STORE_MINIMUM_MEMORY_BYTES`)."""
MEMORY_SHARE, SHM_SHARE = 0.3, 0.8
"""Of the memory that this node may use, what goes to the object store (Ray's own default), and of the room in /dev/shm,
where it lies."""
TOKEN = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Variables of Ray's authentication."""
TOKEN_SINCE = "2.52"
"""The first Ray with tokens."""
DEFAULT_TOKEN = Path("~/.ray/auth_token")
"""Where Ray looks for a token by itself; if there is one, it asks for it."""
OURS = {
    **dict.fromkeys((*PORTS, *OF_HEAD, "worker-port-list", "min-worker-port", "max-worker-port"), "nothing: it finds "
                    "and holds them"),
    "port": "port", "head": "node_rank", "address": "head_address and head_port", "node-ip-address": "node_address",
    "num-cpus": "num_cpus", "num-gpus": "num_gpus", "object-store-memory": "object_store_memory",
    "temp-dir": "nothing: it has a private one", "block": "nothing: it is always set",
    "include-dashboard": "dashboard", "disable-usage-stats": "nothing: it is always set",
    "no-redirect-output": "nothing: its daemons write to the server's log", "log-style": "nothing",
    "log-color": "nothing",
}  # fmt: skip
"""Flags that Stoker sets itself, each with the setting that it comes from."""
PHASES = (
    ("starting", "Local node IP: "),
    ("waiting for the head", "Failed to connect to GCS"),
    ("started", "Ray runtime started"),
)
RULES = (
    Rule("socket-path-too-long", r"AF_UNIX path length cannot exceed", Verdict.HOPELESS,
         "set TMPDIR to a short path"),
    Rule("ray-token", r"[Aa]uthentication token|InvalidAuthToken|Unauthenticated|AuthenticationError", Verdict.HOPELESS,
         "the nodes of a cluster have one token: give the same api_key_file or api_key_env on each"),
    Rule("ray-versions", r"Version mismatch: The cluster was started with", Verdict.HOPELESS,
         "install the same Ray, on the same Python, on every node"),
    Rule("port-taken", r"Port \d+ is (?:not available|already in use)|Failed to bind to port|"
         r"No available ports", Verdict.TRANSIENT,
         "another process took a port of this node; it is started again on other ports"),
    Rule("ray-head-unreachable", r"Failed to get cluster ID|Timed out while waiting for GCS|Unable to connect to GCS|"
         r"Failed to connect to GCS", Verdict.TRANSIENT,
         "the head is not up, or not reached from this host at head_address and head_port"),
    *(
        Rule("ray-daemon-died", r"ERR scripts\.py:\d+ -- \w+ \[exit code=", Verdict.UNKNOWN,
             "a daemon of this node has ended: if dmesg shows nothing, it was killed by somebody", phase, general=True)
        for phase in ("start", "run")
    ),
)  # fmt: skip


@dataclass(frozen=True)
class RayOptions:
    """Settings of a node that most people touch. Any other flag goes into `engine_args`."""

    num_cpus: int | None = None
    """CPUs that Ray may give away. None: those that this process may use."""
    num_gpus: int | None = None
    """GPUs that Ray may give away. None: those that this process may use (`CUDA_VISIBLE_DEVICES`)."""
    object_store_memory: int | None = None
    """Bytes. None: 30 % of the memory that this process may use, if /dev/shm has that much room."""
    dashboard: bool = False
    """Serve Ray's dashboard on the head, on loopback."""


@dataclass(frozen=True)
class Installed:
    """The Ray that is used."""

    python: str
    has_client: bool
    """Ray Client's dependencies are there, so its server is started, wanted or not."""


class RayAdapter:
    name = "ray"
    capabilities = Capabilities(
        holds_port=False,
        ready_paths=("its nodes",),
        reports_model=False,
        generates=False,
        settings=frozenset({"nodes", "python"}),
        defaults={"startup_timeout": 300.0, "no_progress_timeout": 300.0},
    )
    options = RayOptions
    rules = RULES

    def capabilities_for(self, config: ServerConfig) -> Capabilities:
        return replace(self.capabilities, extra_ports=len(ports_of(config)) + worker_ports(config))

    def check(self, config: ServerConfig) -> None:
        """Refuse what cannot be, without looking for Ray. Raises `ConfigError`."""
        if config.command or config.model:
            raise ConfigError("backend 'ray' is a node of a cluster and serves nothing: leave out model and command")
        refuse_rank(config)
        flags(config.engine_args, ours=OURS)
        for key in ("node_address", "head_address"):
            if getattr(config, key) in TAKEN_FOR_ANY:
                raise ConfigError(
                    f"{key} = {getattr(config, key)!r}: Ray takes it for any address of this host; say which, such as "
                    f"{ALONE} for a cluster on this host alone"
                )
        if not (config.allow_exposed or has_token(config, {**os.environ, **config.env})):
            raise ConfigError(
                "a Ray node listens on every address of its host, and whoever reaches it can run code there: give the "
                "cluster a token (RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE in the environment, the same token "
                "on all nodes; for backend 'ray' api_key_file does that, too), or set allow_exposed = true"
            )

    async def prepare(self, config: ServerConfig, ask: Ask) -> Prepared:
        """Find the installed Ray. Raises `ConfigError`."""
        if config.nodes > 1:
            refuse_homeless(config)
        python, found = await find_installed("ray", config, ask, oldest=OLDEST)
        if token_env(config) and numbers(found.engine) < numbers(TOKEN_SINCE):
            raise ConfigError(
                f"ray {found.engine} of {python} has no tokens, which came with {TOKEN_SINCE}: upgrade it, or leave "
                "the key out and set allow_exposed = true"
            )
        return Prepared(None, Installed(python, has_client(python)))

    async def inspect(self, config: ServerConfig, ask: Ask) -> tuple[Check, ...]:
        """Who can reach the node, and where its sockets lie."""
        folder = os.path.dirname(private_tmpdir(LONGEST_TMPDIR))
        usual = os.environ.get("TMPDIR", "/tmp").rstrip("/") or "/"
        sockets = ok("ray's sockets", f"below {folder}")
        if folder != usual:
            sockets = warning(
                "ray's sockets", f"TMPDIR={usual} is too long for them, or cannot be written to: {folder} is used",
                f"if that matters, set TMPDIR to a path of at most {LONGEST_TMPDIR - 13} bytes",
            )  # fmt: skip
        if has_token(config, {**os.environ, **config.env}):
            return ok("ray's ports", "on every address of this host; they ask for the cluster's token"), sockets
        return warning(
            "ray's ports", "on every address of this host, and whoever reaches them can run code here",
            "give the cluster a token: RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE, or api_key_file",
        ), sockets  # fmt: skip

    def command(self, launch: Launch) -> Command:
        config, ray = launch.config, launch.prepared.engine
        names = ports_of(config)
        ports = dict(zip(names, launch.extra_ports, strict=False)) | {main_port(config): launch.port}
        if config.node_rank == 0:
            ports["port"] = head_port(launch)
        if not ray.has_client:
            ports.pop("ray-client-server-port", None)
        environ = {**os.environ, **config.env}
        words = [ray.python, "-m", MODULE, "start", "--block", "--disable-usage-stats"]
        words += ["--node-ip-address", own(config)]
        if config.node_rank == 0:
            words += ["--head", f"--include-dashboard={str(RayOptions(**config.options).dashboard).lower()}"]
        else:
            words += ["--address", meeting_point(config)]
        words += [word for name, port in ports.items() for word in (f"--{name}", str(port))]
        words += ["--worker-port-list", ",".join(map(str, launch.extra_ports[len(names) :])), "--temp-dir", PRIVATE]
        words += resource_words(config, environ)
        words += ["--no-redirect-output", "--log-style", "record", "--log-color", "false"]
        words += flags(config.engine_args, ours=OURS)
        env: dict[str, str | None] = {"RAY_ADDRESS": None, "RAY_TMPDIR": None, "PYTHONSAFEPATH": "1"}
        env |= {"VLLM_HOST_IP": own(config), **interface_env(config, environ), **token_env(config)}
        return Command(tuple(words), {**env, **config.env}, longest_tmpdir=LONGEST_TMPDIR)

    async def ready(self, launch: Launch, ask: Ask) -> str:
        """What the cluster lacks: for the head, its nodes; for another node, this one."""
        config, python = launch.config, launch.prepared.engine.python
        env = token_env(config) | {name: config.env[name] for name in TOKEN if name in config.env}
        if config.node_rank == 0:
            head = f"{own(config)}:{head_port(launch)}"
            said = await ask_cluster(python, head, ask, env=env, wanted=config.nodes)
            return missing_nodes(said, head, config.nodes)
        head, node = meeting_point(config), (own(config), launch.port)
        return missing_node(await ask_cluster(python, head, ask, env=env, node=node), head, *node)

    def phase(self, line: str) -> Phase | None:
        return next((Phase(name) for name, words in PHASES if words in line), None)



def has_client(python: str) -> bool:
    """Whether the dependencies of Ray Client are installed."""
    return any(os.path.isdir(f"{folder}/grpc") for folder in site_packages(python))


def own(config: ServerConfig) -> str:
    """The address that Ray and the engines on it know this node by."""
    return config.node_address or ALONE


def main_port(config: ServerConfig) -> str:
    """What the server's own port is for: the node's manager; for a head whose `head_port` is not another one, where it
    answers the other nodes."""
    return "port" if config.node_rank == 0 and config.head_port in (None, config.port) else PORTS[0]


def head_port(launch: Launch) -> int:
    """Where a head answers."""
    return launch.config.head_port or launch.port


def ports_of(config: ServerConfig) -> tuple[str, ...]:
    """The flags of the ports besides that one and the head's."""
    further = PORTS if main_port(config) == "port" else PORTS[1:]
    return (*further, *OF_HEAD) if config.node_rank == 0 else further


def cluster(config: ServerConfig, python: str) -> tuple[Member, ...]:
    """The nodes of the cluster that a server over Ray needs, its head first: members of a group that are Healthy when
    all of them have joined.

    Args:
        config: of the server.
        python: the interpreter that it runs in.

    Raises `ConfigError` if others could run code on the cluster, and nobody has said that they may.
    """
    keys = ("nodes", "env", "allow_exposed", "state_dir", "log_dir", "log_limit", "startup_timeout")
    node = ServerConfig("ray", python=python, **{key: getattr(config, key) for key in keys})
    adapter.check(node)
    members = (replace(node, node_rank=rank) for rank in range(config.nodes))
    return tuple(Member(f"ray-{m.node_rank}", m.node_rank, m, needs_next=m.node_rank + 1 < m.nodes) for m in members)


def worker_ports(config: ServerConfig) -> int:
    """How many ports the node's workers may need: Ray starts one for each CPU ahead of time."""
    environ = {**os.environ, **config.env}
    return cpus(config, environ) + 2 * (gpus_of(config, environ) or 0) + SPARE_PORTS


def cpus(config: ServerConfig, environ: Mapping[str, str]) -> int:
    """CPUs that Ray may give away."""
    chosen: int | None = config.options.get("num_cpus")
    if chosen is not None:
        return chosen
    found = len(os.sched_getaffinity(0))
    granted = environ.get("SLURM_CPUS_ON_NODE", "")
    return min(found, int(granted)) if granted.isdecimal() and int(granted) > 0 else found


def gpus_of(config: ServerConfig, environ: Mapping[str, str]) -> int | None:
    """GPUs that Ray may give away; None if only Ray can find out."""
    chosen: int | None = config.options.get("num_gpus")
    if chosen is not None:
        return chosen
    found = len(gpus(environ))
    visible = environ.get(VISIBLE)
    if not found and visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    granted = environ.get("SLURM_GPUS_ON_NODE", "")
    if granted.isdecimal():
        return min(found, int(granted)) if found else int(granted)
    return found or None


def resource_words(config: ServerConfig, environ: Mapping[str, str]) -> list[str]:
    """The flags that say what this node has to give away."""
    words = ["--num-cpus", str(cpus(config, environ))]
    devices = gpus_of(config, environ)
    if devices is not None:
        words += ["--num-gpus", str(devices)]
    chosen: int | None = config.options.get("object_store_memory")
    size = chosen if chosen is not None else store_size(usable_memory(), free_shm())
    words += ["--object-store-memory", str(max(size, LEAST_STORE))]
    if size < LEAST_STORE:  # containers often have 64 MB in /dev/shm
        words += ["--plasma-directory", PRIVATE]
    return words


def store_size(memory: int, shm: int) -> int:
    """Bytes for the object store, of so much memory and so much room in /dev/shm."""
    return int(min(MEMORY_SHARE * memory, SHM_SHARE * shm))


def usable_memory() -> int:
    """Bytes of memory that this process and its children may use."""
    limit, total = memory_limit(), psutil.virtual_memory().total
    return total if limit is None else min(limit, total)


def free_shm() -> int:
    """Bytes that are free in /dev/shm; 0 if there is none."""
    with suppress(OSError):
        return psutil.disk_usage("/dev/shm").free
    return 0


def has_token(config: ServerConfig, environ: Mapping[str, str]) -> bool:
    """Whether the cluster asks for a token."""
    mode = environ.get(TOKEN[0], "")
    keyed = bool(config.api_key_env or config.api_key_file)
    return keyed or mode == "token" or (mode == "" and DEFAULT_TOKEN.expanduser().exists())


def token_env(config: ServerConfig) -> dict[str, str]:
    """The variables that tell Ray the cluster's token, if it is one of the settings."""
    key = api_key(config)
    return {} if key is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": key}


adapter = RayAdapter()
