"""What a command shows and tells of its servers besides its own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lifecycle.config import is_exposed
from lifecycle.errors import ConfigError


@dataclass(frozen=True)
class OperateConfig:
    """The live page, metrics and hooks. Times are seconds. A setting is set like any other, by TOML or `--set`."""

    ui: int | None = None
    """Port on 127.0.0.1 of a live page of the servers, for this user's browser. 0: a free one, which is printed. None:
    there is no page."""
    metrics: int | None = None
    """Port on which Prometheus can read metrics, at `/metrics`. 0: a free one, which is printed. None: there are none.
    """
    metrics_host: str = "127.0.0.1"
    """Literal address of that port. Whoever reaches it can read them: names and numbers, no texts."""
    on: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    """What to do when a server comes to a state: a command line, a URL to POST to, or `env:NAME` for a variable that
    holds either; or a list of these. The key is a state ("Failed"), one of a kind ("fleet.Failed"), or "any"."""
    hook_timeout: float = 10.0
    """How long a command or a POST of `on` may take, before it is ended. At the end of all, what is still to be done of
    them has so long together."""


def check_operate(config: OperateConfig) -> None:
    """Raises `ConfigError` for values that cannot be."""
    if config.ui is not None and not 0 <= config.ui <= 65535:
        raise ConfigError(f"ui = {config.ui} must be a port between 0 (any that is free) and 65535")
    if config.metrics is not None and not 0 <= config.metrics <= 65535:
        raise ConfigError(f"metrics = {config.metrics} must be a port between 0 (any that is free) and 65535")
    if not config.hook_timeout > 0:
        raise ConfigError(f"hook_timeout = {config.hook_timeout} must be more than 0")
    try:
        is_exposed(config.metrics_host)
    except ConfigError as error:
        raise ConfigError(f"metrics_{error}") from None
