"""Pages: what they are made of, and the live one that `stoker serve --ui` shows."""

from __future__ import annotations

from importlib.resources import files


def static(name: str) -> str:
    """One of the files of the pages, as text."""
    return files("lifecycle.ui").joinpath("static", name).read_text(encoding="utf-8")
