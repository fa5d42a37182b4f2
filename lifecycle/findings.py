"""What the activities find out, as diagnoses: one pure function for each finding."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from lifecycle.diagnosis import Diagnosis, Verdict


def refused_key(url: str, status: int) -> Diagnosis:
    """The server is up and wants another key than ours."""
    return Diagnosis(
        "wrong-key",
        f"the server at {url} is up and refuses our key (HTTP {status})",
        Verdict.HOPELESS,
        "name the variable or file that holds its key with api_key_env or api_key_file",
    )


def other_server(reason: str) -> Diagnosis:
    """What answers is not what was asked for."""
    return Diagnosis("wrong-model", reason, Verdict.HOPELESS, "check served_name and model")


def foreign_listener(label: str, port: int, strangers: Collection[int], *, fixed: bool) -> Diagnosis:
    """Who listens on our port is not ours. `strangers`: their pids, as far as this user can see them; `fixed`: the
    port was asked for, so another one cannot be taken."""
    who = f"pid {', '.join(map(str, sorted(strangers)))}" if strangers else "a process of another user"
    return Diagnosis(
        "port-taken",
        f"port {port} of {label!r} is served by {who}, which is not ours",
        Verdict.UNKNOWN if fixed else Verdict.TRANSIENT,
        "end that process or choose another port; a server without a fixed port is started again on another one",
    )


def endpoint_missing(cause: str, summary: str, advice: str, *, seen_before: bool) -> Diagnosis:
    """Somebody else's server did not become ready. One that has never been there is a wrong URL; one that was may come
    back."""
    verdict = Verdict.UNKNOWN if seen_before else Verdict.HOPELESS
    return Diagnosis(cause, summary, verdict, f"check that it runs and that base_url is right; {advice}")


def died_serving(found: Diagnosis) -> Diagnosis:
    """A diagnosis of a server that had been healthy. What it printed while it served may be somebody's prompt: good
    enough to name a cause, not to give up for it."""
    return replace(found, verdict=Verdict.UNKNOWN) if found.verdict is Verdict.HOPELESS else found
