"""A model's weights on this disk: in a folder, or in the hub's cache as huggingface_hub 1.x lays it out
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache). The library itself is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
"""What engines load, the best first: they take one kind, and leave the others of the same repository alone."""
NAME = re.compile(r"(?:[\w.-]+/)?[\w.-]+")
"""A model on the hub: user/repository, or an old name without a user, such as gpt2."""
Environ = Mapping[str, str | None]


@dataclass(frozen=True)
class OnDisk:
    """A model's files are here."""

    path: Path
    size: int
    """Bytes of weights."""
    cached: bool = False
    """In the hub's cache, not in a folder of somebody's own."""


def looks_like_path(model: str) -> bool:
    """Whether a model can only be meant as a path."""
    return model.startswith(("/", "./", "../", "~")) or model.endswith(".gguf") or not NAME.fullmatch(model)


def in_folder(model: str) -> OnDisk | None:
    """The model at a path; None if there is nothing. Raises `OSError`."""
    path = Path(model).expanduser()
    if path.is_file():
        return OnDisk(path, path.stat().st_size)
    return OnDisk(path, weights_in(path)) if path.is_dir() else None


def in_cache(model: str, revision: str, environ: Environ) -> OnDisk | None:
    """The snapshot of a hub model on this disk; None if there is none with weights. Raises `OSError`."""
    repository = hub_cache(environ) / f"models--{model.replace('/', '--')}"
    wanted = revision or "main"
    ref = repository / "refs" / wanted
    commit = ref.read_text(encoding="ascii", errors="replace").strip() if ref.is_file() else wanted
    snapshot = repository / "snapshots" / commit
    size = weights_in(snapshot) if snapshot.is_dir() else 0
    return OnDisk(snapshot, size, cached=True) if size else None


def hub_cache(environ: Environ) -> Path:
    """The folder of the hub's cache, as a process with these variables has it."""
    own = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(own).expanduser() if own else hub_home(environ) / "hub"


def hub_home(environ: Environ) -> Path:
    home = environ.get("HF_HOME")
    if home:
        return Path(home).expanduser()
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface"


def weights_in(folder: Path) -> int:
    """Bytes of the weights in a folder."""
    return weights_of({str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()})


def weights_of(sizes: Mapping[str, int]) -> int:
    """Bytes of the weights among files, by name: those of one kind only."""
    for kind in WEIGHTS:
        size = sum(size for name, size in sizes.items() if name.endswith(kind))
        if size:
            return size
    return 0
