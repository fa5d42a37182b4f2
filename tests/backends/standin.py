"""An engine that is not there: a folder that looks like its virtual environment, with a parser and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

PARSER = """
import argparse
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        print("noise of an import")
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--eager", action=argparse.BooleanOptionalAction)
        parser.add_argument("--size", type=int, choices=[1, 2])
        parser.add_argument("--lora", action="append")
"""
FROM_JSON = """
import argparse, json
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        for option in json.load(open({path!r})):
            if option.get("kind") == "flag":
                parser.add_argument(*option["names"], dest=option["dest"], action="store_true")
            else:
                parser.add_argument(*option["names"], dest=option["dest"], nargs=option.get("nargs"))
"""
"""A parser with the options of a real one, from a file of `tests/engines/options`."""


def environment(tmp_path: Path, version: str = "0.9.1", parser: str = PARSER) -> Path:
    """A folder with `bin/python` and a package called sglang that has nothing but a parser."""
    lib = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    package = lib / "sglang" / "srt"
    package.mkdir(parents=True, exist_ok=True)
    (lib / "sglang" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "server_args.py").write_text(parser)
    for old in lib.glob("sglang-*"):
        (old / "METADATA").unlink()
        old.rmdir()
    (lib / f"sglang-{version}.dist-info").mkdir()
    (lib / f"sglang-{version}.dist-info" / "METADATA").write_text(f"Name: sglang\nVersion: {version}\n")
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{lib}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python
