"""Stoker's charts and locks as Promela, and what must hold of them as formulas, for the model checker spin.

    python -m lifecycle.promela server > server.pml     # the text; also group, worker, compile-lock-2, ports-2 ...
    python -m lifecycle.promela --verify                # all of them, with spin and gcc
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lifecycle.promela.claims import Claim, Duty, Subject, subject
from lifecycle.promela.export import promela
from lifecycle.promela.locks import compile_lock, ports
from lifecycle.promela.spin import SpinError, Verdict, missing, verify
from lifecycle.promela.steps import Protocol
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
"""Charts that there are to verify, by name."""

PROTOCOLS: dict[str, Callable[[], Protocol]] = {
    "compile-lock-2": partial(compile_lock, 2),
    "compile-lease-2": partial(compile_lock, 2, leased=True),
    "compile-lock-2-clear": partial(compile_lock, 2, cleared=True),
    "compile-lock-3": partial(compile_lock, 3),
    "compile-lease-3": partial(compile_lock, 3, leased=True),
    "ports-2": partial(ports, 2, 2),
    "ports-2-stranger": partial(ports, 2, 3, strangers=True),
    "ports-3": partial(ports, 3, 3),
}
"""Protocols of locks, by name: two or three processes on one compile cache or on one range of ports."""

__all__ = [
    "PROTOCOLS", "SUBJECTS", "Claim", "Duty", "Protocol", "SpinError", "Subject", "Verdict", "missing", "promela",
    "subject", "verify",
]  # fmt: skip
