"""vLLM on several hosts: its own way (`--nnodes`, a headless vLLM on each further host), or Ray's.

Facts of 0.32.0, seen with two nodes on one host, and the same in the option tables since 0.18.1. In its own way each
host runs vLLM with the same flags and its rank; copies of the model (data parallelism) are shared out by flags of their
own. Over Ray only the head runs vLLM, which has Ray start its workers.
"""

from __future__ import annotations

from collections.abc import Mapping

from backends.nodes import END_GRACE, interface_env, meeting_point, refuse_rank, refuse_undivided
from backends.ray_cluster import ask_cluster, missing_gpus, missing_nodes
from lifecycle.adapter import Ask, Capabilities
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError, LaunchError

PLACEMENT_WAIT = 60.0
"""Seconds that a cluster has to be complete. Its nodes are servers with starts of their own, and are up by then."""
BACKENDS = ("distributed-executor-backend", "data-parallel-backend")
"""Flags that choose who starts the workers."""
PLACE = frozenset({
    "node-rank", "master-addr", "master-port", "headless", "data-parallel-address", "data-parallel-rpc-port",
    "data-parallel-start-rank",
})  # fmt: skip
"""Flags that say which part of a server this is and where it meets the others."""
TRAVEL = (
    "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HUGGINGFACE_HUB_CACHE", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY",
    "https_proxy", "http_proxy", "no_proxy", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE",
    "TILELANG_CACHE_DIR", "CUDA_CACHE_PATH", "DG_JIT_CACHE_DIR",
)  # fmt: skip
"""Variables that the workers on other hosts need as well, and that older vLLM over Ray (`vllm/ray/ray_env.py`) does not
give them: it copies its own and those that begin with HF_, NCCL_ and a few more."""
TRAVEL_LIST = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"
"""Names further variables to copy, comma-separated."""


def flag(config: ServerConfig, name: str) -> str:
    """What `engine_args` says for a flag; empty if it does not."""
    given = {key.lstrip("-").replace("_", "-"): value for key, value in config.engine_args.items()}
    return str(given.get(name, ""))


def over_ray(config: ServerConfig) -> bool:
    """Whether Ray starts the workers."""
    return any(flag(config, name) == "ray" for name in BACKENDS)


def is_headless(config: ServerConfig) -> bool:
    """A part on a further host: no HTTP, no requests of its own."""
    return config.node_rank > 0 and not over_ray(config)


def gpus_wanted(config: ServerConfig) -> int:
    """GPUs that the whole server needs."""
    return _in_one_copy(config) * config.data_parallel


def _in_one_copy(config: ServerConfig) -> int:
    context = flag(config, "prefill-context-parallel-size") or flag(config, "pcp")
    return config.tensor_parallel * config.pipeline_parallel * (int(context) if context.isdecimal() else 1)


def of_a_part(can: Capabilities) -> Capabilities:
    """What is true of a headless part, from what is true of the server."""
    return Capabilities(
        probed=False, reports_model=False, generates=False, longest_grace=END_GRACE, extra_ports=can.extra_ports,
        settings=can.settings, defaults=can.defaults,
    )  # fmt: skip


def check(config: ServerConfig) -> None:
    """Refuse what cannot be shared out among the nodes. Raises `ConfigError`."""
    refuse_rank(config)
    if over_ray(config):  # Ray shares them out
        return
    if config.data_parallel > 1:
        refuse_undivided(config, "data_parallel", config.data_parallel)
    else:
        refuse_undivided(config, "tensor_parallel × pipeline_parallel", _in_one_copy(config))


def node_words(config: ServerConfig) -> list[str]:
    """The flags of one part of a server on several hosts; none on one host, and none over Ray."""
    if config.nodes == 1 or over_ray(config):
        return []
    address, port, rank = config.head_address, str(config.head_port), config.node_rank
    headless = ["--headless"] * (rank > 0)
    if config.data_parallel == 1:
        return [
            "--nnodes", str(config.nodes), "--node-rank", str(rank), "--master-addr", address, "--master-port", port,
            *headless,
        ]  # fmt: skip
    share = config.data_parallel // config.nodes
    words = ["--data-parallel-size-local", str(share), "--data-parallel-address", address]
    words += ["--data-parallel-rpc-port", port]
    if rank > 0:  # given to the head, it would take requests for its own copies only
        words += ["--data-parallel-start-rank", str(rank * share)]
    return words + headless


def node_env(config: ServerConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of one part of a server on several hosts.

    Args:
        environ: what the user has set.
    """
    if over_ray(config):
        return ray_env(config, environ)
    if config.nodes == 1:
        return {}
    return {"VLLM_HOST_IP": config.node_address, **interface_env(config, environ)}


def ray_env(config: ServerConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Which cluster the head asks for its workers, under which address, and which variables these get.

    vLLM waits for GPUs on `node:<its own address>`: for ever, if Ray knows its host by another one. The interfaces of
    the workers are not said here: they may have other names on other hosts, and backend 'ray' names them on each.
    """
    env = {}
    if config.head_address and config.head_port:
        env["RAY_ADDRESS"] = meeting_point(config)
    if config.node_address:
        env["VLLM_HOST_IP"] = config.node_address
    extra = dict.fromkeys(filter(None, environ.get(TRAVEL_LIST, "").split(",")))
    extra |= dict.fromkeys(name for name in sorted({*TRAVEL, *config.env} - {TRAVEL_LIST}) if name in environ)
    if extra:
        env[TRAVEL_LIST] = ",".join(extra)
    return env


async def refuse_small_cluster(config: ServerConfig, python: str, environ: Mapping[str, str], ask: Ask) -> None:
    """Wait, for `PLACEMENT_WAIT` at most, until the cluster has the nodes and GPUs that this server needs; raises
    `ConfigError` that names what is missing. vLLM itself would wait half an hour for it, and not say."""
    head = ray_env(config, environ).get("RAY_ADDRESS") or environ["RAY_ADDRESS"]
    env = {name: value for name, value in environ.items() if name.startswith("RAY_AUTH_")}
    wanted, devices = config.nodes, gpus_wanted(config)
    try:
        said = await ask_cluster(python, head, ask, env=env, wanted=wanted, gpus=devices, patience=PLACEMENT_WAIT)
    except LaunchError as error:
        raise ConfigError(f"the Ray cluster at {head} cannot be asked for its nodes: {error}") from None
    missing = missing_nodes(said, head, wanted) or missing_gpus(said, head, devices)
    if missing:
        raise ConfigError(f"{missing}; waited {PLACEMENT_WAIT:g} s: start the missing nodes, or need less")


def refuse_any_cluster(config: ServerConfig, environ: Mapping[str, str]) -> None:
    """Raises `ConfigError` if it is not said which cluster is meant: vLLM would attach itself to the latest that
    anybody has started on this host, or start one. Also for a rank that runs no vLLM."""
    if config.node_rank > 0:
        raise ConfigError(
            f"node_rank = {config.node_rank}, but over Ray only the head runs vLLM: run backend 'ray' on the others"
        )
    if config.head_address and config.head_port:
        return
    if environ.get("RAY_ADDRESS", "auto") in ("", "auto", "local"):
        raise ConfigError(
            "vLLM over Ray would attach itself to whatever cluster it finds on this host, or start one: name it with "
            "head_address and head_port"
        )
