"""`stoker options`: every setting, its default, its meaning."""

from __future__ import annotations

import argparse
import shutil

from lifecycle.cli.say import put
from lifecycle.reference import job_settings, server_settings, text


def run(args: argparse.Namespace) -> int:
    """The command."""
    columns = min(100, shutil.get_terminal_size().columns)
    put(text(server_settings(args.backend), columns))
    put("\nof `stoker generate` alone:\n")
    put(text(job_settings(), columns))
    return 0
