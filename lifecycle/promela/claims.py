"""What must hold of each chart, as formulas of linear temporal logic (LTL) in spin's notation.

`[]` is always, `<>` at some time, `W` until, if ever. Names in formulas are those of the exported text: `state`,
`entering` (the state that the driver is on its way to, while it ends activities), `open[at_launch]`, `asked` (a stop, a
kill or a shutdown was taken), `silent` (nobody outside says anything any more, and no activity raises), `final`,
`nothing_open`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lifecycle.chart import Event
from lifecycle.group.facts import AllEnded
from lifecycle.group.worker_facts import Dismissed, HeadLost
from lifecycle.paths import Model
from lifecycle.server_facts import Ended


@dataclass(frozen=True)
class Claim:
    """One formula."""

    name: str
    formula: str
    meaning: str
    live: bool = False
    """It says that something happens: checked with weak fairness, so that whoever can always go on does."""


@dataclass(frozen=True)
class Duty:
    """An activity that reports one of `events` in `state` at some time: what it does is bounded in time. All other
    activities may report or not."""

    state: str
    activity: str
    events: tuple[type[Event], ...]


@dataclass(frozen=True)
class Subject:
    """A model, and what is claimed of it."""

    model: Model[Any]
    claims: tuple[Claim, ...]
    duties: tuple[Duty, ...]

    @property
    def name(self) -> str:
        return self.model.chart.name


SERVER = (
    Claim("ports_outlive_the_process", "[] (open[at_watch_process] -> open[at_hold_ports])",
          "the ports are held for as long as the process lives"),
    Claim("the_lock_outlives_a_process_that_builds",
          "[] ((open[at_compile_lock] && open[at_watch_process]) ->"
          " (open[at_compile_lock] W (!open[at_watch_process] || entering == Healthy)))",
          "the compile lock is given up only when the process has gone, or is ready"),
)  # fmt: skip
GROUP = (
    Claim("hosts_are_met_while_members_run", "[] (open[at_watch_members] -> open[at_meet])",
          "the meeting of the hosts ends after the members"),
)  # fmt: skip
WORKER = (
    Claim("members_are_hosted_while_they_end", "[] (open[at_wind_down] -> open[at_host_members])",
          "the members of a host are ended before it lets go of them"),
)  # fmt: skip
FLEET = (
    Claim("replicas_are_kept_while_they_end", "[] (open[at_wind_down] -> open[at_keep])",
          "the replicas of a fleet are ended before it lets go of them"),
)  # fmt: skip
PLACEMENT = (
    Claim("a_server_is_followed_only_at_its_place", "[] (open[at_follow_server] -> open[at_hold_place])",
          "a place is held for as long as its server is followed"),
)  # fmt: skip
OWN = {"server": SERVER, "group": GROUP, "worker": WORKER, "fleet": FLEET, "placement": PLACEMENT}

RUNNING = {
    "server": ("Starting", "Healthy", "Asleep"),
    "group": ("Starting", "Healthy"),
    "worker": ("Present",),
    "fleet": ("Starting", "Healthy"),
    "placement": ("Hosting",),
}
"""States with something that must be drained and ended."""

DUTIES = {
    "server": (Duty("Draining", "wind_down", (Ended,)),),
    "group": (Duty("Draining", "wind_down", (AllEnded,)),),
    "worker": (Duty("Draining", "wind_down", (Ended,)), Duty("Present", "attend", (HeadLost, Dismissed))),
    "fleet": (Duty("Draining", "wind_down", (Ended,)),),
    "placement": (Duty("Draining", "wind_down", (Ended,)),),
}


def subject(model: Model[Any]) -> Subject:
    """A model of one of Stoker's charts, with all that is claimed of such a chart. The chart may be another one of that
    name: a broken one, say."""
    chart = model.chart
    running = " || ".join(f"state == {name}" for name in RUNNING[chart.name])
    rest = " || ".join(
        f"state == {state.name}" for state in chart.states if state.name not in (*RUNNING[chart.name], "Draining")
    )
    common = (
        *(Claim(f"{name}_absorbs", f"[] (state == {name} -> [] (state == {name}))", f"{name} is never left")
          for name in sorted(chart.final)),
        Claim("nothing_is_held_at_the_end", "[] (final -> nothing_open)", "a final state owns no activity"),
        Claim("a_stop_is_never_forgotten",
              "[] ((asked && state == Draining) -> [] (state == Draining || final))",
              "what drains after it was asked to stop does not begin again"),
        Claim("what_runs_is_drained", f"[] (({running}) -> (!({rest}) W (state == Draining)))",
              "nothing that runs is left behind: only Draining leads to an end or to another attempt"),
        Claim("a_stop_ends", "[] ((asked && silent) -> <> final)",
              "once a stop was asked for and nobody says anything more, a final state comes", live=True),
        Claim("a_drain_ends", "[] ((state == Draining && silent) -> <> (state != Draining))",
              "Draining is left at some time", live=True),
    )  # fmt: skip
    return Subject(model, (*common, *OWN[chart.name]), DUTIES[chart.name])
