"""Lives as one HTML page that needs nothing else: the state diagram, stepped through record by record."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from typing import Any

import msgspec

from lifecycle.journal import Kind, Record
from lifecycle.trace.charts import drawn, view_of
from lifecycle.trace.lives import Life, lives_of
from lifecycle.trace.picture import picture
from lifecycle.trace.text import clock, span
from lifecycle.ui import static
from lifecycle.ui.plain import plain_attempts, plain_record, words_for

MOST_RECORDS = 20_000
"""Records in one page, about 5 MB: browsers open more of it slowly. Of a longer run the repeated phases are left out,
then the earliest records."""


def page(lives: Sequence[Life], warnings: Sequence[str], title: str, most: int = MOST_RECORDS) -> str:
    """The page."""
    shown, left_out = _at_most(lives, most)
    warnings = [*warnings, *([left_out] if left_out else [])]
    began, ended = min(life.began or 0.0 for life in shown), max(life.last for life in shown)
    script = static("parts.js") + static("trace.js")
    data = msgspec.json.encode({"lives": [plain_life(life) for life in shown]}).decode()
    parts = {
        "title": escape(title),
        "when": escape(f"{clock(began)} to {clock(ended)}, {span(ended - began)}"),
        "policy": f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_hash(script)}'",
        "style": static("style.css"),
        "warnings": "".join(f'<p class="card alarm" role="note">{escape(warning)}</p>' for warning in warnings),
        "open": "open" if len(shown) > 1 else "",
        "spoken": escape("; ".join(f"{life.server}: {life.state}" for life in shown)),
        "picture": f"data:image/svg+xml;base64,{b64encode(picture(shown, '').encode()).decode()}",
        "data": data.replace("<", "\\u003c"),
        "script": script,
    }
    pieces = static("trace.html").split("@")
    return "".join(parts.get(piece, f"@{piece}") if number % 2 else piece for number, piece in enumerate(pieces))


def plain_life(life: Life) -> dict[str, Any]:
    """A life for the page's script."""
    found, again = view_of(life), Life(life.server)
    records = []
    for record in life.records:
        again.take(record)
        records.append(plain_record(record, words_for(again, record)))
    return {
        "server": life.server, "source": life.source, "kind": life.chart, "state": life.state,
        "began": life.began, "last": life.last, "chart": drawn(found) if found else None, "records": records,
        "stretches": [{"state": one.state, "began": one.began, "index": one.index} for one in life.stretches],
        "attempts": plain_attempts(life),
    }  # fmt: skip


def _at_most(lives: Sequence[Life], most: int) -> tuple[list[Life], str]:
    """The lives with no more records than that, and what is left out, in words."""
    total = sum(len(life.records) for life in lives)
    if total <= most:
        return list(lives), ""
    kept: list[Life] = []
    room = most
    for life in reversed(lives):
        records = _without_repeats(life)[-room:] if room > 0 else []
        kept += lives_of(records, life.source)[:1]
        room -= len(records)
    left = total - sum(len(life.records) for life in kept)
    what = f"{left} of {total} records are left out: repeated phases and the earliest; --last N shows fewer lives"
    return kept[::-1], what


def _without_repeats(life: Life) -> list[Record]:
    told, kept = "", []
    for record in life.records:
        phase = str(record.detail.get("phase")) if record.kind is Kind.PHASE else ""
        if not phase or phase != told:
            kept.append(record)
        told = phase
    return kept


def _hash(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()
