"""Keys: read from where the configuration says, and kept out of texts. A configuration never holds a key itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError

MASK = "***"
SECRET_NAMES = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD")
"""Ends of names of environment variables whose value nobody else may read: HF_TOKEN, OPENAI_API_KEY, ..."""
VARIABLE = re.compile(r"[A-Za-z_]\w*")
"""What else is given for one may be a key itself, which no message must show."""
SHORTEST_SECRET = 8
"""Characters. Shorter values ("1", "true") are no keys, and masking them would spoil the log."""


def api_key(config: ServerConfig) -> str | None:
    """The key that requests to this server carry, or None if the configuration names none.

    The variable `api_key_env` comes first, then the file `api_key_file`; white space around the key is cut off. Raises
    `ConfigError` if what is named does not exist, is empty, or could not be sent in an HTTP header.
    """
    if config.api_key_env:
        if not VARIABLE.fullmatch(config.api_key_env):
            raise ConfigError("api_key_env is not the name of a variable: put the key into one, and name that")
        where = f"the environment variable {config.api_key_env!r}, named by api_key_env,"
        text = os.environ.get(config.api_key_env)
        if text is None:
            raise ConfigError(f"{where} is not set: export it, or name another one")
    elif config.api_key_file:
        where = f"the file {config.api_key_file!r}, named by api_key_file,"
        try:
            text = Path(config.api_key_file).expanduser().read_text(encoding="ascii")
        except OSError as error:
            raise ConfigError(f"{where} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{where} holds something else than one line of ASCII text") from None
    else:
        return None
    key = text.strip()
    if not key:
        raise ConfigError(f"{where} is empty: put the key there, or name no key")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"{where} holds something else than one line of ASCII text")
    return key


def known_secrets(key: str | None, *environments: Mapping[str, str | None]) -> tuple[str, ...]:
    """What a server might print of what it is given: its API key, and every variable whose name says that it is one."""
    found = {
        value.strip()
        for variables in environments
        for name, value in variables.items()
        if value and name.upper().endswith(SECRET_NAMES) and len(value.strip()) >= SHORTEST_SECRET
    }
    return tuple(sorted(found | ({key} if key else set())))


def mask(text: str, secrets: Iterable[str]) -> str:
    """`text` with every one of `secrets` replaced by `***`; longer ones first, since one may contain another."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text
