"""The configuration of one server: one dataclass, one name for each setting, wherever it is set.

Times are seconds. A setting is a field here, a key in TOML, and a `--set KEY=VALUE`; a backend's own options (the
fields of its `options` dataclass) are set the same way.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lifecycle.adapter import Adapter, asks_itself, capabilities_of, load_adapter
from lifecycle.decoding import decode
from lifecycle.errors import ConfigError, nearest

T = TypeVar("T")


@dataclass(frozen=True)
class ServerConfig:
    """Everything that can be said about one server. Every field has a default but `backend`."""

    backend: str
    """Name of an installed backend: echo, custom, endpoint, llamacpp, ..."""
    model: str = ""
    """Path or hub name, as the engine takes it."""
    revision: str = ""
    """Branch, tag or commit of a hub model."""
    dtype: str = ""
    """Type of the weights and activations: auto, bfloat16, float16, ... Default: the engine decides."""
    context_length: int | None = None
    """Tokens of prompt and answer together. None: the engine decides."""
    tensor_parallel: int = 1
    """GPUs that share each layer."""
    pipeline_parallel: int = 1
    """Groups of layers, one after the other on different GPUs."""
    data_parallel: int = 1
    """Copies of the model behind one port, each with its own GPUs."""
    nodes: int = 1
    """Hosts that serve one model together, each with its share of the GPUs."""
    node_rank: int = 0
    """Which of them this server's host is; 0 is the head, which takes the requests."""
    node_address: str = ""
    """Literal address at which the other hosts reach this one."""
    head_address: str = ""
    """Literal address at which they reach the head."""
    head_port: int | None = None
    """Port there at which the engine's parts meet."""
    engine_seed: int | None = None
    """Seed of the engine itself. A job's `seed` is that of its requests."""
    trust_remote_code: bool = False
    """Let the model's own Python code run."""
    python: str = ""
    """Interpreter that the engine is installed in. Default: Stoker's own, or that of the engine's command on PATH."""
    served_name: str = ""
    """The name that requests use and that the server must report. Default: the engine's own for `model`."""
    name: str = ""
    """What this server is called in journals, logs and `ps`. Default: the backend's name."""
    host: str = "127.0.0.1"
    """Literal address to bind. A wildcard needs `allow_exposed` or a key."""
    port: int | None = None
    """None: a free one is found. A number: that one, or an error that names its holder."""
    allow_exposed: bool = False
    """Bind an address that others can reach, although no key is set."""
    command: str = ""
    """`custom` only: the command line, with {host}, {port}, {model}, {attempt} placeholders, and on several hosts
    {nodes}, {node_rank}, {node_address}, {head_address}, {head_port}."""
    base_url: str = ""
    """`endpoint` only: the server's URL, with or without a trailing /v1."""
    api_key_env: str = ""
    """Name of the environment variable that holds the key. Never the key itself."""
    api_key_file: str = ""
    """Path of a file that holds the key, used if `api_key_env` is not given."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for the server process."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Flags for the engine, without the dashes: {"ctx-size": 4096}. True is a bare flag, False what the engine has for
    it, a list several values, a table JSON."""

    startup_timeout: float = 1500.0
    """From launch to Healthy: 300 probes at 5 s, the field's customary budget, asked far more often."""
    no_progress_timeout: float = 600.0
    """Longest time in Starting without a new log line or phase."""
    probe_interval: float = 0.05
    """Longest time between two readiness probes."""
    probe_timeout: float = 5.0
    """One readiness probe. The one-token generation has `warmup_timeout`."""
    warmup_timeout: float = 120.0
    """The one-token generation that is the last gate: a first request may compile kernels."""
    ready_path: str = ""
    """Overrides the backend's own readiness path."""
    liveness_interval: float = 10.0
    """Between two liveness probes while Healthy."""
    liveness_timeout: float = 30.0
    """One liveness probe. Long: health requests queue behind long prefills."""
    liveness_failures: int = 3
    """Probes that must fail in a row before the server counts as unwell."""
    stall_timeout: float = 300.0
    """Requests in flight, and no byte of an answer for so long: ask for one token, and restart if none comes."""

    compile_timeout: float = 3600.0
    """Longest wait for another start that builds the same compile cache."""
    memory_timeout: float = 30.0
    """Longest wait, after the end of an attempt, for its GPU memory to be free again."""

    drain_timeout: float | None = None
    """How long requests in flight may go on after a stop. Default: 30, or `terminate_timeout` if that is less."""
    terminate_timeout: float | None = None
    """SIGKILL falls this long after the stop, whatever is still running. Default: `drain_timeout` + 15."""

    max_attempts: int = 5
    """Failures in a row before the server is given up; a healthy period of `attempt_window` resets the count."""
    attempt_window: float = 600.0
    """How long a server must have been Healthy for its earlier failures to be forgotten."""
    backoff_initial: float = 1.0
    """Wait before the second attempt; doubled for each further one, with jitter."""
    backoff_max: float = 60.0
    """Longest wait between two attempts."""

    idle_timeout: float | None = None
    """After so long without a request the server is put to rest (`idle_action`). Default: never. It serves again when a
    request comes through Stoker: its client, or the door of `stoker serve`."""
    idle_action: str = "stop"
    """What is done then, after a drain: "stop" ends its process and the next request starts it anew; "sleep" has the
    engine give its memory back and keep its process (vllm: `sleep_mode`, sglang: `memory_saver`)."""
    keep_for: float = 0.0
    """How long a server that is Healthy or sleeps is kept by its keeper when its manager dies, for another one to
    attach to. 0: it is ended at once."""

    request_timeout: float = 600.0
    """One attempt of one request, from the first byte sent to the last received."""
    max_retries: int = 3
    """Further attempts of one request after 429, 5xx, a broken connection or a restart of the server. As many servers
    may die under it before it is given up: one that kills each of them must not take the whole job with it."""

    log_dir: str = ""
    """Where attempts' logs go. Default: `logs` in `state_dir`."""
    log_limit: int = 64 * 1024 * 1024
    """Bytes kept of one attempt's log: its beginning and its end."""
    state_dir: str = ""
    """Leases, snapshots and logs. Default: a private folder of this user."""
    cache_dir: str = ""
    """Compile caches of the engines, and the locks on them. Default: this user's cache folder."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The backend's own options, by name."""

    @property
    def drain_limit(self) -> float:
        """Seconds that a drain may take."""
        if self.drain_timeout is not None:
            return self.drain_timeout
        return 30.0 if self.terminate_timeout is None else min(30.0, self.terminate_timeout)

    @property
    def kill_limit(self) -> float:
        """Seconds from the stop to SIGKILL."""
        return self.drain_limit + 15.0 if self.terminate_timeout is None else self.terminate_timeout

    @property
    def label(self) -> str:
        """The server's name in journals and messages."""
        return self.name or self.backend


