"""`python -m lifecycle.diagram --write DIR` draws every diagram; `--check DIR` says which ones are out of date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lifecycle.diagram import committed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lifecycle.diagram")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", metavar="DIR", type=Path)
    what.add_argument("--check", metavar="DIR", type=Path)
    args = parser.parse_args()
    folder: Path = args.write or args.check
    stale = []
    for name, content in committed():
        path = folder / name
        if args.write:
            path.write_text(content, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != content:
            stale.append(name)
    if stale:
        print(f"out of date: {', '.join(stale)}; run `make diagrams`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
