"""What the hosts of a group say to each other, as JSON lines, and how they make sure of each other. Pure.

The head speaks first (`Challenge`), a host that comes answers (`Hello`), and is taken in (`Welcome`) or not
(`Refusal`). With a shared key, each proves with an HMAC over both sides' nonces that it has it. Nothing in a message is
a command line: a host starts only what its own configuration describes.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import fields
from ipaddress import ip_address

import msgspec

from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis
from lifecycle.errors import StokerError

PROTOCOL = 1
"""Changes with every change of a message that another version would not understand."""
LONGEST = 1 << 20
"""Bytes of one message; a diagnosis with its last log lines is the longest."""


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """The head, as soon as somebody has connected."""

    protocol: int
    nonce: str


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A host that wants to take part."""

    protocol: int
    rank: int
    nodes: int
    settings: dict[str, str]
    """A short hash of each setting that all hosts must share."""
    host: str
    """Its name, for people."""
    instance: str
    """Random, the same as long as the host's command runs: one that comes back is told from another one."""
    nonce: str
    proof: str = ""


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The host is taken in."""

    proof: str = ""


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """The host is not taken in. `final`: nor will it be if it comes again."""

    reason: str
    final: bool = True


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Still there."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Start a member of yours."""

    member: str
    attempt: int
    head_address: str
    head_port: int


class End(msgspec.Struct, frozen=True, tag=True):
    """End a member of yours. `drain` and `kill` are those of `lifecycle.server_facts.Stop`; `now`: SIGKILL."""

    member: str
    drain: float | None = None
    kill: float | None = None
    now: bool = False


class News(msgspec.Struct, frozen=True, tag=True):
    """What has become of a member."""

    member: str
    attempt: int
    state: str
    model: str = ""
    phase: str = ""
    diagnosis: Diagnosis | None = None


class Leave(msgspec.Struct, frozen=True, tag=True):
    """This host was told to end, within so many seconds if a number is given."""

    within: float | None = None


class Dismiss(msgspec.Struct, frozen=True, tag=True):
    """The group has ended: as it was told to, or given up for the reason that is named."""

    diagnosis: Diagnosis | None = None


Message = Challenge | Hello | Welcome | Refusal | Beat | Begin | End | News | Leave | Dismiss
_decoder = msgspec.json.Decoder(Message)


def encode(message: Message) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> Message:
    """The message in a line. Raises `WireError` for anything else."""
    try:
        found: Message = _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise WireError(f"what came is no message of this protocol ({error})") from None
    return found


class WireError(StokerError):
    """The other side does not speak as it should."""


SHARED = (
    "backend", "model", "revision", "dtype", "context_length", "tensor_parallel", "pipeline_parallel", "data_parallel",
    "nodes", "engine_seed", "trust_remote_code", "served_name", "engine_args", "options",
)  # fmt: skip
"""Settings that every host must have alike. Paths, addresses and timeouts are each host's own."""


def digests(config: ServerConfig) -> dict[str, str]:
    """A short hash of each setting that all hosts must share: a difference can be named, and no value is told."""
    known = {each.name for each in fields(ServerConfig)}
    return {name: _digest(getattr(config, name)) for name in SHARED if name in known}


def _digest(value: object) -> str:
    plain = msgspec.json.encode(msgspec.to_builtins(value, enc_hook=str), order="deterministic")
    return hashlib.sha256(plain).hexdigest()[:12]


def proof(key: bytes, side: str, challenge: Challenge, hello: Hello) -> str:
    """What only who has the key can say here: HMAC-SHA256 over who speaks, both nonces and all that `hello` claims.
    Empty without a key."""
    if not key:
        return ""
    claims = msgspec.structs.replace(hello, proof="")
    text = b"|".join((side.encode(), msgspec.json.encode(challenge), msgspec.json.encode(claims, order="sorted")))
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def refusal(
    key: bytes, variable: str, nodes: int, mine: dict[str, str], challenge: Challenge, hello: Hello
) -> Refusal | None:
    """Why the head does not take in a host that says `hello`; None: it does. `variable` is where it has its key from.
    """
    if hello.protocol != PROTOCOL:
        return Refusal(f"it speaks version {hello.protocol} of the protocol, the head {PROTOCOL}: {SAME_STOKER}")
    if not _same(hello.proof, proof(key, "host", challenge, hello)):
        said = "no key, and the head has one" if not hello.proof else "another key than the head" if key else (
            "a key, and the head has none")  # fmt: skip
        return Refusal(f"it has {said}: give every host the same key, by {variable}")
    if hello.nodes != nodes:
        return Refusal(f"it was started for a group of {hello.nodes} hosts, the head for one of {nodes}")
    if not 0 < hello.rank < nodes:
        return Refusal(f"its rank is {hello.rank}, and the ranks beside the head are 1 to {nodes - 1}")
    differ = sorted(name for name in mine.keys() | hello.settings.keys() if mine.get(name) != hello.settings.get(name))
    if differ:
        return Refusal(f"it was started with other settings than the head: {', '.join(differ)} differ")
    return None


SAME_STOKER = "install the same version of Stoker on every host"


def welcomed(key: bytes, challenge: Challenge, hello: Hello, answer: Message) -> Refusal | None:
    """Why a host does not go on with a head that gave this answer; None: it does."""
    if isinstance(answer, Refusal):
        return answer
    if not isinstance(answer, Welcome):
        raise WireError(f"the head answers {type(answer).__name__} where Welcome was due")
    if key and not _same(answer.proof, proof(key, "head", challenge, hello)):
        return Refusal("the head does not have the key that this host has: give every host the same")
    return None


def checked(begin: Begin) -> Begin:
    """A `Begin` whose values can be put into a command line. Raises `WireError`."""
    try:
        address = str(ip_address(begin.head_address))
    except ValueError:
        raise WireError(f"head_address = {begin.head_address!r} is no literal address") from None
    if not 1 <= begin.head_port <= 65535:
        raise WireError(f"head_port = {begin.head_port} is no port")
    return msgspec.structs.replace(begin, head_address=address)
