"""`python -m lifecycle.promela NAME` prints a chart as Promela; `--verify [NAME...]` has spin check it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lifecycle.promela import PROTOCOLS, SUBJECTS, Claim, SpinError, promela, verify

NAMES = (*SUBJECTS, *PROTOCOLS)


def _about(name: str) -> tuple[str, Sequence[Claim]]:
    """The text, and what is claimed of it."""
    if name in PROTOCOLS:
        protocol = PROTOCOLS[name]()
        return protocol.text(), protocol.claims
    subject = SUBJECTS[name]()
    return promela(subject), subject.claims


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lifecycle.promela")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; to verify: all charts")
    parser.add_argument("--verify", action="store_true", help="have spin check it; needs spin and gcc")
    parser.add_argument("--depth", type=int, default=None, metavar="N", help="letters in a mailbox (default: 3)")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in NAMES]
    if unknown or not (args.names or args.verify):
        parser.error(f"{', '.join(unknown) or 'nothing'}: name one of {', '.join(NAMES)}")
    if not args.verify:
        for name in args.names:
            print(_about(name)[0], end="")
        return 0
    broken = False
    for name in args.names or SUBJECTS:
        text, claims = _about(name)
        try:
            found = verify(text, claims, depth=args.depth, fast=True)
        except SpinError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        for verdict in found:
            says = "holds" if verdict.holds else "BROKEN"
            took = f"{verdict.states:>10} states {verdict.seconds:7.1f} s"
            print(f"{name:20} {verdict.claim:40} {says:7} {took}", flush=True)
            if verdict.story:
                print(f"  {verdict.story}")
        broken = broken or not all(verdict.holds for verdict in found)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
