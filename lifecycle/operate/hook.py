"""One hook: when it is called, what it is told, and how a command or a URL is called. Blocks nobody."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any
from urllib.parse import urlsplit

import anyio
import httpx
import msgspec

from lifecycle.errors import ConfigError, nearest
from lifecycle.resources.log import split
from lifecycle.secrets import VARIABLE, mask

ANY = "any"
LAST_WORDS = 3
"""Lines of a failed command's output that are logged."""
MOST_WORDS = 64 * 1024
"""Bytes of its output that are looked at."""


@dataclass(frozen=True)
class Hook:
    """What to call when something comes to a state."""

    state: str
    """Its name; or "any"."""
    chart: str = ""
    """Only of what this chart drives: server, fleet, group, ...; empty: of all."""
    url: str = field(default="", repr=False)
    """To POST to; empty: the command is run. It may itself be a secret."""
    argv: tuple[str, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """For logs: without what may be secret."""
        where = f"POST to {urlsplit(self.url).hostname}" if self.url else self.argv[0]
        return f"on {self.chart}{'.' if self.chart else ''}{self.state}: {where}"

    def wants(self, state: str, chart: str) -> bool:
        """Whether it is to be called."""
        return self.state in (ANY, state) and self.chart in ("", chart)


def hooks_of(
    on: Mapping[str, str | Iterable[str]], environ: Mapping[str, str] = os.environ
) -> tuple[Hook, ...]:
    """The hooks that a table says, such as `{"Failed": "https://…", "server.Healthy": ["notify-send up"]}`.

    Raises `ConfigError` for a state that no chart has, a program that is not there, and a URL without a host.
    """
    found = []
    for when, what in on.items():
        for one in (what,) if isinstance(what, str) else what:
            found.append(_hook(when, one, environ))
    return tuple(found)


def _hook(when: str, what: str, environ: Mapping[str, str]) -> Hook:
    from lifecycle.diagram import CHARTS

    chart, _, state = when.rpartition(".")
    if chart and chart not in CHARTS:
        raise ConfigError(f"on {when!r}: there is no kind {chart!r}{nearest(chart, CHARTS)}")
    known = {each.name for own in ([CHARTS[chart]] if chart else CHARTS.values()) for each in own.states}
    if state != ANY and state not in known:
        raise ConfigError(f"on {when!r}: there is no state {state!r}{nearest(state, {*known, ANY})}")
    named = what.strip()
    if named.startswith("env:"):
        named = _variable(when, named.removeprefix("env:"), environ)
    if named.startswith(("http://", "https://")):
        if not urlsplit(named).hostname:
            raise ConfigError(f"on {when!r}: the URL has no host")
        return Hook(state, chart, url=named)
    try:
        argv = tuple(shlex.split(named))
    except ValueError as error:
        raise ConfigError(f"on {when!r}: the command cannot be split into words: {error}".lower()) from None
    if not argv:
        raise ConfigError(f"on {when!r}: say what to do: a command, or a URL to POST to")
    if shutil.which(argv[0]) is None:
        raise ConfigError(f"on {when!r}: there is no program {argv[0]!r}; give its full path")
    return Hook(state, chart, argv=argv)


def _variable(when: str, name: str, environ: Mapping[str, str]) -> str:
    if not VARIABLE.fullmatch(name):
        raise ConfigError(f"on {when!r}: what follows env: is not the name of a variable")
    value = environ.get(name, "").strip()
    if not value:
        raise ConfigError(f"on {when!r}: the environment variable {name!r} is not set: export it, or name another one")
    return value


@dataclass(frozen=True)
class Call:
    """What a hook is told: plain values, as JSON."""

    payload: Mapping[str, Any]

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self.payload)

    @property
    def variables(self) -> dict[str, str]:
        """The same in short, for a command that reads no JSON."""
        found = self.payload.get("diagnosis") or {}
        short = {**{key: self.payload.get(key) for key in SHORT}, "cause": found.get("cause")}
        return {f"STOKER_{key.upper()}": "" if value is None else str(value) for key, value in short.items()}


SHORT = ("server", "chart", "state", "before", "event", "attempt", "text")


def masked(value: Any, secrets: tuple[str, ...]) -> Any:
    """A plain value with every one of `secrets` in its texts replaced by `***`."""
    match value:
        case str():
            return mask(value, secrets)
        case Mapping():
            return {str(key): masked(each, secrets) for key, each in value.items()}
        case list() | tuple():
            return [masked(each, secrets) for each in value]
        case _:
            return value


async def call(hook: Hook, what: Call, timeout: float) -> str:
    """Call it once; empty if all went well, else what went wrong. Cancelled, or after `timeout` seconds, it is ended
    with its whole process group."""
    with anyio.move_on_after(timeout) as scope:
        return await (_post(hook.url, what, timeout) if hook.url else _run(hook.argv, what))
    assert scope.cancelled_caught
    return f"it was ended: it took longer than hook_timeout = {timeout:g} s"


async def _post(url: str, what: Call, timeout: float) -> str:
    head = {"content-type": "application/json"}
    try:
        async with httpx.AsyncClient(timeout=timeout) as client:
            answer = await client.post(url, content=what.body, headers=head)
    except httpx.HTTPError as error:
        return type(error).__name__  # its text may have the URL in it
    except (httpx.InvalidURL, ValueError):
        return "it is no URL that can be asked"
    return "" if answer.is_success else f"HTTP {answer.status_code}"


async def _run(argv: tuple[str, ...], what: Call) -> str:
    """Files, not pipes: nobody waits for whoever keeps one open."""
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as said:
        told.write(what.body)
        told.seek(0)
        try:
            process = _begin(argv, told, said, what.variables)
        except OSError as error:
            return f"it cannot be run: {error.strerror}"
        there = os.pidfd_open(process.pid)
        try:
            await anyio.wait_readable(there)
        finally:
            # Its number is ours until it is waited for. What it has left in the background ends as well.
            os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await anyio.wait_readable(there)
            os.close(there)
            process.wait()
        return _failure(process.returncode, said) if process.returncode else ""


def _begin(
    argv: tuple[str, ...], told: IO[bytes], said: IO[bytes], variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    env = {**os.environ, **variables}
    return subprocess.Popen(argv, stdin=told, stdout=said, stderr=said, start_new_session=True, env=env)


def _failure(code: int, said: IO[bytes]) -> str:
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - MOST_WORDS))
    words = " | ".join(split(said.read())[-LAST_WORDS:])
    how = f"it was killed by signal {-code}" if code < 0 else f"it ended with code {code}"
    return f"{how}: {words or 'it said nothing'}"
