"""A run as a timeline, from its journals: text, a picture, and a page that can be stepped through."""

from __future__ import annotations

from lifecycle.trace.lives import Attempt, Life, Stretch, lives_of
from lifecycle.trace.reading import read

__all__ = ["Attempt", "Life", "Stretch", "lives_of", "read"]