MODEL_SETTINGS = (
    "revision", "dtype", "context_length", "tensor_parallel", "pipeline_parallel", "data_parallel", "nodes",
    "engine_seed", "trust_remote_code", "python",
)  # fmt: skip
"""Settings that an adapter turns into flags of its engine, if `Capabilities.settings` names them."""
POSITIVE = (
    "startup_timeout", "no_progress_timeout", "probe_interval", "probe_timeout", "warmup_timeout", "liveness_interval",
    "liveness_timeout", "liveness_failures", "stall_timeout", "max_attempts", "attempt_window", "backoff_max",
    "request_timeout", "log_limit",
    "compile_timeout", "nodes", "tensor_parallel", "pipeline_parallel", "data_parallel",
)  # fmt: skip
TABLES = ("env", "engine_args")
NOT_NEGATIVE = (
    "node_rank", "keep_for", "memory_timeout", "drain_timeout", "terminate_timeout", "backoff_initial", "max_retries",
)  # fmt: skip


def load_config(
    backend: str = "",
    *,
    adapter: Adapter | None = None,
    file: Path | None = None,
    settings: Mapping[str, str] | None = None,
    ask_backend: bool = True,
    others: Collection[str] = (),
    **given: Any,
) -> tuple[ServerConfig, Adapter]:
    """Make a checked configuration: the backend's defaults, then the TOML file, then `given`, then `settings`.

    `settings` are the strings of `--set KEY=VALUE`; `given` are typed values, None meaning "not given"; without
    `ask_backend` the backend's own check is left out; with `adapter` the backend need not be installed; `others` are
    keys that belong somewhere else, and may have been meant. Raises `ConfigError` that names the key, the value and the
    nearest known key.
    """
    values: dict[str, Any] = read_toml(file) if file else {}
    values.update({key: value for key, value in given.items() if value is not None})
    if backend or adapter is not None:
        values["backend"] = backend or adapter.name  # type: ignore[union-attr]
    values.update(settings or {})
    name = values.get("backend")
    if not name:
        raise ConfigError("no backend is given: say --backend NAME, or backend = \"NAME\" in the configuration file")
    adapter = adapter or load_adapter(str(name))
    values.update({key: read_table(key, values[key]) for key in TABLES if isinstance(values.get(key), str)})
    values = {**adapter.capabilities.defaults, **adopted(values, getattr(adapter, "adopts", {}))}
    known = {f.name for f in fields(ServerConfig)}
    own = {f.name for f in fields(adapter.options)}
    options: dict[str, Any] = dict(values.pop("options", {}))
    options.update({key: values.pop(key) for key in list(values) if key not in known and key in own})
    for key in (*values, *options):
        if key not in known | own:
            meant = getattr(adapter, "adopts", {}).get(key.replace("_", "-"))
            hint = f"; did you mean {meant!r}?" if meant else nearest(key, (known | own | set(others)) - {"options"})
            raise ConfigError(f"unknown setting {key!r}{hint}")
    checked = convert(options, adapter.options)
    typed = {f.name: getattr(checked, f.name) for f in fields(adapter.options)}
    config = replace(convert(values, ServerConfig), options=typed)
    check(config, adapter, ask_backend=ask_backend)
    return config, adapter


