"""All shards together have every record once; what the environment says is believed only where it is whole."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.batch.shard import Shard, from_environment, shard_of
from lifecycle.errors import ConfigError


def array(task: int, first: int, last: int, step: int = 1, count: int | None = None) -> dict[str, str]:
    values = {"ID": task, "MIN": first, "MAX": last, "STEP": step}
    values["COUNT"] = (last - first) // step + 1 if count is None else count
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in values.items()}


def step(rank: int, tasks: int) -> dict[str, str]:
    names = {"SLURM_STEP_ID": 0, "SLURM_PROCID": rank, "SLURM_NTASKS": tasks, "SLURM_STEP_NUM_TASKS": tasks}
    return {name: str(value) for name, value in names.items()}


def launched(rank: int, world: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world)}


@given(world=st.integers(1, 50), total=st.integers(0, 300))
def test_the_shards_together_are_every_number_once(world: int, total: int) -> None:
    shards = [Shard(rank, world) for rank in range(world)]
    taken = Counter(number for shard in shards for number in range(total) if shard.mine(number))
    assert taken == Counter(range(total))


@given(first=st.integers(0, 20), count=st.integers(1, 9), stride=st.integers(1, 5), tasks=st.integers(1, 4))
def test_the_tasks_of_an_array_and_their_steps_together_are_every_number_once(
    first: int, count: int, stride: int, tasks: int
) -> None:
    last = first + (count - 1) * stride
    every = [
        from_environment({**array(task, first, last, stride), **step(rank, tasks)})
        for task in range(first, last + 1, stride)
        for rank in range(tasks)
    ]
    taken = Counter(number for shard in every for number in range(200) if shard is None or shard.mine(number))
    assert taken == Counter(range(200))


@given(first=st.integers(0, 20), count=st.integers(2, 9), stride=st.integers(1, 5))
def test_an_array_need_not_begin_at_zero_nor_go_by_ones(first: int, count: int, stride: int) -> None:
    last = first + (count - 1) * stride
    shards = [from_environment(array(task, first, last, stride)) for task in range(first, last + 1, stride)]
    assert shards == [Shard(rank, count) for rank in range(count)]


def test_an_array_with_gaps_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SLURM_ARRAY_TASK_ID=3 in 1 to 7 .* gaps.*--rank and --world-size"):
        from_environment(array(3, 1, 7, count=3))


@pytest.mark.parametrize("environ", [{}, array(4, 4, 4), step(0, 1), launched(0, 1)])
def test_a_single_process_has_the_whole_input(environ: dict[str, str]) -> None:
    assert from_environment(environ) is None


def test_a_batch_script_runs_once_however_many_tasks_its_job_has() -> None:
    assert from_environment({"SLURM_JOB_ID": "9", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None


def test_a_step_has_its_own_number_of_tasks() -> None:
    assert from_environment({**step(1, 4), "SLURM_NTASKS": "32"}) == Shard(1, 4)


def test_torchrun_says_rank_and_world_size() -> None:
    assert from_environment(launched(3, 8)) == Shard(3, 8)


def test_slurm_and_torchrun_may_agree() -> None:
    assert from_environment({**step(3, 8), **launched(3, 8)}) == Shard(3, 8)


def test_slurm_and_torchrun_that_disagree_are_both_named() -> None:
    with pytest.raises(ConfigError, match="SLURM_PROCID=1 of 2 tasks and RANK=5 of WORLD_SIZE=8"):
        from_environment({**step(1, 2), **launched(5, 8)})


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"RANK": "0"}, "RANK is set in the environment and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set in the environment and RANK is not"),
        (launched(2, 2), "RANK = 2 must be from 0 to 1, below WORLD_SIZE = 2"),
        (launched(-1, 2), "RANK = -1"),
        (launched(0, 0), "WORLD_SIZE = 0 must be at least 1"),
        ({"RANK": "a", "WORLD_SIZE": "2"}, "RANK='a' in the environment is not a whole number"),
        ({"SLURM_ARRAY_TASK_ID": "1"}, "SLURM_ARRAY_TASK_ID is set in the environment and SLURM_ARRAY_TASK_MIN is not"),
        (array(9, 0, 3), "that is no array"),
        (step(4, 4), "SLURM_PROCID = 4 must be from 0 to 3, below SLURM_STEP_NUM_TASKS = 4"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, "SLURM_PROCID is set in the environment and SLURM_NTASKS is not"),
    ],
)
def test_what_cannot_be_is_refused_by_the_names_of_the_variables(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_environment(environ)
    assert said in str(caught.value)


def test_what_is_said_wins_over_the_environment() -> None:
    assert shard_of(1, 3, {"RANK": "broken"}) == Shard(1, 3)
    assert shard_of(0, 1, launched(3, 8)) == Shard(0, 1)
    assert shard_of(None, None, launched(3, 8)) == Shard(3, 8)


@pytest.mark.parametrize(
    ("rank", "world", "said"),
    [
        (1, None, "--rank is given without --world-size"),
        (None, 2, "--world-size is given without --rank"),
        (2, 2, "--rank = 2 must be from 0 to 1, below --world-size = 2"),
        (0, 0, "--world-size = 0 must be at least 1"),
    ],
)
def test_half_a_shard_is_refused(rank: int | None, world: int | None, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shard_of(rank, world, launched(0, 2))
    assert said in str(caught.value)


def test_a_shard_out_of_its_world_cannot_be_made() -> None:
    with pytest.raises(ConfigError, match="rank = 3 must be from 0 to 2"):
        Shard(3, 3)
