"""What must hold of a server's life, whatever the table says. Written from the design, not from the table."""

from __future__ import annotations

from lifecycle.chart import Event, Outcome
from lifecycle.explore import Configuration, Invariant, Move, MoveInvariant
from lifecycle.server_facts import (
    Adopted,
    Awoke,
    BackoffOver,
    BecameReady,
    Exited,
    Facts,
    Fault,
    FoundKept,
    Idled,
    Kill,
    Launched,
    Shutdown,
    Sleep,
    Start,
    Stop,
    Wanted,
)

FINAL = ("Stopped", "Failed")
REST = ("Idle", "Dormant", "Backoff", *FINAL)
"""States in which nothing is held."""
WORK = {
    "Idle": set(),
    "Locking": set(),
    "Adopting": {"adopt"},
    "PortBound": {"launch"},
    "Starting": {"await_ready", "start_deadline"},
    "Healthy": {"watch_liveness", "watch_progress"},
    "Asleep": {"rest"},
    "Draining": {"wind_down"},
    "Dormant": {"await_wanted"},
    "Backoff": {"back_off"},
    "Stopped": set(),
    "Failed": set(),
}
"""Who is at work in one state only."""
HOLDERS = {"compile_lock", "hold_ports", "watch_process", "read_log", "entrust"}
"""Who lasts from state to state."""
WORKING = ("Locking", "Adopting", "PortBound", "Starting", "Healthy", "Asleep")
MUST_TAKE = (Stop, Kill, Shutdown, Fault)

Now = Configuration[Facts]
Went = Move[Facts]


def nothing_is_held_at_rest(now: Now) -> str | None:
    held = now.activities & HOLDERS
    return f"{now.state} holds {sorted(held)}" if now.state in REST and held else None


def the_work_fits_the_state(now: Now) -> str | None:
    """A part that nobody can ask is not asked; only its process is watched. Who rests at times is watched for it, and
    who attaches looks first for what it may attach to."""
    work, facts = now.activities - HOLDERS, now.facts
    wanted = WORK[now.state] if facts.probed or now.state != "Healthy" else set()
    if (now.state == "Healthy" and facts.idles) or (now.state == "Locking" and facts.attaches):
        wanted = wanted | {"watch_idle" if now.state == "Healthy" else "find_kept"}
    return None if work == wanted else f"in {now.state} the work is {sorted(work)}"


def a_process_has_its_ports(now: Now) -> str | None:
    """The process span never outlives the ports'."""
    if not now.facts.local or "watch_process" not in now.activities:
        return None
    if "hold_ports" not in now.activities:
        return f"{now.state}: a process without its ports"
    return None


def who_may_compile_has_the_lock(went: Went) -> str | None:
    """At Healthy the cache is complete, and the lock goes; a server that wakes up has none and needs none."""
    if not went.after.facts.local or went.after.state != "Starting":
        return None
    launched = went.before.state == "PortBound" and "compile_lock" not in went.after.activities
    if launched or "compile_lock" in went.ended:
        return "a process that may be compiling without the lock"
    return None


def a_process_is_watched_and_read(now: Now) -> str | None:
    alive = now.facts.local and now.state in ("Starting", "Healthy", "Asleep")
    missing = {"watch_process", "read_log"} - now.activities
    if not now.facts.local and len(missing) < 2:
        return f"{now.state}: an endpoint's process is watched or read"
    return f"{now.state} does without {sorted(missing)}" if alive and missing else None


def a_local_start_goes_through_lock_and_ports(now: Now) -> str | None:
    if now.facts.local and now.state in ("Starting", "Healthy") and now.facts.pid is None:
        return f"{now.state} without a process"
    of_a_process = ("Locking", "Adopting", "PortBound", "Dormant")
    if not now.facts.local and (now.state in of_a_process or now.facts.pid is not None):
        return f"an endpoint in {now.state}"
    return None


def healthy_is_known(now: Now) -> str | None:
    if now.state in ("Healthy", "Asleep") and now.facts.healthy_since is None:
        return f"{now.state}, and since when it was healthy is not known"
    if now.state not in ("Healthy", "Asleep", "Draining", *FINAL) and now.facts.healthy_since is not None:
        return f"{now.state}, and healthy since {now.facts.healthy_since}"
    return None


def who_was_asked_to_stop_ends(now: Now) -> str | None:
    """Also: nothing serves, starts or waits for another attempt then."""
    if now.facts.stopping and now.state not in ("Draining", *FINAL):
        return f"asked to stop, and {now.state}"
    return "stopped, and nobody asked" if now.state == "Stopped" and not now.facts.stopping else None


def only_what_was_well_drains_gracefully(now: Now) -> str | None:
    facts = now.facts
    if facts.graceful and (facts.healthy_since is None or facts.killed or not (facts.stopping or facts.idle)):
        return "a graceful drain of a server that was not healthy, or was killed"
    return None


def who_gives_up_says_why(now: Now) -> str | None:
    return "Failed without a diagnosis" if now.state == "Failed" and now.facts.diagnosis is None else None


def only_who_is_kept_may_outlive_its_manager(now: Now) -> str | None:
    """A server that may be building a compile cache, or is being ended, goes with its manager."""
    trusted = "entrust" in now.activities
    if trusted is not (now.facts.keeps and now.state in ("Healthy", "Asleep")):
        return f"{now.state}: the keeper {'may' if trusted else 'may not'} keep it"
    return None


