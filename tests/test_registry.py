"""What a router is told: decided by what it lists, whatever it was told before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lifecycle.fleet.registry import (
    ADD_AGAIN,
    Add,
    Listed,
    Place,
    Registry,
    Remove,
    observe,
    plan,
    router_gone,
    tell,
    want,
)

URLS = [f"http://127.0.0.1:{port}" for port in range(9001, 9005)]
A, B = Place(URLS[0], "m", 1), Place(URLS[1], "m", 2)


def listed(*places: Place) -> tuple[Listed, ...]:
    return tuple(Listed(f"id-{place.life}", place.url) for place in places)


def having(*places: Place) -> Registry:
    """A registry of a router that has these, all of them wanted."""
    registry = want(Registry(), places)
    for place in places:
        registry = tell(registry, place, 0.0)
    return observe(registry, listed(*places))


def test_a_replica_that_became_healthy_is_added_and_one_that_is_there_is_not() -> None:
    registry = want(having(A), [A, B])
    assert plan(registry, listed(A), 0.0) == (Add(B),)


def test_it_is_not_told_twice_while_it_may_still_be_at_it_and_is_told_again_when_it_seems_to_have_forgotten() -> None:
    registry = tell(want(Registry(), [A]), A, 10.0)
    assert plan(observe(registry, ()), (), 10.0 + ADD_AGAIN / 2) == ()
    assert plan(observe(registry, ()), (), 10.0 + ADD_AGAIN) == (Add(A),)


def test_one_that_left_is_taken_out_and_counts_as_gone_when_it_is_seen_to_be() -> None:
    registry = observe(want(having(A, B), [A]), listed(A, B))
    assert plan(registry, listed(A, B), 0.0) == (Remove(Listed("id-2", B.url)),)
    assert registry.gone == {B}
    assert observe(registry, listed(A)).gone == set()


def test_another_life_on_the_same_port_is_added_only_after_the_earlier_one_is_seen_to_be_gone() -> None:
    again = Place(A.url, "m", 7)
    registry = observe(want(having(A, B), [again, B]), listed(A, B))
    assert registry.have == {B}
    assert plan(registry, listed(A, B), 0.0) == (Remove(Listed("id-1", A.url)),)
    assert plan(observe(registry, listed(B)), listed(B), 0.0) == (Add(again),)


def test_a_server_that_nobody_wants_is_taken_out_whoever_added_it() -> None:
    stranger = Place(URLS[3], "m", 9)
    registry = observe(having(A), listed(A, stranger))
    assert plan(registry, listed(A, stranger), 0.0) == (Remove(Listed("id-9", stranger.url)),)


def test_one_that_is_listed_twice_is_taken_out_once() -> None:
    listing = (*listed(A), Listed("id-99", A.url))
    assert plan(observe(having(A), listing), listing, 0.0) == (Remove(Listed("id-99", A.url)),)


def test_the_last_one_that_drains_is_kept_until_another_has_taken_over() -> None:
    registry = observe(want(having(A), [B]), listed(A))
    assert plan(registry, listed(A), 0.0) == (Add(B),)
    registry = observe(tell(registry, B, 0.0), listed(A, B))
    assert plan(registry, listed(A, B), 0.0) == (Remove(Listed("id-1", A.url)),)


def test_the_last_one_is_not_kept_when_no_other_is_there_to_take_over() -> None:
    registry = observe(want(having(A), []), listed(A))
    assert plan(registry, listed(A), 0.0) == (Remove(Listed("id-1", A.url)),)


def test_a_router_that_was_started_again_has_nothing_and_is_told_all() -> None:
    registry = router_gone(want(having(A, B), [A]))
    assert registry.gone == set()
    assert not registry.settled
    assert plan(observe(registry, ()), (), 0.0) == (Add(A),)


places = st.builds(Place, st.sampled_from(URLS), st.just("m"), st.integers(1, 9))
some = st.lists(places, max_size=5, unique_by=lambda place: place.url)


@given(wanted=some, told=some, there=st.lists(st.sampled_from(URLS), max_size=6))
def test_doing_what_is_planned_makes_any_list_the_wanted_one(
    wanted: list[Place], told: list[Place], there: list[str]
) -> None:
    registry = Registry()
    for place in told:
        registry = tell(registry, place, 0.0)
    registry = want(registry, wanted)
    listing = [Listed(str(number), url) for number, url in enumerate(there)]
    for turn in range(4):
        registry = observe(registry, listing)
        actions = plan(registry, listing, 1000.0 * (turn + 1))
        for action in actions:
            if isinstance(action, Remove):
                listing.remove(action.listed)
            else:
                assert action.place.url not in {each.url for each in listing}
                registry = tell(registry, action.place, 1000.0 * (turn + 1))
                listing.append(Listed(f"new-{turn}-{action.place.url}", action.place.url))
    registry = observe(registry, listing)
    assert sorted(each.url for each in listing) == sorted(place.url for place in wanted)
    assert registry.settled
    assert plan(registry, listing, 9e9) == ()
