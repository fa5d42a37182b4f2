"""Which host of a group this is, how many there are and where the head is. Pure: the environment is an argument.

Every host runs the same command. What is said by flags comes first, then what Slurm has set, then an MPI launcher, then
whatever sets the same variables as torchrun.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import product

from lifecycle.errors import ConfigError

DEFAULT_PORT = 29_417
"""Where the head is met if nobody says otherwise: beside torchrun's 29400 and 29500, below the ports that Linux gives
to clients (net.ipv4.ip_local_port_range, 32768 to 60999)."""
FIRST_JOB_PORT, JOB_PORTS = 20_000, 10_000
"""Under Slurm the port comes from the job's and the step's number, so that jobs on one host do not meet."""
MOST_HOSTS = 65_536
"""Hosts in a list; more is a slip of the keyboard."""
SAY = "say it with --nodes, --node-rank and --head"


@dataclass(frozen=True)
class Role:
    """One host's part in a group."""

    rank: int
    """0 is the head."""
    nodes: int
    head: str
    """Name or literal address of the head."""
    port: int
    """Where the hosts meet there."""
    source: str
    """Who says so, for people."""


@dataclass(frozen=True)
class _Found:
    """What one launcher has set; None for what it does not say."""

    source: str
    rank: int | None = None
    nodes: int | None = None
    head: str = ""
    port: int | None = None


def role_of(nodes: int, rank: int | None, head: str, environ: Mapping[str, str]) -> Role:
    """The role of this host in a group of `nodes`.

    Args:
        rank: what `--node-rank` says; None: the environment decides.
        head: what `--head` says, HOST or HOST:PORT; "": the environment decides.

    Raises `ConfigError` that says what is missing, or which two contradict each other.
    """
    given_head, given_port = split_head(head)
    needed = rank is None or not given_head
    found = _from_environment(environ) if needed else _Found("--node-rank and --head")
    if needed and found.nodes is not None and found.nodes != nodes:
        raise ConfigError(f"nodes = {nodes}, and {found.source} says {found.nodes}: one of them is wrong; {SAY}")
    mine = found.rank if rank is None else rank
    if mine is None:
        raise ConfigError(
            f"nodes = {nodes}, and nothing says which of them this is: start the command with srun or mpirun, one "
            "process a host, or say --node-rank 0, 1, ... on each"
        )
    if not 0 <= mine < nodes:
        raise ConfigError(f"node rank {mine} ({found.source}) must be from 0 to {nodes - 1}, below nodes = {nodes}")
    where = given_head or found.head
    if not where:
        raise ConfigError(
            f"nodes = {nodes}, and nothing says where the head (rank 0) is: say --head HOST or HOST:PORT, the same on "
            "every host"
        )
    port = given_port or (None if given_head else found.port) or DEFAULT_PORT
    return Role(mine, nodes, where, port, found.source)


def split_head(text: str) -> tuple[str, int | None]:
    """HOST, HOST:PORT, or a literal IPv6 address with or without brackets.

    >>> split_head("node7:4000"), split_head("[::1]:4000"), split_head("::1")
    (('node7', 4000), ('::1', 4000), ('::1', None))
    """
    if not text:
        return "", None
    try:
        return str(ip_address(text)), None
    except ValueError:
        pass
    match = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](?::(\d{1,5}))?|([\w.-]+)(?::(\d{1,5}))?", text)
    if match is None:
        raise ConfigError(f"--head {text!r} is not HOST or HOST:PORT")
    host, port = match[1] or match[3], match[2] or match[4]
    if port and not 1 <= int(port) <= 65535:
        raise ConfigError(f"--head {text!r}: the port must be between 1 and 65535")
    return host, int(port) if port else None


def _from_environment(environ: Mapping[str, str]) -> _Found:
    if "SLURM_JOB_ID" in environ and "SLURM_STEP_ID" in environ:
        return _slurm(environ)
    for source, rank, size, local in MPI:
        if rank in environ and size in environ:
            return _mpi(environ, source, rank, size, local)
    return _launched(environ)


def _slurm(environ: Mapping[str, str]) -> _Found:
    """A job step: srun(1), "OUTPUT ENVIRONMENT VARIABLES". A batch script has most of these too, but runs once."""
    nodes = _number(environ, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if nodes is not None and tasks is not None and tasks != nodes:
        raise ConfigError(
            f"Slurm runs {tasks} tasks on {nodes} nodes, and a group needs one on each: srun --ntasks-per-node=1"
        )
    names = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    head = next(expand(names), "")
    job, step = _number(environ, "SLURM_JOB_ID"), _number(environ, "SLURM_STEP_ID")
    port = FIRST_JOB_PORT + (13 * (job or 0) + (step or 0)) % JOB_PORTS
    return _Found("Slurm", _number(environ, "SLURM_NODEID"), nodes, head, port)


MPI = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("the MPI launcher", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)
"""Open MPI's mpirun(1), "ENVIRONMENT VARIABLES"; MPICH's and Intel MPI's Hydra."""


def _mpi(environ: Mapping[str, str], source: str, rank: str, size: str, local: str) -> _Found:
    beside = _number(environ, local)
    if beside is not None and beside > 1:
        raise ConfigError(f"{source} runs {beside} processes on this host, and a group needs one: mpirun --npernode 1")
    return _Found(
        source, _number(environ, rank), _number(environ, size), environ.get("MASTER_ADDR", ""),
        _number(environ, "MASTER_PORT"),
    )  # fmt: skip


def _launched(environ: Mapping[str, str]) -> _Found:
    """What torchrun sets for its workers, and what Kubernetes operators and scripts set for torchrun."""
    return _Found(
        "the environment (GROUP_RANK or NODE_RANK, NNODES, MASTER_ADDR)",
        _number(environ, "GROUP_RANK", "NODE_RANK"),
        _number(environ, "NNODES", "GROUP_WORLD_SIZE"),
        environ.get("MASTER_ADDR", ""),
        _number(environ, "MASTER_PORT"),
    )


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that is set."""
    for name in names:
        text = environ.get(name)
        if text:
            if not text.isdecimal():
                raise ConfigError(f"{name}={text!r} in the environment is not a whole number; {SAY}")
            return int(text)
    return None


def expand(names: str) -> Iterator[str]:
    """The hosts of a Slurm node list, in order.

    >>> list(expand("n[08-10,12],gpu-[1-2]x[0-1]"))
    ['n08', 'n09', 'n10', 'n12', 'gpu-1x0', 'gpu-1x1', 'gpu-2x0', 'gpu-2x1']

    Source: scontrol(1), "show hostnames", and slurm.conf(5), NodeName. Raises `ConfigError` for what is no such list.
    """
    for word in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+|[\[\]]|,,", names.strip()):
        parts = re.split(r"\[([^\[\]]*)\]", word)
        if word in ("[", "]", ",,"):
            raise ConfigError(f"the node list {names!r} cannot be read: {word!r} is out of place; {SAY}")
        choices = [[part] if at % 2 == 0 else _numbers(part, names) for at, part in enumerate(parts)]
        yield from map("".join, product(*choices))


def _numbers(text: str, names: str) -> list[str]:
    """What stands between brackets: numbers and ranges, with leading zeros kept."""
    found: list[str] = []
    for piece in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", piece)
        if match is None:
            raise ConfigError(f"the node list {names!r} cannot be read: {piece!r} is no number or range; {SAY}")
        low, high = match[1], match[2] or match[1]
        if not int(low) <= int(high) < int(low) + MOST_HOSTS:
            raise ConfigError(f"the node list {names!r} cannot be read: {piece!r} is no range; {SAY}")
        found += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return found
