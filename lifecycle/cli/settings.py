"""Flags, a TOML file and `--set` become one checked configuration."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from lifecycle.adapter import Adapter
from lifecycle.cli.rest import engine_args_of
from lifecycle.config import ServerConfig, convert, load_config, parse_setting, read_table, read_toml
from lifecycle.fleet.front_settings import FrontConfig
from lifecycle.fleet.settings import FleetConfig, check_fleet

T = TypeVar("T")
FLAGS = (
    "model", "python", "tensor_parallel", "context_length", "name", "host", "port", "command", "base_url",
    "api_key_env", "nodes", "node_rank", "keep_for", "idle_timeout", "idle_action",
)  # fmt: skip

FLEET_KEYS = tuple(each.name for each in fields(FleetConfig))
"""Settings of a fleet, which are not those of its servers."""
FRONT_KEYS = tuple(each.name for each in fields(FrontConfig))
"""Settings of the router before it, which are neither's."""


def collect(
    args: argparse.Namespace, job_keys: Collection[str] = (), *, ask_backend: bool = True
) -> tuple[ServerConfig, Adapter, dict[str, Any]]:
    """The server's configuration, its adapter, and the settings that are the job's (the keys in `job_keys`).

    Later wins: the file, the flags, `--set`. The backend's own check is left out unless `ask_backend`.
    """
    file, settings = file_of(args), set_of(args)
    job = {**_only(file, job_keys), **_only(settings, job_keys)}
    flags = {name: getattr(args, name) for name in FLAGS if getattr(args, name, None) is not None}
    rest = {key: value for key, value in file.items() if key not in job_keys}
    backend = args.backend or settings.get("backend") or rest.get("backend") or _implied(flags)
    given = {**rest, **flags}
    if args.engine_words:
        given["engine_args"] = {**given.get("engine_args", {}), **engine_args_of(args.engine_words)}
    given.pop("backend", None)
    own = {key: value for key, value in settings.items() if key not in (*job_keys, "backend")}
    config, adapter = load_config(backend, settings=own, ask_backend=ask_backend, others=job_keys, **given)
    return config, adapter, job


def fleet_of(args: argparse.Namespace) -> FleetConfig:
    """The settings of a fleet: a flag wins over the file, `--set` over both. Give `FLEET_KEYS` to `collect` as keys
    that are no server's. Raises `ConfigError`."""
    fleet = own_settings(args, FLEET_KEYS, FleetConfig)
    check_fleet(fleet)
    return fleet


def front_of(args: argparse.Namespace) -> FrontConfig:
    """The settings of the router before a fleet, like those of a fleet: `FRONT_KEYS`. Raises `ConfigError`."""
    return own_settings(args, FRONT_KEYS, FrontConfig, tables=("router_settings",))


def own_settings(args: argparse.Namespace, keys: Collection[str], kind: type[T], tables: Collection[str] = ()) -> T:
    """Settings that are those of `kind`: a flag wins over the file, `--set` over both. Those in `tables` are tables,
    which `--set` gives as JSON. Raises `ConfigError`."""
    flags = {key: getattr(args, key) for key in keys if getattr(args, key, None) is not None}
    said: dict[str, Any] = {
        key: read_table(key, text) if key in tables else text for key, text in _only(set_of(args), keys).items()
    }
    return convert({**_only(file_of(args), keys), **flags, **said}, kind)


def file_of(args: argparse.Namespace) -> Mapping[str, Any]:
    """What the configuration file says; nothing if none is named. It is read once: it may be a pipe."""
    if "file" not in args:
        args.file = read_toml(Path(args.config)) if args.config else {}
    found: Mapping[str, Any] = args.file
    return found


def set_of(args: argparse.Namespace) -> dict[str, str]:
    """What `--set` says."""
    return dict(parse_setting(text) for text in args.set)


def _implied(flags: Mapping[str, Any]) -> str:
    """The backend that a flag of its own stands for."""
    if "command" in flags:
        return "custom"
    return "endpoint" if "base_url" in flags else ""


def _only(values: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key in keys}
