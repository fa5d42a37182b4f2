"""Make a virtual environment with the real router, under both of its names, for the tests with real engines.

    python tests/engines/install_router.py FOLDER

Done again it does only what is missing. A program of Rust, twice: wheels of 31 and 37 MB, 300 MB of disk with what they
need.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

VERSIONS = {"sglang-router": "0.3.2", "smg": "1.13.0"}
"""The versions that the tests are made for. Both bring a command `smg`; the tests use neither's."""


def install(folder: Path) -> None:
    """Make the environment in `folder`. Raises `CalledProcessError` if venv or pip fails."""
    python = folder / "bin" / "python"
    if not python.exists():
        say(f"making the environment {folder}")
        run(sys.executable, "-m", "venv", str(folder))
    for package, version in VERSIONS.items():
        if installed(python, package) != version:
            say(f"installing {package} {version}")
            wanted = f"{package}=={version}"
            run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted)
    say(f"checking that {python} imports them")
    run(str(python), "-c", "import sglang_router.launch_router, smg.launch_router")
    say(f"{' and '.join(' '.join(one) for one in VERSIONS.items())} are in {folder}")


def installed(python: Path, package: str) -> str:
    """The installed version; empty if there is none."""
    code = "import importlib.metadata as m, sys; print(*{d.version for d in m.distributions(name=sys.argv[1])})"
    done = subprocess.run([str(python), "-I", "-c", code, package], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def say(words: str) -> None:
    print(words, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    try:
        install(given.folder.absolute())
    except subprocess.CalledProcessError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
