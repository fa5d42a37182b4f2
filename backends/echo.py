"""A server without a model, for trying things out, for demonstrations and for tests.

It is a real process that speaks OpenAI's HTTP, starts in a fraction of a second, and gives the same answer to the same
request every time. Its options make it slow, busy, or mortal.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from lifecycle.adapter import Capabilities, Command, EngineLoad, Launch, Phase
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError
from lifecycle.secrets import api_key

DEFAULT_MODEL = "echo"
KEY_VARIABLE = "STOKER_API_KEY"


@dataclass(frozen=True)
class EchoOptions:
    """How the echo server behaves."""

    latency: float = 0.0
    """Seconds from a request to its first token."""
    token_rate: float = 0.0
    """Tokens per second of each request. 0: as fast as possible."""
    startup_delay: float = 0.0
    """Seconds before it listens: a model that loads."""
    crash_after: int = 0
    """In the first attempt the server kills itself (SIGKILL) when so many requests have come, the one-token generation
    that ends a start among them. 0: never."""
    fail_rate: float = 0.0
    """Share of the requests that are answered with 500, evenly spread."""
    overload_at: int = 0
    """More requests than this at once are answered with 503 and `Retry-After: 1`. 0: no limit."""


class EchoAdapter:
    name = "echo"
    capabilities = Capabilities(ready_paths=("/health",), load_path="/load", defaults={"model": DEFAULT_MODEL})
    options = EchoOptions

    def check(self, config: ServerConfig) -> None:
        """Raises `ConfigError` for an option that cannot be."""
        if config.command:
            raise ConfigError("command is set, but backend 'echo' makes its own: use backend 'custom', or leave it out")
        chosen = EchoOptions(**config.options)
        for key, value in vars(chosen).items():
            if value < 0:
                raise ConfigError(f"{key} = {value:g} must not be negative")
        if chosen.fail_rate > 1:
            raise ConfigError(f"fail_rate = {chosen.fail_rate:g} must be a share between 0 and 1")
        if config.engine_args:
            raise ConfigError("backend 'echo' takes no engine_args: set its own options, such as latency")

    def command(self, launch: Launch) -> Command:
        config = launch.config
        chosen = EchoOptions(**config.options)
        # -P: a folder called `backends` in the current directory must not be taken for this package.
        argv = [sys.executable, "-P", "-m", "backends.echo_server", "--host", config.host, "--port", str(launch.port)]
        argv += ["--model", config.served_name or config.model or DEFAULT_MODEL]
        for option, value in vars(chosen).items():
            if value and (option != "crash_after" or launch.attempt == 1):
                argv += [f"--{option.replace('_', '-')}", str(value)]
        env = dict(config.env)
        key = api_key(config)
        if key is not None:
            env[KEY_VARIABLE] = key
        return Command(tuple(argv), env)

    def phase(self, line: str) -> Phase | None:
        _, found, text = line.partition("phase: ")
        if not found:
            return None
        name, _, progress = text.partition(" ")
        done, slash, total = progress.strip().partition("/")
        if slash and done.isdecimal() and total.isdecimal():
            return Phase(name, int(done), int(total))
        return Phase(name)

    def load(self, body: Any) -> EngineLoad | None:
        """What `/load` says."""
        try:
            found = msgspec.convert(body, Load)
        except msgspec.ValidationError:
            return None
        return EngineLoad(found.running, 0, (found.clock,), found.answered, found.tokens, found.seconds)


class Load(msgspec.Struct):
    """`/load`."""

    running: int
    clock: float
    answered: float
    tokens: float
    seconds: float


adapter = EchoAdapter()
