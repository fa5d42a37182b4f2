"""Requests by method, the same for a server, a group and a fleet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from lifecycle.client import Client
from lifecycle.living import Living


class Requests:
    """What has a client to send them with, and a life in which they make sense. Each raises `StokerError` outside of
    its `async with`, and waits and raises like `Client.request`."""

    client: Client
    _living: Living

    async def chat(self, payload: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """POST an OpenAI chat completion and return its answer."""
        return await self.request("/v1/chat/completions", payload, timeout=timeout)

    async def complete(self, payload: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """POST an OpenAI completion and return its answer."""
        return await self.request("/v1/completions", payload, timeout=timeout)

    async def request(
        self, path: str, payload: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """POST `payload` to any path, or GET it. See `Client.request`."""
        self._living.check_begun()
        return await self.client.request(path, payload, timeout=timeout)

    def stream(
        self, payload: Mapping[str, Any], *, path: str = "/v1/chat/completions", timeout: float | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]:
        """Stream an answer: `async with server.stream(payload) as chunks: async for chunk in chunks: ...`."""
        self._living.check_begun()
        return self.client.stream(path, payload, timeout=timeout)
