"""`python -m lifecycle.promela NAME` prints a chart as Promela; `--verify [NAME...]` has spin check it."""

from __future__ import annotations

import argparse
import sys

from lifecycle.promela import SUBJECTS, SpinError, promela, verify


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lifecycle.promela")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(SUBJECTS)}; to verify: all of them")
    parser.add_argument("--verify", action="store_true", help="have spin check it; needs spin and gcc")
    parser.add_argument("--depth", type=int, default=None, metavar="N", help="letters in a mailbox (default: 3)")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in SUBJECTS]
    if unknown or not (args.names or args.verify):
        parser.error(f"{', '.join(unknown) or 'nothing'}: name one of {', '.join(SUBJECTS)}")
    if not args.verify:
        for name in args.names:
            print(promela(SUBJECTS[name]()), end="")
        return 0
    broken = False
    for name in args.names or SUBJECTS:
        about = SUBJECTS[name]()
        try:
            found = verify(promela(about), about.claims, depth=args.depth, fast=True)
        except SpinError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        for verdict in found:
            says = "holds" if verdict.holds else "BROKEN"
            took = f"{verdict.states:>10} states {verdict.seconds:7.1f} s"
            print(f"{name:10} {verdict.claim:40} {says:7} {took}", flush=True)
            if verdict.story:
                print(f"  {verdict.story}")
        broken = broken or not all(verdict.holds for verdict in found)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
