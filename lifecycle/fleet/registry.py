"""Which servers a router is to know, and what it must be told so that it does. Pure: no clock, no I/O.

What the router has is never assumed, but read from the router each time: it does what it is told later, may have been
told twice, and forgets everything when it is started again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

ADD_AGAIN = 2.0
"""Seconds after which a router that does not list a server is told of it again."""


@dataclass(frozen=True)
class Place:
    """Where one life of a replica serves."""

    url: str
    model: str
    life: int = 1
    """Counts the times that the replica became Healthy. One that is back on the same port is another process."""


@dataclass(frozen=True)
class Listed:
    """A server as the router lists it."""

    id: str
    url: str


@dataclass(frozen=True)
class Add:
    place: Place


@dataclass(frozen=True)
class Remove:
    listed: Listed


@dataclass(frozen=True)
class Call:
    """A request to the router."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None


class Routing(Protocol):
    """What a backend that is a router has besides what every `lifecycle.adapter.Adapter` has."""

    control_key: str
    """Key of the calls below; they are all there is that needs it."""

    def listing(self) -> Call:
        """Asks for the servers that it has."""
        ...

    def listed(self, body: Any) -> tuple[Listed, ...]:
        """Reads the answer. Raises `ValueError` if it is none."""
        ...

    def add(self, place: Place, key: str | None) -> Call:
        """Tells it of a server; `key` is what that server wants."""
        ...

    def remove(self, listed: Listed) -> Call:
        """Makes it forget one. What is in flight there goes on."""
        ...


@dataclass(frozen=True)
class Registry:
    """What is wanted, and what the router may have been told."""

    wanted: Mapping[str, Place] = field(default_factory=dict)
    """The replicas that are Healthy, by URL."""
    told: Mapping[str, Place] = field(default_factory=dict)
    """What it was told of last at each URL, and has not been seen to forget."""
    told_at: Mapping[str, float] = field(default_factory=dict)
    have: frozenset[Place] = frozenset()
    """The wanted ones that it was seen to have, by its last list."""

    @property
    def gone(self) -> frozenset[Place]:
        """Told of, not wanted any more, and perhaps still sent requests."""
        return frozenset(place for place in self.told.values() if self.wanted.get(place.url) != place)

    @property
    def settled(self) -> bool:
        """The router has what is wanted, and nothing that was wanted once."""
        return not self.gone and self.have == frozenset(self.wanted.values())


def want(registry: Registry, places: Iterable[Place]) -> Registry:
    """These replicas are Healthy now, and no others."""
    wanted = {place.url: place for place in places}
    return replace(registry, wanted=wanted, have=registry.have & frozenset(wanted.values()))


def router_gone(registry: Registry) -> Registry:
    """The router has ended: whatever it was told of is forgotten."""
    return Registry(wanted=registry.wanted)


def observe(registry: Registry, listing: Iterable[Listed]) -> Registry:
    """The router lists these. A wanted server of which it was told some earlier time counts as told of now."""
    seen = {each.url: each for each in listing}
    told = {url: place for url, place in registry.told.items() if url in seen or registry.wanted.get(url) == place}
    told = {**{url: registry.wanted[url] for url in seen if url in registry.wanted}, **told}
    have = frozenset(place for url, place in registry.wanted.items() if url in seen and told.get(url) == place)
    return replace(registry, told=told, have=have)


def plan(registry: Registry, listing: Iterable[Listed], now: float) -> tuple[Add | Remove, ...]:
    """What to tell the router that lists these at `now`, in seconds; `registry` has observed that list.

    Those to be forgotten come first. A server that takes the place of another at the same URL is added when the other
    is seen to be gone. One that drains is kept as long as the router has none of those that are to take over: it still
    answers, since its drain waits until it is forgotten.
    """
    listing = tuple(listing)
    nobody_else = bool(registry.wanted) and not registry.have
    keep: set[str] = set()
    removals = []
    for each in listing:
        place = registry.wanted.get(each.url)
        if each.url not in keep and (registry.told.get(each.url) == place if place else nobody_else):
            keep.add(each.url)
        else:
            removals.append(Remove(each))
    there = {each.url for each in listing}
    additions = [Add(place) for url, place in registry.wanted.items() if url not in there and _due(registry, url, now)]
    return (*removals, *additions)


def tell(registry: Registry, place: Place, now: float) -> Registry:
    """The router is being told of `place` at `now`."""
    url = place.url
    return replace(registry, told={**registry.told, url: place}, told_at={**registry.told_at, url: now})


def _due(registry: Registry, url: str, now: float) -> bool:
    return registry.told.get(url) != registry.wanted[url] or now >= registry.told_at.get(url, now) + ADD_AGAIN

