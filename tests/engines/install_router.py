"""Make a virtual environment with the real sglang-router, for the tests with real engines.

    python tests/engines/install_router.py FOLDER [--version 0.3.2]

Done again it does only what is missing. A program of Rust in a wheel of 31 MB, 150 MB of disk with what it needs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

VERSION = "0.3.2"
"""The version that the tests are made for."""


def install(folder: Path, version: str) -> None:
    """Make the environment in `folder`. Raises `CalledProcessError` if venv or pip fails."""
    python = folder / "bin" / "python"
    if not python.exists():
        say(f"making the environment {folder}")
        run(sys.executable, "-m", "venv", str(folder))
    if installed(python) != version:
        say(f"installing sglang-router {version}")
        wanted = f"sglang-router=={version}"
        run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted)
    say(f"checking that {python} imports it")
    run(str(python), "-c", "import sglang_router.launch_router")
    say(f"sglang-router {version} is in {folder}")


def installed(python: Path) -> str:
    """The installed version; empty if there is none."""
    code = "import importlib.metadata as m; print(*{d.version for d in m.distributions(name='sglang-router')})"
    done = subprocess.run([str(python), "-I", "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def say(words: str) -> None:
    print(words, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", default=VERSION, help=f"of sglang-router; default: {VERSION}")
    given = parser.parse_args()
    try:
        install(given.folder.absolute(), given.version)
    except subprocess.CalledProcessError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
