"""`stoker options`: every setting, its default, its meaning."""

from __future__ import annotations

import argparse
import shutil

from lifecycle.reference import job_settings, server_settings, text


def run(args: argparse.Namespace) -> int:
    """The command."""
    columns = min(100, shutil.get_terminal_size().columns)
    print(text(server_settings(args.backend), columns))
    print("\nof `stoker generate` alone:\n")
    print(text(job_settings(), columns))
    return 0
