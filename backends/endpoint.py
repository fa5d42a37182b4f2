"""A server that somebody else runs: any OpenAI-compatible URL. Stoker checks it, feeds it, and never ends it."""

from __future__ import annotations

from typing import NoReturn
from urllib.parse import urlsplit

from lifecycle.adapter import Capabilities, Launch, NoOptions, Phase
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError

EXAMPLE = "base_url = \"http://10.0.0.7:8000/v1\""
NOT_OURS = ("command", "engine_args", "env", "port")
"""Settings that only mean something for a process."""


class EndpointAdapter:
    name = "endpoint"
    capabilities = Capabilities(
        local=False,
        holds_port=False,
        # A request every second for ten seconds: a server that is already up answers one of ten.
        defaults={"startup_timeout": 10.0, "probe_interval": 1.0},
    )
    options = NoOptions

    def check(self, config: ServerConfig) -> None:
        """Raises `ConfigError` for a URL that is missing or cannot be one, and for settings of a process."""
        url = config.base_url.strip()
        if not url:
            raise ConfigError(f"backend 'endpoint' needs the server's URL, for example: {EXAMPLE}")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"base_url = {url!r} is not a URL: {error}") from None
        if parts.scheme not in ("http", "https"):
            raise ConfigError(f"base_url = {url!r} does not begin with http:// or https://; for example: {EXAMPLE}")
        if parts.username or parts.password:
            raise ConfigError("base_url holds a user or a password: name a key with api_key_env or api_key_file")
        if not parts.hostname or port == 0:
            raise ConfigError(f"base_url = {url!r} names no host; for example: {EXAMPLE}")
        if parts.query or parts.fragment:
            raise ConfigError(f"base_url = {url!r} has a query or a fragment: paths are added to its end, leave it out")
        for key in NOT_OURS:
            if getattr(config, key):
                raise ConfigError(f"{key} is set, but backend 'endpoint' starts no process: leave it out")

    def command(self, launch: Launch) -> NoReturn:
        raise ConfigError("backend 'endpoint' starts no process: there is no command line")

    def phase(self, line: str) -> Phase | None:
        return None


adapter = EndpointAdapter()
