"""What must hold of the journal of one life, whoever wrote it and however it was cut off."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from lifecycle.chart import Chart
from lifecycle.errors import JournalError
from lifecycle.fleet.chart import FLEET
from lifecycle.fleet.facts import EVENTS as FLEET_EVENTS
from lifecycle.fleet.facts import FleetFacts
from lifecycle.group.chart import GROUP
from lifecycle.group.facts import EVENTS as GROUP_EVENTS
from lifecycle.group.facts import GroupFacts
from lifecycle.group.worker_chart import WORKER
from lifecycle.group.worker_facts import EVENTS as WORKER_EVENTS
from lifecycle.group.worker_facts import WorkerFacts
from lifecycle.journal import Record, replay
from lifecycle.server_chart import SERVER
from lifecycle.server_facts import EVENTS, Facts

CHARTS: dict[str, tuple[Chart[Any], Any, type[Any]]] = {
    SERVER.name: (SERVER, EVENTS, Facts), FLEET.name: (FLEET, FLEET_EVENTS, FleetFacts),
    GROUP.name: (GROUP, GROUP_EVENTS, GroupFacts), WORKER.name: (WORKER, WORKER_EVENTS, WorkerFacts),
}  # fmt: skip


def broken(name: str, records: list[Record]) -> list[str]:
    """The rules that these records break; the first of them is the beginning of the life."""
    errors = []
    if any(one.time > two.time for one, two in pairwise(records)):
        errors.append(f"{name}: a record's time goes back")
    if any(one.seq >= two.seq for one, two in pairwise(records)):
        errors.append(f"{name}: records are out of order")
    chart, events, facts = CHARTS[records[0].detail["chart"]]
    try:
        replay(records, chart, events, facts)
    except JournalError as error:
        errors.append(f"{name} does not replay: {error}")
    return errors
