"""Install the real SGLang on a machine without a GPU, in a virtual environment of its own.

    python tests/engines/install_sglang.py .venv/engines/sglang

Everything but CUDA is the real thing: the HTTP server, the tokenizer manager, the scheduler and the detokenizer, their
ports, logs and signals. Two packages that need a GPU, `sgl_kernel` and `torchvision`, are stubbed by
`sglang_stubs.py`. Takes 3.5 GB of disk and two to five minutes; a second run finds that all is done.

Where the index that pip uses has no CPU build of torch, name PyTorch's own index of them, which its installation page
gives, in PIP_EXTRA_INDEX_URL.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

SGLANG = "0.5.23"
TORCH = "2.13.0+cpu"
"""SGLang 0.5.23 asks for torch 2.14.1, a CUDA build of 3 GB; with this one its CPU path runs."""
ALONE = (
    f"sglang=={SGLANG}", "apache-tvm-ffi==0.1.11", "compressed-tensors==0.18.0", "mistral_common==1.13.1",
    "modelscope==1.40.2", "outlines==0.1.11", "outlines_core==0.1.26", "timm==1.0.25", "torch_memory_saver==0.0.10",
    "xgrammar==0.2.7",
)  # fmt: skip
"""Installed without what they ask for, which would be CUDA builds of torch or packages that nothing here imports."""
NEEDED = (
    "aiohttp", "airportsdata", "anthropic", "blobfile==3.0.0", "cloudpickle", "datasets", "diskcache", "distro",
    "einops", "fastapi", "gguf", "interegular", "IPython", "jinja2", "jsonschema", "lark", "llguidance>=1.7.6,<2",
    "loguru", "msgspec", "nest_asyncio", "ninja", "numba==0.65.1", "numpy", "nvidia-ml-py", "openai-harmony==0.0.4",
    "openai==2.8.0", "orjson", "packaging", "partial_json_parser", "pillow", "prometheus_client", "psutil", "py-spy",
    "pybase64", "pycountry", "pydantic", "pydantic-extra-types", "python-multipart", "pyzmq", "referencing",
    "requests", "scipy", "sentencepiece==0.2.1", "setproctitle", "soundfile==0.13.1", "tiktoken", "tokenizers==0.23.2",
    "tqdm", "transformers==5.19.0", "triton", "uvicorn>=0.51", "uvloop", "watchfiles",
)  # fmt: skip
STUBS = Path(__file__).with_name("sglang_stubs.py")
TORCHVISION = "0.28.0"
"""What the stubbed package says of itself to those who ask the metadata (transformers does)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the virtual environment to make, or to complete")
    install(parser.parse_args().folder)


def install(folder: Path) -> None:
    """Make or complete the environment. Raises `subprocess.CalledProcessError` if pip fails."""
    stamp = folder / "installed-by-stoker"
    wanted = hashlib.sha256(Path(__file__).read_bytes() + STUBS.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        print(f"SGLang {SGLANG} is in {folder} already")
        return
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making a virtual environment in {folder}")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    print(f"installing torch {TORCH}")
    pip(python, "install", f"torch=={TORCH}")
    print("installing what SGLang imports")
    pip(python, "install", f"torch=={TORCH}", *NEEDED)
    print(f"installing SGLang {SGLANG} and the packages that must come without what they ask for")
    pip(python, "install", "--no-deps", *ALONE)
    print("adding the import stubs for sgl_kernel and torchvision")
    add_stubs(python)
    version = ask(python, "from sglang.version import __version__; print(__version__)")
    stamp.write_text(wanted)
    print(f"SGLang {version} is in {folder}")


def pip(python: Path, *words: str) -> None:
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "--quiet", *words], check=True)


def ask(python: Path, program: str) -> str:
    return subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def add_stubs(python: Path) -> None:
    """Copy the stubs into site-packages, load them in every process, and give torchvision the metadata of a package."""
    packages = Path(ask(python, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    shutil.copy(STUBS, packages / "sglang_stubs.py")
    (packages / "sglang_stubs.pth").write_text("import sglang_stubs\n")
    metadata = packages / f"torchvision-{TORCHVISION}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torchvision\nVersion: {TORCHVISION}\n")
    (metadata / "top_level.txt").write_text("torchvision\n")


if __name__ == "__main__":
    main()
