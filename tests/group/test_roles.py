"""Which host this is: said by flags, by Slurm, by MPI, by torchrun's variables; contradictions are named."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.errors import ConfigError
from lifecycle.group.roles import DEFAULT_PORT, FIRST_JOB_PORT, JOB_PORTS, Role, expand, role_of, split_head

SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_NNODES": "3", "SLURM_NODEID": "2", "SLURM_NTASKS": "3",
    "SLURM_JOB_NODELIST": "n[08-10]",
}  # fmt: skip
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
TORCH = {"GROUP_RANK": "1", "NNODES": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}


def test_flags_need_no_environment() -> None:
    assert role_of(2, 1, "head", {}) == Role(1, 2, "head", DEFAULT_PORT, "--node-rank and --head")
    assert role_of(2, 0, "10.0.0.1:99", {}).port == 99


def test_flags_win_over_whatever_the_environment_says() -> None:
    found = role_of(2, 1, "head:99", {**SLURM, **OPEN_MPI, **TORCH})
    assert (found.rank, found.nodes, found.head, found.port) == (1, 2, "head", 99)


def test_under_slurm_the_head_is_the_first_host_and_the_port_comes_from_the_job() -> None:
    found = role_of(3, None, "", {**SLURM, **OPEN_MPI, **TORCH})
    assert (found.rank, found.nodes, found.head, found.source) == (2, 3, "n08", "Slurm")
    assert FIRST_JOB_PORT <= found.port < FIRST_JOB_PORT + JOB_PORTS
    assert found.port == role_of(3, None, "", {**SLURM, "SLURM_NODEID": "0"}).port
    assert found.port != role_of(3, None, "", {**SLURM, "SLURM_JOB_ID": "4712"}).port


def test_a_step_on_a_part_of_the_job_counts_its_own_hosts() -> None:
    step = {**SLURM, "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[09-10]"}
    found = role_of(2, None, "", {**step, "SLURM_NODEID": "1"})
    assert (found.rank, found.head) == (1, "n09")


def test_a_batch_script_without_srun_is_not_taken_for_a_step() -> None:
    alone = {key: value for key, value in SLURM.items() if key != "SLURM_STEP_ID"}
    with pytest.raises(ConfigError, match="start the command with srun"):
        role_of(3, None, "", alone)


def test_several_tasks_on_a_host_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"6 tasks on 3 nodes.*--ntasks-per-node=1"):
        role_of(3, None, "", {**SLURM, "SLURM_NTASKS": "6"})
    with pytest.raises(ConfigError, match=r"2 processes on this host.*--npernode 1"):
        role_of(3, None, "head", {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})


def test_mpi_says_who_and_not_where() -> None:
    assert role_of(3, None, "head", OPEN_MPI).rank == 1
    assert role_of(3, None, "head", {"PMI_RANK": "2", "PMI_SIZE": "3"}).rank == 2
    assert role_of(3, None, "", {**OPEN_MPI, "MASTER_ADDR": "10.0.0.1"}).head == "10.0.0.1"
    with pytest.raises(ConfigError, match="where the head"):
        role_of(3, None, "", OPEN_MPI)


def test_what_is_set_for_torchrun_will_do() -> None:
    found = role_of(3, None, "", TORCH)
    assert (found.rank, found.head, found.port) == (1, "10.0.0.1", 4000)
    assert role_of(3, None, "other", TORCH).port == DEFAULT_PORT, "the port belongs to the other head"


def test_a_rank_by_flag_and_the_head_by_slurm_go_together() -> None:
    assert role_of(3, 1, "", SLURM).head == "n08"


@pytest.mark.parametrize("environ", [SLURM, OPEN_MPI, TORCH], ids=["slurm", "mpi", "torch"])
def test_another_number_of_hosts_is_a_contradiction(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"nodes = 2, and .* says 3"):
        role_of(2, None, "", environ)


def test_a_rank_that_cannot_be_is_named() -> None:
    with pytest.raises(ConfigError, match=r"node rank 2 .*from 0 to 1"):
        role_of(2, 2, "head", {})
    with pytest.raises(ConfigError, match="SLURM_NODEID='x' in the environment is not a whole number"):
        role_of(3, None, "", {**SLURM, "SLURM_NODEID": "x"})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("n7", ("n7", None)), ("n7:80", ("n7", 80)), ("10.0.0.1", ("10.0.0.1", None)),
        ("10.0.0.1:80", ("10.0.0.1", 80)), ("::1", ("::1", None)),
        ("[::1]", ("::1", None)), ("[fe80::1]:80", ("fe80::1", 80)), ("", ("", None)),
    ],
)  # fmt: skip
def test_a_head_is_a_host_with_or_without_a_port(text: str, found: tuple[str, int | None]) -> None:
    assert split_head(text) == found


@pytest.mark.parametrize("text", ["n7:", ":80", "n7:x", "n7:99999", "a b", "n7:0"])
def test_what_is_no_head_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--head"):
        split_head(text)


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("a,b-2,c.d", ["a", "b-2", "c.d"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[1,3-4],m", ["n1", "n3", "n4", "m"]),
        ("r[1-2]n[01-02]x", ["r1n01x", "r1n02x", "r2n01x", "r2n02x"]),
        ("gpu-[7]", ["gpu-7"]),
    ],
)
def test_a_node_list_is_expanded_as_scontrol_does(names: str, hosts: list[str]) -> None:
    assert list(expand(names)) == hosts


@pytest.mark.parametrize("names", ["n[1-", "n1]", "n[a-b]", "n[3-1]", "n[1-99999999]", "n[]", "n[1,,2]", "a,,b"])
def test_what_is_no_node_list_is_refused_with_its_text(names: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        list(expand(names))


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=20, unique=True), st.integers(1, 5))
def test_however_numbers_are_grouped_the_same_hosts_come_out(numbers: list[int], width: int) -> None:
    words = [str(number).zfill(width) for number in numbers]
    assert list(expand(f"n[{','.join(words)}]")) == [f"n{word}" for word in words]


@given(st.text(alphabet="n[]-,0123456789a", max_size=20))
def test_no_text_breaks_the_reader(text: str) -> None:
    with suppress(ConfigError):
        assert all("[" not in host for host, _ in product(expand(text), "x"))
