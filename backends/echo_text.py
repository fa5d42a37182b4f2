"""What the echo server says: readable sentences about the words of a prompt, the same for the same request. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice

OPENINGS = (
    "You ask about {a}, and that touches {b} as well.",
    "The short answer begins with {a}.",
    "Let us take {a} first, then {b}.",
    "What matters here is how {a} and {b} belong together.",
    "There is more to {a} than it seems.",
)
SENTENCES = (
    "With {a} it is worth looking at {b} closely.",
    "Some would put {a} before {b}, and they have a point.",
    "A good example of {a} is found wherever {b} comes up.",
    "Where {a} ends, {b} begins.",
    "Nobody who has seen {a} will be surprised by {b}.",
    "In practice {a} decides.",
    "That leaves {a}, which follows from {b}.",
    "It helps to write down {a} and to keep {b} in mind.",
    "Without {a} there would be little to say about {b}.",
    "Both {a} and {b} can be checked by hand.",
)
COMMON = frozenset(
    re.findall(
        r"\w+",
        """
        a about all also an and any are as at be been but by can could do does for from had has have he her his how i
        if in into is it its just like may me more most my no not of on one or our out she should so some such than
        that the their them then there these they this to us was we were what when where which who why will with would
        you your
        """,
    )
)
NOTHING = ("the question", "an answer")


def words(prompt: str) -> tuple[str, ...]:
    """The words of `prompt` that carry it, each once, in order; stand-ins if there are none."""
    found = dict.fromkeys(word.lower() for word in re.findall(r"[^\W_][\w'-]*", prompt))
    return tuple(word for word in found if word not in COMMON and len(word) < 40) or NOTHING


def tokens(prompt: str, *, key: str = "") -> Iterator[str]:
    """Tokens (a word with the space before it) of an answer that never ends, sentence after sentence.

    Args:
        prompt: the whole prompt.
        key: everything else that makes one answer differ from another: sampling parameters, seed, index.
    """
    roll = random.Random(sha256(f"{key}\0{prompt}".encode("utf-8", "surrogatepass")).digest())
    known = words(prompt)
    first = True
    while True:
        pattern = roll.choice(OPENINGS if first else SENTENCES)
        a, b = (roll.choice(known) for _ in "ab") if len(known) < 2 else roll.sample(known, 2)
        sentence = pattern.format(a=a, b=b)
        for word in (sentence[0].upper() + sentence[1:]).split():
            yield word if first else f" {word}"
            first = False


def natural_length(prompt: str, *, key: str = "") -> int:
    """How many tokens the answer has if nothing cuts it: two to six whole sentences."""
    roll = random.Random(sha256(f"length\0{key}\0{prompt}".encode("utf-8", "surrogatepass")).digest())
    sentences = roll.randint(2, 6)
    for count, token in enumerate(tokens(prompt, key=key), 1):
        if token.endswith("."):
            sentences -= 1
            if not sentences:
                return count
    raise AssertionError("the answer never ends")


def answer(
    prompt: str, *, key: str, limit: int | None, ignore_eos: bool = False, stop: Sequence[str] = ()
) -> tuple[list[str], str]:
    """The tokens of an answer and why it ends there: `stop` or `length`.

    Args:
        prompt: the whole prompt.
        key: see `tokens`.
        limit: most tokens. None: no limit.
        ignore_eos: go on until `limit`.
        stop: texts before which the answer ends.
    """
    natural = natural_length(prompt, key=key)
    count = natural if limit is None else limit if ignore_eos else min(natural, limit)
    reason = "stop" if count == natural and not ignore_eos else "length"
    found = list(islice(tokens(prompt, key=key), count))
    text = "".join(found)
    cut = min((at for at in (text.find(s) for s in stop if s) if at >= 0), default=-1)
    if cut < 0:
        return found, reason
    kept: list[str] = []
    for token in found:
        if cut <= 0:
            break
        kept.append(token[:cut])
        cut -= len(token)
    return kept, "stop"


def count_tokens(text: str) -> int:
    """How many tokens a prompt has: its words, at least one."""
    return max(1, len(text.split()))
