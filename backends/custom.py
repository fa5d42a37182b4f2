"""Any server that one command line starts: your own script, or an engine that has no backend of its own.

    backend = "custom"
    command = "python my_server.py --host {host} --port {port} --model {model}"
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lifecycle.adapter import Ask, Capabilities, Command, CompileCache, Launch, Phase, Prepared
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError, nearest
from lifecycle.secrets import api_key

EXAMPLE = "command = \"python my_server.py --host {host} --port {port} --model {model}\""
MOST_PORTS = 64


@dataclass(frozen=True)
class CustomOptions:
    """What Stoker cannot know about a program of yours."""

    ports: int = 0
    """Further ports that the program opens: {port1} up to {portN} in the command."""
    holds_port: bool = True
    """The program binds with SO_REUSEADDR (most do), so its port can be held until it listens. False: the hold is let
    go just before the start; set it if the program says that its own port is already in use."""
    reports_model: bool = True
    """`/v1/models` names the model, as OpenAI's API has it."""
    generates: bool = True
    """It answers `/v1/completions` or `/v1/chat/completions`; one token is asked for before it counts as healthy."""
    compile_key: str = ""
    """Name of a cache that the program fills when it starts first. Starts with the same name do not fill it at once."""
    key_variable: str = ""
    """Environment variable in which the program expects its API key, if `api_key_env` or `api_key_file` gives one."""
    every_rank_answers: bool = False
    """On several hosts, the program answers HTTP on each, and each must. False: only on the head; on the others it
    counts as Healthy once it runs."""


class CustomAdapter:
    name = "custom"
    capabilities = Capabilities(settings=frozenset({"nodes"}))
    options = CustomOptions

    def capabilities_for(self, config: ServerConfig) -> Capabilities:
        chosen = CustomOptions(**config.options)
        probed = config.node_rank == 0 or chosen.every_rank_answers
        return replace(
            self.capabilities,
            probed=probed,
            holds_port=chosen.holds_port,
            extra_ports=chosen.ports,
            reports_model=chosen.reports_model,
            generates=chosen.generates,
        )

    async def prepare(self, config: ServerConfig, ask: Ask) -> Prepared:
        key = CustomOptions(**config.options).compile_key
        return Prepared(CompileCache(key) if key else None)

    def check(self, config: ServerConfig) -> None:
        """Raises `ConfigError` for a command that cannot be run."""
        chosen = CustomOptions(**config.options)
        if not 0 <= chosen.ports <= MOST_PORTS:
            raise ConfigError(f"ports = {chosen.ports} must be between 0 and {MOST_PORTS}")
        if config.engine_args:
            raise ConfigError("backend 'custom' takes no engine_args: write the flags into the command")
        ports = tuple(range(1, chosen.ports + 1))
        argv = words(config.command, placeholders(Launch(config, 0, ports, 1)))
        if config.port is None and "{port}" not in config.command:
            raise ConfigError(
                "command has no {port}, so the program cannot know where to listen; put it in, or set port to the one "
                "that it uses"
            )
        if "/" not in argv[0] and shutil.which(argv[0], path=config.env.get("PATH")) is None:
            raise ConfigError(f"command: there is no program {argv[0]!r} on PATH; give its full path")

    def command(self, launch: Launch) -> Command:
        config = launch.config
        argv = words(config.command, placeholders(launch))
        env: dict[str, str | None] = dict(config.env)
        variable = CustomOptions(**config.options).key_variable
        key = api_key(config)
        if variable and key is not None:
            env[variable] = key
        return Command(tuple(argv), env)

    def phase(self, line: str) -> Phase | None:
        return None


def placeholders(launch: Launch) -> dict[str, str]:
    """What a command may contain in braces."""
    config = launch.config
    known = {
        "host": config.host,
        "port": str(launch.port),
        "model": config.model,
        "served_name": config.served_name or config.model,
        "name": config.label,
        "attempt": str(launch.attempt),
        "nodes": str(config.nodes),
        "node_rank": str(config.node_rank),
        "node_address": config.node_address,
        "head_address": config.head_address,
        "head_port": str(config.head_port or 0),
    }
    known.update({f"port{number}": str(port) for number, port in enumerate(launch.extra_ports, 1)})
    return known


def words(command: str, known: Mapping[str, str]) -> list[str]:
    """Split a command line as a shell would, without being one, and fill in its placeholders.

    A value never becomes more than one word, whatever is in it. `{{` and `}}` are literal braces. Raises `ConfigError`
    for an empty command, an open quote, and an unknown placeholder.
    """
    if not command.strip():
        raise ConfigError(f"backend 'custom' needs a command, for example: {EXAMPLE}")
    try:
        parts = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"command = {command!r} cannot be split into words: {error}".lower()) from None
    return [filled(part, known) for part in parts]


def filled(word: str, known: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        text = found[0]
        if text in ("{{", "}}"):
            return text[0]
        name = text[1:-1]
        if text in ("{", "}"):
            raise ConfigError(f"command: a lone {text!r} in {word!r}; write {text * 2!r} for a literal one")
        if name not in known:
            hint = nearest(name, known)
            if re.fullmatch(r"port\d+", name):
                hint = f"; set ports = {name[4:]} if the program opens that many ports besides {{port}}"
            every = ", ".join(f"{{{one}}}" for one in known)
            raise ConfigError(f"command: unknown placeholder {text!r}{hint} (known: {every}; a literal brace is {{{{)")
        return known[name]

    return re.sub(r"\{\{|\}\}|\{[^{}]*\}|[{}]", value, word)


adapter = CustomAdapter()
