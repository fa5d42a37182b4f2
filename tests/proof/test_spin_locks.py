"""The locks, step by step: spin finds nothing wrong with the tables of their steps, and finds what is.

`tests/proof/test_lock_steps.py` holds the real code against the tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lifecycle.promela import PROTOCOLS, Protocol, missing, verify
from lifecycle.promela.locks import CLOSED, compile_lock, ports
from lifecycle.promela.spin import NO_DEADLOCK
from lifecycle.promela.steps import Branch

needs_spin = pytest.mark.skipif(bool(missing()), reason=missing() or "all there")


@needs_spin
@pytest.mark.parametrize("name", ["compile-lock-2", "compile-lease-2", "ports-2"])
def test_every_claim_holds_of_the_locks_of_two(name: str) -> None:
    protocol = PROTOCOLS[name]()
    if name == "ports-2":  # its servers are killed in longer runs alone
        protocol = replace(protocol, immortal=frozenset((3, 4)))
    found = verify(protocol.text(), protocol.claims)
    assert [verdict for verdict in found if not verdict.holds] == []
    assert {verdict.claim for verdict in found} >= {NO_DEADLOCK, "all_end"}
    assert min(verdict.states for verdict in found) > 10_000


def with_step(protocol: Protocol, name: str, *branches: Branch) -> Protocol:
    """The protocol with another outcome of one step, in all the programs that have it."""
    programs = tuple(
        tuple(replace(step, branches=branches) if step.name == name else step for step in program)
        for program in protocol.programs
    )
    assert programs != protocol.programs
    return replace(protocol, programs=programs)


def takes_any_file_for_the_lock() -> Protocol:
    """Who has locked the file of a folder that has been renamed away goes on."""
    return with_step(compile_lock(2, cleared=True), "still_there", Branch("True"))


def does_not_look_again() -> Protocol:
    return with_step(compile_lock(2), "look_again", Branch("True"))


def takes_away_the_folder_without_the_lock() -> Protocol:
    return with_step(compile_lock(2), "signed_off", Branch("True", ("record = 0", *CLOSED)))


def takes_what_is_locked() -> Protocol:
    taken = Branch("True", ("owner[mine[me]] = me", "held[me] = mine[me]"))
    return with_step(compile_lock(2), "take_flock", taken)


def leaves_its_name_behind() -> Protocol:
    return with_step(compile_lock(2), "signed_off", Branch("True"))


def waits_for_the_dead() -> Protocol:
    return with_step(compile_lock(2, leased=True), "take_lease",
                     Branch("there == 0", (), "scan"), Branch("there != 0 and lease == 0", ("lease = me",)),
                     Branch("there != 0 and lease != 0", (), "waits"))  # fmt: skip


def never_looks_again() -> Protocol:
    """A lost wake-up: it looks once, and waits for a word that nobody says."""
    return with_step(compile_lock(2), "waits", Branch("True", (), "waits"))


def does_not_lease_ports() -> Protocol:
    return with_step(ports(2, 2), "lease", Branch("True", ("leases[port[me]] = me", "leased[me] = port[me]")))


def gives_the_lease_back_with_the_hold() -> Protocol:
    freed = ("holds[me] = 0", "leases[leased[me]] = 0", "leased[me] = 0")
    return with_step(ports(2, 2), "let_go", Branch("True", freed))


def keeps_its_lease() -> Protocol:
    return with_step(ports(2, 1), "release", Branch("True"))


BROKEN: dict[Callable[[], Protocol], str] = {
    takes_any_file_for_the_lock: "one_builds",
    does_not_look_again: "what_is_complete_is_not_built_again",
    takes_away_the_folder_without_the_lock: "the_folder_stays",
    takes_what_is_locked: "one_builds",
    leaves_its_name_behind: "all_end",
    waits_for_the_dead: "all_end",
    never_looks_again: "all_end",
    does_not_lease_ports: "one_holds",
    gives_the_lease_back_with_the_hold: "what_serves_is_leased",
    keeps_its_lease: "all_end",
}


@needs_spin
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_lock_is_found(broken: Callable[[], Protocol]) -> None:
    protocol = broken()
    wanted = [claim for claim in protocol.claims if claim.name == BROKEN[broken]]
    (found,) = [verdict for verdict in verify(protocol.text(), wanted, only=True) if verdict.claim == wanted[0].name]
    assert not found.holds
