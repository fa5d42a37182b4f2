"""What all pictures share: colours for light and dark, and the room that a text takes."""

from __future__ import annotations

GLYPH = 0.56
"""Average width of a letter in units of the font size, for Helvetica-like fonts: used to wrap text."""

LIGHT = {
    "ink": "#1d2b2f", "soft": "#5c6b70", "paper": "#fbfaf7", "card": "#ffffff", "rule": "#dcdfdc", "life": "#1f7a6d",
    "end": "#c07a16", "back": "#5b5fc7", "stop": "#51626a", "fail": "#b8403a", "bar": "#dff0ec",
}  # fmt: skip
DARK = {
    "ink": "#e6ecea", "soft": "#9aabad", "paper": "#14191b", "card": "#1c2326", "rule": "#323c40", "life": "#4fc3ae",
    "end": "#e3a44a", "back": "#9a9df2", "stop": "#9fb0b8", "fail": "#ec7a72", "bar": "#1d3a37",
}  # fmt: skip


def width(text: str, size: float) -> float:
    """Estimated pixels of a text."""
    return len(text) * size * GLYPH


def wrap(text: str, room: float, size: float) -> list[str]:
    """Break a text into lines of at most `room` pixels."""
    lines, line = [], ""
    for word in text.split(" "):
        longer = f"{line} {word}".strip()
        if line and width(longer, size) > room:
            lines.append(line)
            longer = word
        line = longer
    return [*lines, line] if line else lines