def adopted(values: Mapping[str, Any], adopts: Mapping[str, str]) -> dict[str, Any]:
    """Settings, with the engine's own flags for them (`adopts`: flag to setting) taken out of `engine_args`.

    So a command line of the engine can be used as it is, and no flag is given twice. Raises `ConfigError` if a flag and
    its setting say different things.
    """
    found = dict(values)
    rest = dict(found.get("engine_args") or {})
    for key in list(rest):
        setting = adopts.get(key.lstrip("-").replace("_", "-"))
        if setting is None:
            continue
        value = rest.pop(key)
        if str(found.get(setting, value)) != str(value):
            raise ConfigError(
                f"engine_args sets {key} = {value!r}, and {setting} = {found[setting]!r} is the same: leave one out"
            )
        found[setting] = value
    if "engine_args" in found:
        found["engine_args"] = rest
    return found


def check(config: ServerConfig, adapter: Adapter, *, ask_backend: bool = True) -> None:
    """Refuse values that cannot be and combinations that make no sense. Raises `ConfigError`."""
    for key in POSITIVE:
        if not getattr(config, key) > 0:  # nor NaN
            raise ConfigError(f"{key} = {getattr(config, key)} must be more than 0")
    for key in NOT_NEGATIVE:
        value = getattr(config, key)
        if value is not None and not value >= 0:
            raise ConfigError(f"{key} = {value} must not be negative")
    if config.context_length is not None and not config.context_length > 0:
        raise ConfigError(f"context_length = {config.context_length} must be more than 0")
    refuse_unknown_to_engine(config, adapter)
    refuse_if_longer(config, "drain_timeout", "terminate_timeout", "the kill would cut the drain")
    refuse_if_longer(config, "backoff_initial", "backoff_max", "the wait could never be that short")
    if config.ready_path and not config.ready_path.startswith("/"):
        raise ConfigError(f"ready_path = {config.ready_path!r} must begin with a slash, such as \"/health\"")
    if config.port is not None and not 1 <= config.port <= 65535:
        raise ConfigError(f"port = {config.port} must be between 1 and 65535")
    keyed = config.api_key_env or config.api_key_file
    if adapter.capabilities.local and is_exposed(config.host) and not (config.allow_exposed or keyed):
        raise ConfigError(
            f"host = {config.host!r} lets others reach the server without a key: name a key with api_key_env, "
            "or set allow_exposed = true"
        )
    refuse_rest(config, adapter)
    if config.base_url and adapter.capabilities.local:
        raise ConfigError(
            f"base_url = {config.base_url!r} is for a server that runs already, but backend {config.backend!r} starts "
            "its own: use backend 'endpoint', or leave it out"
        )
    own_check = getattr(adapter, "check", None)
    if own_check and ask_backend:
        own_check(config)


IDLE_ACTIONS = ("stop", "sleep")


