"""Questions to a server over HTTP: at its literal address, never through a proxy."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx

from lifecycle.host import Answer, NoAnswer

CONNECT_TIMEOUT = 2.0
"""Seconds to find out whether anything listens."""


class HttpProber:
    """Asks one server. Implements `lifecycle.host.Prober`."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self._url = api_root(base_url)
        parts = urlsplit(self._url)
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        # Reading the certificate store takes 20 ms: only for those who need it.
        context = httpx.create_ssl_context() if parts.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(verify=context, trust_env=False, headers=headers)

    async def get(self, path: str, timeout: float) -> Answer:
        """See `lifecycle.host.Prober`."""
        return await self.ask("GET", path, None, timeout)

    async def post(self, path: str, payload: Mapping[str, Any], timeout: float) -> Answer:
        """See `lifecycle.host.Prober`."""
        return await self.ask("POST", path, payload, timeout)

    async def listening(self) -> bool:
        """See `lifecycle.host.Prober`."""
        try:
            with anyio.fail_after(CONNECT_TIMEOUT):
                stream = await anyio.connect_tcp(self._host, self._port)
        except (OSError, TimeoutError):
            return False
        await stream.aclose()
        return True

    async def aclose(self) -> None:
        """See `lifecycle.host.Prober`."""
        await self._http.aclose()

    async def ask(self, method: str, path: str, payload: Mapping[str, Any] | None, timeout: float) -> Answer:
        """Any request. Raises `NoAnswer`."""
        with anyio.move_on_after(timeout):
            try:
                response = await self._http.request(method, self._url + path, json=payload, timeout=None)
            except httpx.ConnectError as error:
                raise NoAnswer(f"{method} {path}: {error}", refused=True) from None
            except httpx.HTTPError as error:
                raise NoAnswer(f"{method} {path}: {error or type(error).__name__}") from None
            try:
                body = response.json()
            except ValueError:
                body = response.text
            return Answer(response.status_code, body)
        raise NoAnswer(f"{method} {path}: no answer in {timeout:g} s")


def api_root(url: str) -> str:
    """The URL to which `/v1/...` is appended, from one with or without a trailing `/v1` and slashes.

    >>> api_root("http://host:8000/v1/")
    'http://host:8000'
    """
    root = url.strip().rstrip("/")
    return root.removesuffix("/v1").rstrip("/")
