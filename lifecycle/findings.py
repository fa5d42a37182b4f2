"""What the activities find out, as diagnoses: one pure function for each finding."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from lifecycle.config import ServerConfig
from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.errors import StokerError, UnknownFlag
from lifecycle.host import Holder

BROKEN_CACHE = "compile-cache"
"""The cause that voids the mark of a compile cache."""


NEVER_STARTED = ("unknown-flag", "configuration")
"""Causes of failures that were found before anything was started, if there is no log."""


def cannot_prepare(error: StokerError) -> Diagnosis:
    """The installed engine cannot be asked, or would not take what the configuration asks. Nothing was started."""
    cause = "unknown-flag" if isinstance(error, UnknownFlag) else "configuration"
    return Diagnosis(cause, str(error), Verdict.HOPELESS)


def of_holder(holder: Holder | None) -> str:
    """Who builds a compile cache, in words."""
    if holder is None:
        return "another start"
    since = datetime.fromtimestamp(holder.since).strftime("%H:%M:%S")
    return f"pid {holder.pid} on {holder.host} (since {since})"


def lock_overdue(key: str, builder: str, config: ServerConfig) -> Diagnosis:
    """Another start has been building the compile cache for too long."""
    return Diagnosis(
        "compile-lock",
        f"{builder} has not completed the compile cache of {key!r} "
        f"within compile_timeout = {config.compile_timeout:g} s",
        Verdict.TRANSIENT,
        "look at what it does, end it, or raise compile_timeout",
    )


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


def not_enough_gpus(needed: int, found: int, where: str = "this machine") -> str | None:
    """Why a server cannot be placed, in words, or None if it can.

    Args:
        needed: tensor_parallel × pipeline_parallel × data_parallel.
        found: GPUs that the server would see.
    """
    if found >= needed:
        return None
    seen = {0: "none is", 1: "only one is"}.get(found, f"only {found} are")
    return f"{needed} GPUs are needed (tensor_parallel × pipeline_parallel × data_parallel), {seen} seen on {where}"


MEMORY_CAUSES = frozenset(("memory-held", "out-of-memory"))
"""Causes that somebody else's memory may explain."""


def memory_held(found: Diagnosis, holders: Sequence[str]) -> Diagnosis:
    """A diagnosis of memory that was not to be had, with those who hold it.

    Args:
        holders: others that hold memory of the same GPUs (`lifecycle.host.DeviceMemory.holders`).
    """
    if found.cause not in MEMORY_CAUSES or not holders:
        return found
    return replace(
        found,
        cause="memory-held",
        summary=f"{found.summary}; {', '.join(holders)}",
        advice=f"end what holds the GPU's memory, if it is yours, or use other GPUs; {found.advice}",
    )


def hub_unreachable(found: Diagnosis, here: Path | None) -> Diagnosis:
    """A diagnosis of a start that could not reach the hub, with what there is without it.

    Args:
        here: where the model's weights lie on this disk; None if they do not.
    """
    if here is None:
        advice = (
            "the weights are not on this disk, so the hub is needed: look at the proxy variables and HF_ENDPOINT, or "
            "download the model elsewhere (hf download MODEL) and copy the cache"
        )
    else:
        advice = f"the weights are on this disk ({here}): set HF_HUB_OFFLINE = \"1\" in env, and the hub is not asked"
    return replace(found, advice=advice)


def died_serving(found: Diagnosis) -> Diagnosis:
    """A diagnosis of a server that had been healthy. What it printed while it served may be somebody's prompt: good
    enough to name a cause, not to give up for it."""
    return replace(found, verdict=Verdict.UNKNOWN) if found.verdict is Verdict.HOPELESS else found
