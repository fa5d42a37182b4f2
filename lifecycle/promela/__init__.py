"""Stoker's charts as Promela, and what must hold of them as formulas, for the model checker spin: a second opinion.

    python -m lifecycle.promela server > server.pml     # the text; also group, worker, fleet, placement
    python -m lifecycle.promela --verify                # all of them, with spin and gcc
"""

from __future__ import annotations

from collections.abc import Callable

from lifecycle.promela.claims import Claim, Duty, Subject, subject
from lifecycle.promela.export import promela
from lifecycle.promela.spin import SpinError, Verdict, missing, verify
from lifecycle.testing.fleet_models import fleet_model, placement_model
from lifecycle.testing.group_models import group_model, worker_model
from lifecycle.testing.server_model import server_model

SUBJECTS: dict[str, Callable[[], Subject]] = {
    "server": lambda: subject(server_model()),
    "group": lambda: subject(group_model()),
    "worker": lambda: subject(worker_model()),
    "fleet": lambda: subject(fleet_model()),
    "placement": lambda: subject(placement_model()),
}
"""What there is to verify, by name."""

__all__ = ["SUBJECTS", "Claim", "Duty", "SpinError", "Subject", "Verdict", "missing", "promela", "subject", "verify"]
