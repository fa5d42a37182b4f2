"""Which GPUs each replica gets: CUDA_VISIBLE_DEVICES, cut into equal shares.

The names in it are kept as they are, whether they are indices, UUIDs (`GPU-…`) or MIG instances (`MIG-…`): a scheduler
has put them there, and what an index means depends on the variables beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lifecycle.adapter import Adapter, capabilities_of
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError
from lifecycle.fleet.settings import FleetConfig
from lifecycle.resources.gpus import VISIBLE, Gpu

NODES = Path("/dev")
"""Where the driver's device nodes are: `nvidia0`, `nvidia1`, …"""


def visible(environ: Mapping[str, str], found: Sequence[Gpu]) -> tuple[str, ...]:
    """The names of the GPUs that a process with these variables may use. Pure.

    Args:
        environ: the variables of the servers. With CUDA_VISIBLE_DEVICES, what it names up to the first name that cannot
            be one (such as the -1 that hides all GPUs), as CUDA reads it.
        found: the GPUs of this machine; of one that is split, its instances count.
    """
    names = environ.get(VISIBLE)
    if names is None:
        return tuple(
            name
            for gpu in found
            for name in ([one.uuid for one in gpu.instances] if gpu.instances else [str(gpu.index)])
        )
    told: list[str] = []
    for word in names.split(","):
        name = word.strip()
        if name in told or not re.fullmatch(r"\d+|(GPU|MIG)-.+", name):
            break
        told.append(name)
    return tuple(told)


def each_needs(fleet: FleetConfig, config: ServerConfig, adapter: Adapter) -> int:
    """GPUs that one replica needs, where there are any; 0 for a backend that is not known to use any."""
    if fleet.replica_gpus is not None:
        return fleet.replica_gpus
    if "tensor_parallel" not in capabilities_of(adapter, config).settings:
        return 0
    return config.tensor_parallel * config.pipeline_parallel * config.data_parallel


def shares(
    names: Sequence[str], replicas: int, each: int, *, said: str | None = None, own: bool = False
) -> tuple[str, ...]:
    """The value of CUDA_VISIBLE_DEVICES for each replica. Pure. Raises `ConfigError` if there are too few GPUs.

    Args:
        said: the variable as it was found; None: it is not set.
        own: the number of each replica was given as replica_gpus, and not by how the model is spread.

    >>> shares(["0", "1", "MIG-a", "MIG-b"], 2, 2)
    ('0,1', 'MIG-a,MIG-b')
    """
    needed = replicas * each
    if needed > len(names):
        fit = len(names) // each
        one = f"{each} GPU" if each == 1 else f"{each} GPUs"
        spread = "tensor_parallel, pipeline_parallel or data_parallel"
        lower = "replica_gpus" if own else spread
        ways = [f"lower replicas to {fit}"] if fit else [f"lower {lower}"] if names and each > 1 else []
        if own and not names:
            ways.append("leave replica_gpus out for replicas without GPUs")
        raise ConfigError(
            f"replicas = {replicas} with {one} each need {needed}, and {len(names)} can be used here "
            f"({','.join(names) or 'none'}{_read_as(said, names)}): {needed - len(names)} missing; "
            f"{', or '.join([*ways, f'let more be seen ({VISIBLE})'])}"
        )
    return tuple(",".join(names[number * each : (number + 1) * each]) for number in range(replicas))


def _read_as(said: str | None, names: Sequence[str]) -> str:
    """Why fewer are seen than the variable names, if so."""
    if said is None:
        return ""
    words = [word.strip() for word in said.split(",")]
    if len(words) == len(names):
        return f" by {VISIBLE}"
    if not said.strip():
        return f": {VISIBLE} is empty, which hides them all"
    wrong = words[len(names)]
    why = "is there twice" if wrong in names else "is no GPU"
    return f": {VISIBLE} = {said!r} counts up to its first wrong name, and {wrong!r} {why}"


def nodes(folder: Path = NODES) -> tuple[str, ...]:
    """Indices of the GPUs that the driver's device nodes show: what is known where NVML's bindings are not installed.
    A container may have nodes 2 and 5 only; CUDA counts what it sees from 0."""
    try:
        count = sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in folder.iterdir())
    except OSError:
        return ()
    return tuple(str(index) for index in range(count))


def environments(
    fleet: FleetConfig, config: ServerConfig, adapter: Adapter, environ: Mapping[str, str]
) -> tuple[dict[str, str], ...]:
    """The variables that each replica gets besides the configured ones. Looks at the machine where it must.

    One replica is left with what there is. Raises `ConfigError` like `shares`.
    """
    each = each_needs(fleet, config, adapter)
    if fleet.replicas == 1 or each == 0:
        return ({},) * fleet.replicas
    known = {**environ, **config.env}
    if VISIBLE in known:
        names = visible(known, ())
    else:
        from lifecycle.resources.gpus import everything

        names = visible(known, everything()) or nodes()
    if not names and fleet.replica_gpus is None:
        return ({},) * fleet.replicas
    own = fleet.replica_gpus is not None
    given = shares(names, fleet.replicas, each, said=known.get(VISIBLE), own=own)
    return tuple({VISIBLE: share} for share in given)
