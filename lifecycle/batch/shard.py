"""Which records are this run's, when several share one input. Pure: the environment is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from lifecycle.errors import ConfigError

SAY = "say it with --rank and --world-size"


@dataclass(frozen=True, slots=True)
class Shard:
    """Every `world`-th record, from `rank` on: all shards together have each record once, whatever their number."""

    rank: int
    """From 0."""
    world: int
    """How many shards there are."""

    def __post_init__(self) -> None:
        _check(self.rank, self.world, "rank", "world size")

    def mine(self, number: int) -> bool:
        """Whether the record with this number in the whole input is this shard's."""
        return number % self.world == self.rank

    def within(self, outer: Self) -> Shard:
        """This shard as a part of the part `outer`: tasks in a task of an array."""
        return Shard(outer.rank * self.world + self.rank, outer.world * self.world)


def shard_of(rank: int | None, world: int | None, environ: Mapping[str, str]) -> Shard | None:
    """The shard that was asked for, or else the environment's. None: the whole input.

    Raises `ConfigError` if only one of the two is given, or if they cannot be.
    """
    if rank is None and world is None:
        return from_environment(environ)
    if rank is None or world is None:
        given, missing = ("--rank", "--world-size") if world is None else ("--world-size", "--rank")
        raise ConfigError(f"{given} is given without {missing}; a shard needs both")
    _check(rank, world, "--rank", "--world-size")
    return Shard(rank, world)


def from_environment(environ: Mapping[str, str]) -> Shard | None:
    """The shard that Slurm or a launcher such as torchrun has set up, or None where there is but one process.

    Slurm arrays (`SLURM_ARRAY_TASK_*`), split further by the tasks in each of them: those of a job step that srun
    started (`SLURM_PROCID`), or torchrun's (`RANK` and `WORLD_SIZE`); where both are set they must agree.
    Sources: sbatch(1) and srun(1), "OUTPUT ENVIRONMENT VARIABLES"; torchrun's "Environment Variables".

    Raises `ConfigError` that names the variables if one is missing, is not a number or is out of range, and for an
    array with gaps, because a task of it cannot tell which one it is.
    """
    array, tasks, launched = _array(environ), _tasks(environ), _launched(environ)
    if tasks and launched and tasks != launched:
        raise ConfigError(
            f"SLURM_PROCID={tasks.rank} of {tasks.world} tasks and RANK={launched.rank} of WORLD_SIZE={launched.world} "
            f"disagree; {SAY}"
        )
    inner = tasks or launched
    return inner.within(array) if array and inner else array or inner


def _array(environ: Mapping[str, str]) -> Shard | None:
    names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX", "SLURM_ARRAY_TASK_COUNT")
    if names[0] not in environ:
        return None
    task, first, last, count = (_number(environ, name, names[0]) for name in names)
    step = _number(environ, "SLURM_ARRAY_TASK_STEP", names[0]) if "SLURM_ARRAY_TASK_STEP" in environ else 1
    told = f"SLURM_ARRAY_TASK_ID={task} in {first} to {last} (MIN, MAX), step {step}, COUNT={count}"
    if count < 1 or step < 1 or not first <= task <= last:
        raise ConfigError(f"{told}: that is no array; {SAY}")
    if last - first != (count - 1) * step or (task - first) % step:
        raise ConfigError(f"{told}: the array has gaps, so its tasks cannot be numbered; {SAY}")
    return Shard((task - first) // step, count) if count > 1 else None


def _tasks(environ: Mapping[str, str]) -> Shard | None:
    """A batch script has `SLURM_NTASKS` and `SLURM_PROCID=0` as well, and runs once: only a step is split."""
    if "SLURM_STEP_ID" not in environ or "SLURM_PROCID" not in environ:
        return None
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    return _pair(environ, "SLURM_PROCID", size)


def _launched(environ: Mapping[str, str]) -> Shard | None:
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return None
    return _pair(environ, "RANK", "WORLD_SIZE")


def _pair(environ: Mapping[str, str], rank_name: str, world_name: str) -> Shard | None:
    world = _number(environ, world_name, rank_name)
    rank = _number(environ, rank_name, world_name)
    _check(rank, world, rank_name, world_name)
    return Shard(rank, world) if world > 1 else None


def _number(environ: Mapping[str, str], name: str, beside: str) -> int:
    text = environ.get(name)
    if text is None:
        raise ConfigError(f"{beside} is set in the environment and {name} is not; set both or neither, or {SAY}")
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} in the environment is not a whole number; {SAY}") from None


def _check(rank: int, world: int, rank_name: str, world_name: str) -> None:
    if world < 1:
        raise ConfigError(f"{world_name} = {world} must be at least 1")
    if not 0 <= rank < world:
        raise ConfigError(f"{rank_name} = {rank} must be from 0 to {world - 1}, below {world_name} = {world}")
