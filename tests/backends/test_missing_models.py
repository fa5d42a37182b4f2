"""A model that can only be meant as a path, where nothing is, costs no start of an engine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from lifecycle.adapter import load_adapter, prepared_by
from lifecycle.config import ServerConfig
from lifecycle.errors import ConfigError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """A backend knows nothing of event loops: one is enough."""
    return "asyncio"


async def never(argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 0) -> str:
    raise AssertionError(f"an engine was asked: {argv}")


async def found(*_: object, **__: object) -> None:
    """The engine is there; what it is does not matter."""


@pytest.mark.parametrize("path", ["./nope", "/nowhere/model", "~/no such model", "nope.gguf"])
@pytest.mark.parametrize("backend", ["vllm", "sglang"])
async def test_a_path_where_nothing_is_is_refused_before_the_engine_is_asked(
    backend: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"backends.{backend}.find_engine", found)
    with pytest.raises(ConfigError, match=f"model = '{re.escape(path)}' is a path, and nothing is there"):
        await prepared_by(load_adapter(backend), ServerConfig(backend, model=path), never)
