"""What every chart's facts make of a fault, a failure and a deadline. Pure, so a journal replays to the same."""

from __future__ import annotations

from dataclasses import replace

from lifecycle.diagnosis import Diagnosis, Verdict
from lifecycle.errors import KeeperKilled


def is_hopeless(found: Diagnosis | None) -> bool:
    """Whether another attempt cannot help."""
    return found is not None and found.verdict is Verdict.HOPELESS


def of_fault(activity: str, error: str, earlier: Diagnosis | None = None) -> Diagnosis:
    """The diagnosis of a bug: an activity has raised. One that had already made an attempt hopeless stays; one that was
    worth another attempt must not hide the bug."""
    if earlier is not None and is_hopeless(earlier):
        return earlier
    return Diagnosis("fault", f"the activity {activity!r} raised {error}", Verdict.HOPELESS)


def of_launch(error: Exception) -> Diagnosis:
    """The diagnosis of a server that could not be started: by what it is, hopeless, but not if it was killed first."""
    verdict = Verdict.TRANSIENT if isinstance(error, KeeperKilled) else Verdict.HOPELESS
    return Diagnosis("launch", f"the server could not be started: {error}", verdict)


def failures_after(failures: int, well_since: float | None, at: float, window: float) -> int:
    """Failures in a row with one more at `at`; all having been well for `window` s or more makes it the first."""
    return 1 if was_well(well_since, at, window) else failures + 1


def was_well(since: float | None, at: float, window: float) -> bool:
    """Whether it had been well for `window` s or more by `at`."""
    return since is not None and at - since >= window


def is_repeated(before: Diagnosis | None, found: Diagnosis) -> bool:
    """Whether a start has failed, for a cause that nobody knows, in the very same way as the one before."""
    return (
        found.verdict is Verdict.UNKNOWN
        and found.exit_code is not None
        and before is not None
        and before.signature == found.signature
    )


def counted(found: Diagnosis, failures: int, max_attempts: int, *, repeated: bool = False) -> Diagnosis:
    """The diagnosis of a failure, with the reason if it is the last one: so many in a row, or `repeated`."""
    why = ""
    if repeated:
        why = "two starts in a row have failed in the very same way"
    elif failures >= max_attempts:
        many = f"{failures} failures in a row are" if failures > 1 else "one failure is"
        why = f"{many} all that max_attempts = {max_attempts} allows"
    return replace(found, given_up="" if is_hopeless(found) else why)


def deadline(before: float | None, seconds: float | None, at: float) -> float | None:
    """The deadline that holds when one of `seconds` from `at` is said; None says nothing, and the one before stays."""
    return before if seconds is None else at + seconds