def who_rests_is_not_needed(now: Now) -> str | None:
    facts = now.facts
    if now.state == "Dormant" and (not facts.idle or facts.stopping):
        return "dormant, and not because nobody needed it"
    if facts.idle and (facts.stopping or now.state not in ("Asleep", "Draining", "Dormant")):
        return f"{now.state}, and said to be idle"
    return None


def what_does_not_fit_is_not_adopted(went: Went) -> str | None:
    if went.after.state == "Adopting" != went.before.state:
        found = went.event
        if not (isinstance(found, FoundKept) and found.diagnosis is None and went.before.facts.attaches):
            return "what does not fit is adopted, or without having been asked to"
    return None


def the_budget_is_kept(now: Now) -> str | None:
    facts = now.facts
    if facts.failures > facts.max_attempts:
        return f"{facts.failures} failures of {facts.max_attempts}"
    if now.state == "Backoff" and (facts.failures >= facts.max_attempts or facts.repeated):
        return f"another attempt after {facts.failures} failures"
    return None


def ends_are_inner_first(went: Went) -> str | None:
    order = ["compile_lock", "hold_ports", "launch", "watch_process", "read_log", "entrust"]
    holders = [name for name in went.ended if name in order]
    if holders != sorted(holders, key=order.index, reverse=True):
        return f"ended in the order {holders}"
    workers = [name not in order for name in went.ended]
    return None if workers == sorted(workers, reverse=True) else f"ended in the order {went.ended}"


def no_outcome_is_refused(went: Went) -> str | None:
    refused = went.sender and went.outcome is Outcome.REFUSED
    return f"{went.before.state} refuses {type(went.event).__name__} of {went.sender}" if refused else None


def a_stale_outcome_changes_nothing(went: Went) -> str | None:
    return "a stale outcome had an effect" if went.event is None and went.before != went.after else None


def stop_kill_shutdown_and_fault_are_taken(went: Went) -> str | None:
    if isinstance(went.event, MUST_TAKE) and went.outcome is not Outcome.TAKEN:
        return f"{went.before.state} does not take {type(went.event).__name__}"
    return None


def what_is_asked_for_is_remembered(went: Went) -> str | None:
    asked = isinstance(went.event, Stop | Kill | Shutdown)
    return "asked to stop, and forgot" if asked and not went.after.facts.stopping else None


def a_kill_cuts_the_drain(went: Went) -> str | None:
    if isinstance(went.event, Kill) and went.before.state == "Draining" and "wind_down" not in went.began:
        return "a kill while draining does not begin to end the process anew"
    if went.before.state == "Draining" == went.after.state and isinstance(went.event, Stop | Shutdown) and went.ended:
        return "a second stop disturbs the drain"
    return None


def only_its_event_leads_to(went: Went) -> str | None:
    """Healthy follows BecameReady, or the launch of a part that nobody can ask; an attempt follows a start or a wait;
    nothing skips Draining."""
    before, after = went.before.state, went.after.state
    if before == after:
        return None
    wanted: dict[str, tuple[type[Event], ...]] = {
        "Healthy": (BecameReady,) if went.before.facts.probed else (Launched,),
        "Locking": (Start, BackoffOver, Wanted),
        "Adopting": (FoundKept,),
        "Starting": (Launched, Adopted) if went.before.facts.local else (Start, BackoffOver),
        "Asleep": (Sleep, Idled),
    }
    if before == "Asleep" and after == "Starting":
        return None if isinstance(went.event, Awoke) else f"{type(went.event).__name__} wakes it"
    if not isinstance(went.event, wanted.get(after, (object,))):
        return f"{type(went.event).__name__} leads to {after}"
    left_early = before in WORKING and after in ("Dormant", "Backoff", *FINAL)
    return f"{before} → {after} without draining" if left_early else None


def nobody_begins_twice(went: Went) -> str | None:
    still = went.before.activities - set(went.ended)
    twice = still & set(went.began)
    return f"{sorted(twice)} began while running" if twice else None


def the_next_attempt_waits_for_the_end(went: Went) -> str | None:
    if went.after.state in ("Dormant", "Backoff", *FINAL) and went.before.state not in REST:
        left = went.before.activities - set(went.ended)
        return f"{sorted(left)} not ended" if left else None
    if went.before.state == "Draining" and isinstance(went.event, Exited) and went.before != went.after:
        return "an exit while draining changes something: only the end of the whole tree may"
    return None


INVARIANTS: tuple[Invariant[Facts], ...] = (
    nothing_is_held_at_rest,
    the_work_fits_the_state,
    a_process_has_its_ports,
    a_process_is_watched_and_read,
    a_local_start_goes_through_lock_and_ports,
    healthy_is_known,
    who_was_asked_to_stop_ends,
    only_what_was_well_drains_gracefully,
    who_gives_up_says_why,
    only_who_is_kept_may_outlive_its_manager,
    who_rests_is_not_needed,
    the_budget_is_kept,
)
MOVES: tuple[MoveInvariant[Facts], ...] = (
    ends_are_inner_first,
    who_may_compile_has_the_lock,
    no_outcome_is_refused,
    a_stale_outcome_changes_nothing,
    stop_kill_shutdown_and_fault_are_taken,
    what_is_asked_for_is_remembered,
    a_kill_cuts_the_drain,
    only_its_event_leads_to,
    what_does_not_fit_is_not_adopted,
    nobody_begins_twice,
    the_next_attempt_waits_for_the_end,
)