def refuse_rest(config: ServerConfig, adapter: Adapter) -> None:
    """Refuse to put to rest, or to keep, what cannot be. Raises `ConfigError`."""
    if config.idle_action not in IDLE_ACTIONS:
        raise ConfigError(f"idle_action = {config.idle_action!r} is neither of {', '.join(IDLE_ACTIONS)}")
    if config.idle_timeout is not None and not config.idle_timeout > 0:
        raise ConfigError(f"idle_timeout = {config.idle_timeout} must be more than 0; leave it out for never")
    for name in ("idle_timeout", "keep_for"):
        if not getattr(config, name):
            continue
        told = f"{name} = {getattr(config, name):g}"
        if not adapter.capabilities.local:
            raise ConfigError(f"{told}, but backend {config.backend!r} starts no process of its own: leave it out")
        if config.nodes > 1 or asks_itself(adapter):
            raise ConfigError(f"{told}, but this server is a part of a larger one: leave it out")
    if config.idle_timeout and config.idle_action == "sleep" and capabilities_of(adapter, config).sleep is None:
        raise ConfigError(
            "idle_action = \"sleep\", but this engine cannot sleep as it is configured: set sleep_mode = true (vllm) "
            "or memory_saver = true (sglang), or idle_action = \"stop\""
        )


def refuse_unknown_to_engine(config: ServerConfig, adapter: Adapter) -> None:
    """Raises `ConfigError` for a setting of the model that this backend would not heed."""
    defaults = {f.name: f.default for f in fields(ServerConfig)}
    for key in MODEL_SETTINGS:
        value = getattr(config, key)
        if value != defaults[key] and key not in adapter.capabilities.settings:
            heeded = ", ".join(sorted(adapter.capabilities.settings)) or "none of its kind"
            raise ConfigError(
                f"{key} = {value!r} means nothing to backend {config.backend!r} (it heeds {heeded}): leave it out"
            )


def is_exposed(host: str) -> bool:
    """Whether others can reach a server that binds `host`. Raises `ConfigError` if that is not an address."""
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        raise ConfigError(
            f"host = {host!r} is not an address, and a name can mean several: say which, such as 127.0.0.1"
        ) from None


def refuse_if_longer(config: ServerConfig, shorter: str, longer: str, why: str) -> None:
    low, high = getattr(config, shorter), getattr(config, longer)
    if low is not None and high is not None and low > high:
        raise ConfigError(
            f"{shorter} = {low:g} is longer than {longer} = {high:g}: {why}; lower the one or raise the other"
        )


def convert(values: Mapping[str, Any], kind: type[T]) -> T:
    """Turn loosely typed values into a frozen dataclass; strings become numbers and booleans where fields are those."""
    try:
        return msgspec.convert(dict(values), kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_wrong(str(error), values)) from None


WORDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "array": "a list",
    "object": "a table", "null": "nothing",
}  # fmt: skip
"""What msgspec calls types, in words."""


def _wrong(said: str, values: Mapping[str, Any]) -> str:
    """What msgspec says of a value that does not fit, with the setting's name and value.

    >>> _wrong("Expected `int | null`, got `str` - at `$.port`", {"port": "x"})
    "port = 'x' cannot be: expected a whole number or nothing, got a text"
    """
    found = re.fullmatch(r"(.*) - at `\$\.(\w+)[^`]*`", said)
    if found is None:
        return f"wrong value in the configuration: {said}"
    what, key = found.groups()
    what = re.sub(r"`([^`]*)`", lambda types: " or ".join(WORDS.get(one, one) for one in types[1].split(" | ")), what)
    return f"{key} = {values.get(key)!r} cannot be: {what[0].lower()}{what[1:]}"


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML configuration file. Raises `ConfigError` if it is missing or not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} is not TOML: {error}") from None


def read_table(key: str, text: str) -> Any:
    """A setting that is a table, from the JSON object that `--set` gives. Raises `ConfigError`."""
    try:
        return decode(text)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{key} = {text!r} is not a JSON object ({error}); for example: --set {key}='{{\"NAME\": \"value\"}}'"
        ) from None


def parse_setting(text: str) -> tuple[str, str]:
    """Split one `KEY=VALUE`. Raises `ConfigError` if there is no `=`."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {text!r} is not KEY=VALUE")
    return key.strip().replace("-", "_"), value
