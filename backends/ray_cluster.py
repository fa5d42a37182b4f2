"""Asks a Ray cluster which nodes it has, through a short process of an interpreter that has Ray: Stoker never imports
it, for versions must be the same on all sides.

The question goes to the cluster's own register of nodes (GCS), by the client that `ray` itself uses (`GcsClient` of
`ray._raylet`, the same from 2.40 to 2.60): half a second, nearly all of it for importing Ray. The dashboard, the other
way to know, is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lifecycle.adapter import Ask
from lifecycle.decoding import decode
from lifecycle.errors import LaunchError

PATIENCE = 1.0
"""Seconds that one question waits for a yes, so that a node that joins is seen at once."""
TIMEOUT = 60.0
"""Seconds for one question: importing Ray takes that long from a cold network disk."""
MARK = "STOKER RAY NODES "
QUESTION = """
import json, socket, sys, time
head, address = sys.argv[1:3]
port, wanted, gpus = map(int, sys.argv[3:6])
until = time.monotonic() + float(sys.argv[6])

def say(**what):
    print("STOKER RAY NODES " + json.dumps(what), flush=True)
    sys.exit()

host, _, number = head.rpartition(":")
try:
    socket.create_connection((host.strip("[]"), int(number)), 3).close()
except OSError as error:
    say(error=f"{error.strerror or error}")
try:
    from ray._raylet import GcsClient
    client = GcsClient(address=head)
    while True:
        found = [
            {
                "address": node.node_manager_address,
                "port": node.node_manager_port,
                "alive": node.state == 0,
                "gpus": dict(node.resources_total).get("GPU", 0.0),
            }
            for node in client.get_all_node_info(timeout=5).values()
        ]
        alive = [node for node in found if node["alive"]]
        here = any((node["address"], node["port"]) == (address, port) for node in alive)
        enough = len(alive) >= wanted and sum(node["gpus"] for node in alive) >= gpus
        if (here if port else enough) or time.monotonic() > until:
            say(nodes=found)
        time.sleep(0.1)
except Exception as error:
    say(error=f"{type(error).__name__}: {error}")
"""


class Node(msgspec.Struct, frozen=True):
    """A node that is, or was, part of a cluster."""

    address: str
    port: int
    """Of its node manager."""
    alive: bool
    gpus: float = 0.0


class Said(msgspec.Struct, frozen=True):
    """What the cluster's head said."""

    nodes: tuple[Node, ...] = ()
    error: str = ""
    """Why it said nothing."""

    @property
    def alive(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.alive)


async def ask_cluster(
    python: str,
    head: str,
    ask: Ask,
    *,
    env: Mapping[str, str],
    wanted: int = 1,
    gpus: int = 0,
    node: tuple[str, int] = ("", 0),
    patience: float = PATIENCE,
) -> Said:
    """Ask the head of a cluster which nodes it has.

    Args:
        python: an interpreter that has Ray.
        head: address and port of the head.
        env: variables: the cluster's token.
        wanted, gpus: how many nodes, and GPUs of them, are waited for, `patience` seconds at most.
        node: address and port of the one that is waited for instead.

    Raises `LaunchError` if nobody can be asked.
    """
    words = (python, "-c", QUESTION, head, node[0], *map(str, (node[1], wanted, gpus, patience)))
    return read_said(await ask(words, env={**env, "PYTHONSAFEPATH": "1"}, timeout=TIMEOUT + patience))


def read_said(text: str) -> Said:
    """What `QUESTION` printed, among whatever Ray printed. Raises `LaunchError`."""
    for line in reversed(text.splitlines()):
        if line.startswith(MARK):
            return decode(line.removeprefix(MARK), Said)
    raise LaunchError("asked for the nodes of the Ray cluster, its interpreter said nothing that can be read")


def missing_nodes(said: Said, head: str, wanted: int) -> str:
    """What a cluster lacks that is to have `wanted` nodes; nothing if it has them."""
    if said.error:
        return unanswered(said, head)
    if len(said.alive) >= wanted:
        return ""
    lost = [node.address for node in said.nodes if not node.alive]
    gone = f"; lost: {', '.join(lost)}" if lost else ""
    return f"{len(said.alive)} of {wanted} nodes of the Ray cluster at {head} are alive: {in_words(said.alive)}{gone}"


def missing_node(said: Said, head: str, address: str, port: int) -> str:
    """What is wrong with one node of a cluster; nothing if it is alive."""
    if said.error:
        return unanswered(said, head)
    same = [node for node in said.nodes if (node.address, node.port) == (address, port)]
    if any(node.alive for node in same):
        return ""
    what = "counts as dead there" if same else "has not joined it"
    return f"this node ({address}) {what}; the Ray cluster at {head} has {in_words(said.alive)}"


def missing_gpus(said: Said, head: str, wanted: int) -> str:
    """What a cluster lacks that is to have so many GPUs; nothing if it has them."""
    if said.error:
        return unanswered(said, head)
    found = sum(node.gpus for node in said.alive)
    if found >= wanted:
        return ""
    return f"{wanted} GPUs are wanted, and the Ray cluster at {head} has {found:g}: {in_words(said.alive)}"


def unanswered(said: Said, head: str) -> str:
    return f"the Ray cluster at {head} cannot be asked for its nodes: {said.error}"


def in_words(nodes: Sequence[Node]) -> str:
    return ", ".join(f"{node.address} ({node.gpus:g} GPUs)" for node in nodes) or "no node"
