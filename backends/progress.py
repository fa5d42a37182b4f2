"""What tqdm's progress bars say, in whatever engine prints them. Pure.

Formats of tqdm 4.67 and of huggingface_hub 2.4, which has its own for what it fetches in chunks (Xet).
"""

from __future__ import annotations

import re

from lifecycle.adapter import Phase

SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
BAR = re.compile(
    r"\| *(?P<done>[\d.]+)(?P<done_scale>[kMGTP]?)(?P<byte>B?) ?/ *(?P<total>[\d.]+)(?P<total_scale>[kMGTP]?)B?"
    r"(?P<rest>\D.*)$"
)
"""The end of a bar: `| 1.20G/2.70G [00:11<00:14, 104MB/s]`, `| 3/8 [00:01<00:02, 2.5it/s]`, `| 1.20GB / 2.70GB, …`."""
DOWNLOAD = re.compile(
    r"Fetching \d+ files: +\d+%|(?:Reconstructing|Downloading)\b.*: +\d+%|"
    r"\.(?:safetensors|bin|pt|pth|gguf|json|model)(?:: reconstructing file)?: +\d+%"
)
"""The beginnings of the bars that the hub draws while it fetches a model."""


def download(line: str) -> Phase | None:
    """How far the download of a model has got, if that is what a line tells."""
    return counted("downloading", line) if DOWNLOAD.search(line) else None


def counted(name: str, line: str) -> Phase:
    """The phase `name`, with what a bar in `line` counts, if there is one.

    >>> counted("loading", "Loading shards:  38% Completed | 3/8 [00:01<00:02,  2.50it/s]")
    Phase(name='loading', done=3, total=8, unit='')
    >>> counted("downloading", "model.safetensors:  45%|####5     | 1.2G/2.7G [00:11<00:14, 104MB/s]")
    Phase(name='downloading', done=1200000000, total=2700000000, unit='bytes')
    """
    bar = BAR.search(line)
    if bar is None:
        return Phase(name)
    unit = "bytes" if bar["byte"] or "B/s" in bar["rest"] else ""
    return Phase(name, number(bar["done"], bar["done_scale"]), number(bar["total"], bar["total_scale"]), unit)


def number(digits: str, scale: str) -> int:
    """A count as tqdm shortens it: 1.20 and G are 1,200,000,000."""
    return round(float(digits) * SCALE[scale])
