"""What a cluster lacks for a replica, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SMALLEST = 1e-4
"""The least amount of a resource that Ray knows (its documentation, "Fractional resource requirements")."""


@dataclass(frozen=True)
class Stock:
    """What a cluster has."""

    total: Mapping[str, float]
    free: Mapping[str, float]
    nodes: tuple[Mapping[str, float], ...]
    """The resources, free or not, of each node that is alive and would do."""
    group: str = ""
    """What Ray says of the placement group."""

    def places(self, needs: Mapping[str, float]) -> int:
        """How many replicas that need so much the nodes could have, if all were free.

        >>> Stock({}, {}, ({"GPU": 8.0}, {"GPU": 3.0})).places({"GPU": 2.0})
        5
        """
        return sum(_times(needs, node) for node in self.nodes)

    def free_places(self, needs: Mapping[str, float]) -> int:
        """At most how many they could have now."""
        return min(self.places(needs), _times(needs, self.free))

    def could_do(self, needs: Mapping[str, float]) -> bool:
        """Whether a node has all of it, if all were free."""
        return any(all(node.get(name, 0) >= amount for name, amount in needs.items()) for node in self.nodes)


def _times(needs: Mapping[str, float], there: Mapping[str, float]) -> int:
    times = [there.get(name, 0) / amount for name, amount in needs.items() if amount >= SMALLEST]
    return int(min(times, default=1))


def missing(needs: Mapping[str, float], stock: Stock) -> str:
    """What is wanted and what there is, the resource that is short first.

    >>> missing({"GPU": 4.0}, Stock({"GPU": 4.0}, {"GPU": 4.0}, ({"GPU": 2.0}, {"GPU": 2.0}), "PENDING"))
    '4 GPU are wanted on one node; no node has so many: 4 GPU are in the cluster, 4 of them free, and at most 2 on one \
node (2 nodes alive); the placement group is PENDING'
    """
    wanted = " and ".join(f"{amount:g} {name}" for name, amount in needs.items())
    verb = "is" if list(needs.values()) == [1] else "are"
    short = [name for name in needs if not any(node.get(name, 0) >= needs[name] for node in stock.nodes)]
    busy = [name for name in needs if name not in short and stock.free.get(name, 0) < needs[name]]
    if short:
        why = "no node has so many: " + _counts(short, stock, most=True)
    elif not stock.could_do(needs):
        why = "no node has all of it: " + _counts(needs, stock, most=True)
    elif busy:
        why = "others hold it: " + _counts(busy, stock)
    else:
        why = "no node has all of it free: " + _counts(needs, stock)
    alive = "1 node alive" if len(stock.nodes) == 1 else f"{len(stock.nodes)} nodes alive"
    group = f"; the placement group is {stock.group}" if stock.group else ""
    return f"{wanted} {verb} wanted on one node; {why} ({alive}){group}"


def _counts(names: Iterable[str], stock: Stock, *, most: bool = False) -> str:
    told = []
    for name in names:
        text = f"{stock.total.get(name, 0):g} {name} are in the cluster, {stock.free.get(name, 0):g} of them free"
        if most:
            text += f", and at most {max((node.get(name, 0) for node in stock.nodes), default=0):g} on one node"
        told.append(text)
    return "; ".join(told)
