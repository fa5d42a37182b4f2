"""Every host of a group keeps its members' logs and records where its configuration says."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifecycle.config import load_config
from lifecycle.group import Group, Role, Worker
from lifecycle.server import Server

ROLES = [Role(rank, 2, "127.0.0.1", 1, "a test") for rank in range(2)]


@pytest.mark.parametrize(
    "make", [lambda c: Server(c), lambda c: Group(c, ROLES[0]), lambda c: Worker(c, ROLES[1])],
    ids=["server", "head", "another host"],
)  # fmt: skip
def test_logs_and_records_lie_where_the_configuration_says(make: type[Server], tmp_path: Path) -> None:
    folders = {"state_dir": str(tmp_path / "state"), "log_dir": str(tmp_path / "logs")}
    config, _ = load_config("custom", settings={"command": "true {port} {node_rank}", **folders})
    host = make(config).host
    assert host.attempt_log("name", 1).parent == tmp_path / "logs"
    assert host.state_dir == tmp_path / "state"
