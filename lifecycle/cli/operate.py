"""Metrics, hooks and warnings of `stoker serve` and `stoker generate`."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import anyio

from lifecycle.cli.say import tell
from lifecycle.cli.settings import own_settings
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError, StokerError
from lifecycle.journal import Record
from lifecycle.logs import ROOT
from lifecycle.operate.hook import hooks_of
from lifecycle.operate.hooks import Hooks
from lifecycle.operate.settings import OperateConfig, check_operate
from lifecycle.secrets import api_key, known_secrets

if TYPE_CHECKING:
    from lifecycle.operate.metrics import Loaded, Metrics, Watchable
    from lifecycle.ui.live import LivePage

OPERATE_KEYS = tuple(each.name for each in fields(OperateConfig))
"""Settings of metrics and hooks, which are nobody else's."""


def operate_of(args: argparse.Namespace) -> OperateConfig:
    """The settings of metrics and hooks; give `OPERATE_KEYS` to `collect` as keys that are no server's. What `--on`
    says comes on top of the file's. From now on warnings are told. Raises `ConfigError`."""
    _show_warnings()
    settings = own_settings(args, OPERATE_KEYS, OperateConfig, tables=("on",))
    on: dict[str, tuple[str, ...]] = {}
    for when, what in (*settings.on.items(), *map(_said, args.hooks)):
        on[when] = (*on.get(when, ()), *((what,) if isinstance(what, str) else what))
    settings = replace(settings, on=on)
    check_operate(settings)
    return settings


def _said(text: str) -> tuple[str, str]:
    when, equals, what = text.partition("=")
    if not equals or not when:
        raise ConfigError(f"--on {text!r} is not STATE=COMMAND or STATE=URL")
    return when.strip(), what


class Operation:
    """A journal listener that counts and calls as the settings say. Checked here; raises `ConfigError`."""

    def __init__(self, settings: OperateConfig, config: ServerConfig, environ: Mapping[str, str] = os.environ) -> None:
        self._settings = settings
        secrets = known_secrets(api_key(config), config.env, environ)
        self._hooks = Hooks(hooks_of(settings.on, environ), timeout=settings.hook_timeout, secrets=secrets)
        self._page: LivePage | None = None
        if settings.ui is not None:
            from lifecycle.ui.live import LivePage

            self._page = LivePage(config, environ)
        self._metrics: Metrics | None = None
        if settings.metrics is not None:
            from lifecycle.operate.metrics import Metrics

            self._metrics = Metrics()

    def __call__(self, record: Record) -> None:
        """Take a record of a journal."""
        if self._page is not None:
            self._page(record)
        if self._metrics is not None:
            self._metrics(record)
        self._hooks(record)

    def hurry(self) -> None:
        """Nobody wants to wait any more."""
        self._hooks.hurry()

    @asynccontextmanager
    async def around(
        self, service: Loaded | None, say: Callable[[str], None], *, sends: Watchable | None = None
    ) -> AsyncIterator[None]:
        """The time of a server, before its beginning until after its end. An error of the body goes on as itself.

        Args:
            service: what engines are behind; None: nobody can be asked.
            say: takes a line for people.
            sends: what this program's own requests go through.
        """
        error: StokerError | None = None
        async with self._hooks, anyio.create_task_group() as group:
            try:
                async with self._shown(service, say):
                    with self._served(say):
                        if self._metrics is not None and sends is not None:
                            self._metrics.watch(sends)
                        if self._metrics is not None and service is not None:
                            group.start_soon(self._metrics.sample, service)
                        yield
            except StokerError as found:
                error = found
            group.cancel_scope.cancel()
        if error is not None:
            raise error

    @asynccontextmanager
    async def _shown(self, service: Loaded | None, say: Callable[[str], None]) -> AsyncIterator[None]:
        if self._page is None:
            yield
            return
        async with self._page.served(service, self._settings.ui or 0) as url:
            say(f"  live page  {url}")
            yield

    @contextmanager
    def _served(self, say: Callable[[str], None]) -> Iterator[None]:
        port, host = self._settings.metrics, self._settings.metrics_host
        if self._metrics is None or port is None:
            yield
            return
        with self._metrics.served(port, host) as url:
            say(f"  metrics    {url}")
            yield


class _Told(logging.Handler):
    """Tells warnings on standard error. What becomes of servers is told already."""

    def emit(self, record: logging.LogRecord) -> None:
        if not hasattr(record, "stoker_server"):
            tell(f"stoker: {record.getMessage()}")


def _show_warnings() -> None:
    logger = logging.getLogger(ROOT)
    if not any(isinstance(handler, _Told) for handler in logger.handlers):
        logger.addHandler(_Told(logging.WARNING))
