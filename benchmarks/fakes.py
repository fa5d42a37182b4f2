"""The server that everything is measured with: the tests' fake server, ready at a moment that it can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lifecycle.config import ServerConfig, load_config
from tests.fake import SCRIPT, fake_command, stats


def not_ready_for(seconds: float) -> dict[str, Any]:
    """Routes of a server that answers 503 for so many seconds after it has begun to listen."""
    rule = [{"until": seconds, "status": 503}]
    return {"/health": rule, "/v1/models": rule}


def config(state: Path, **flags: Any) -> ServerConfig:
    """A fake server under Stoker."""
    found, _ = load_config("custom", command=fake_command(**flags), model="fake", state_dir=str(state))
    return found


__all__ = ["SCRIPT", "config", "not_ready_for", "stats"]
