"""docs/faults.md: every fault that people met, what Stoker makes of it, and the tests that show it.

    python -m tests.faults.page --write docs/faults.md
    python -m tests.faults.page --check docs/faults.md

Read from the sources of the tests, so that it takes no second and needs nothing installed.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.faults.kinds import KINDS, Kind

ROOT = Path(__file__).parents[2]
MARK = "pytest.mark.fault"
ROWS = {kind.first + place: row for kind in KINDS for place, row in enumerate(kind.rows)}
INTRODUCTION = """# Faults

What people have met when they started, watched, fed and ended servers of LLMs, and what Stoker makes of it. The tests
of a row go past it: they show its kind. Those of real processes start a fake server that fails in that way; it comes
with Stoker (`lifecycle/testing/fake_server.py`).

Made by `make docs` from `tests/faults/kinds.py` and from the tests that name a row with `@pytest.mark.fault`;
`make lint` finds a row without a test, and a test of a row that is not there.
`pytest -m fault` runs them all."""


def marked(source: str) -> Iterator[tuple[str, int]]:
    """(name of a test, row that it shows) of a module. Raises `ValueError` if a row is no plain number."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == MARK:
                    for argument in mark.args:
                        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, int)):
                            raise ValueError(f"{node.name}: {ast.unparse(argument)} is no number of a row")
                        yield node.name, argument.value


def shown_by(sources: Mapping[str, str]) -> dict[int, list[tuple[str, str]]]:
    """Row to the tests that show it, as (path, name)."""
    found: dict[int, list[tuple[str, str]]] = {}
    for path in sorted(sources):
        for name, row in marked(sources[path]):
            found.setdefault(row, []).append((path, name))
    return found


def wrong(tests: Mapping[int, object], kinds: Iterable[Kind] = KINDS) -> list[str]:
    """What is not as it must be, a line each."""
    said, expected = [], 1
    for kind in kinds:
        if kind.first != expected:
            said.append(f"{kind.title!r} begins with row {kind.first}, not with {expected}")
        expected = kind.first + len(kind.rows)
    rows = {kind.first + place for kind in kinds for place in range(len(kind.rows))}
    said += [f"row {row} has no test: mark one with @{MARK}({row})" for row in sorted(rows - set(tests))]
    return said + [f"a test is marked with row {row}, which is not in the table" for row in sorted(set(tests) - rows)]


def page(tests: Mapping[int, list[tuple[str, str]]]) -> str:
    """All of it in Markdown."""
    parts = [INTRODUCTION]
    for kind in KINDS:
        parts.append(f"## {kind.title}")
        lines = ["| # | what people meet | what Stoker does | shown by |", "|---|---|---|---|"]
        for number, row in enumerate(kind.rows, kind.first):
            shown = "<br>".join(f"[{_words(name)}](../{path})" for path, name in tests.get(number, []))
            lines.append(f"| {number} | {row.met} | {row.answer} | {shown} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def read(root: Path = ROOT) -> dict[str, str]:
    """The sources of all tests by their path."""
    found = sorted((root / "tests").rglob("test_*.py"))
    return {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in found}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the page of faults, or check that it is up to date.")
    parser.add_argument("path", type=Path)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--write", action="store_true")
    how.add_argument("--check", action="store_true")
    args = parser.parse_args()
    tests = shown_by(read())
    said = wrong(tests)
    if not said and args.check and (not args.path.exists() or args.path.read_text(encoding="utf-8") != page(tests)):
        said = [f"{args.path} is not what the tests say: run `make docs`"]
    if said:
        print("\n".join(said), file=sys.stderr)
        return 1
    if args.write:
        args.path.write_text(page(tests), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
