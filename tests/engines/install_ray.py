"""Makes a virtual environment with Ray: `python tests/engines/install_ray.py FOLDER`. 300 MB, about half a minute.

Ray lives in an environment of its own, as engines do: Stoker starts it as a process and asks it through its own
interpreter, and never imports it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

VERSION = "2.60.0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", f"ray=={VERSION}"], check=True
    )
    print(f"ray {VERSION}: {python}")


if __name__ == "__main__":
    main()
