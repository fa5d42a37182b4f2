"""`stoker options`: every setting, its default, its meaning."""

from __future__ import annotations

import argparse
import shutil

from lifecycle.cli.say import put
from lifecycle.fleet.front_settings import FrontConfig
from lifecycle.fleet.settings import FleetConfig
from lifecycle.group.settings import GroupConfig
from lifecycle.operate.settings import OperateConfig
from lifecycle.ray.settings import RayConfig
from lifecycle.reference import job_settings, server_settings, settings_of, text


def run(args: argparse.Namespace) -> int:
    """The command."""
    columns = min(100, shutil.get_terminal_size().columns)
    put(text(server_settings(args.backend), columns))
    for title, settings in (
        ("`stoker generate` alone", job_settings()),
        ("several hosts (--nodes)", settings_of(GroupConfig)),
        ("several replicas (--replicas)", settings_of(FleetConfig)),
        ("the one URL before several replicas (stoker serve)", settings_of(FrontConfig)),
        ("replicas on a Ray cluster (--ray)", settings_of(RayConfig)),
        ("metrics and hooks", settings_of(OperateConfig)),
    ):
        put(f"\nof {title}:\n")
        put(text(settings, columns))
    return 0
