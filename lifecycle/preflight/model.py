"""Whether a model can be had: from a folder, from the hub's cache on this disk, or from the hub.

The hub is asked as huggingface_hub 1.x asks it
(https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables); the library is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from lifecycle.preflight import Check, blocker, ok, warning
from lifecycle.resources.gpus import in_words
from lifecycle.resources.weights import WEIGHTS, Environ, OnDisk, hub_home, looks_like_path, weights_of

HUB = "https://huggingface.co"
HUB_TIMEOUT = 5.0
"""Seconds that the hub has to answer."""
TRUE = frozenset(("1", "ON", "YES", "TRUE"))

@dataclass(frozen=True)
class OnHub:
    """What the hub said of a model. `status` None: it did not answer, and `words` say why."""

    status: int | None
    words: str
    size: int | None = None
    """Bytes of weights, if it told."""


def is_offline(environ: Environ) -> bool:
    """Whether the hub's library would not go online."""
    return any((environ.get(key) or "").upper() in TRUE for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def token_of(environ: Environ) -> tuple[str, str]:
    """(the token for the hub, where it comes from); both empty if there is none."""
    for key in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        value = (environ.get(key) or "").strip()
        if value:
            return value, key
    path = Path(environ.get("HF_TOKEN_PATH") or hub_home(environ) / "token").expanduser()
    try:
        token = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return "", ""
    return token, str(path) if token else ""


async def ask_hub(model: str, revision: str, environ: Environ, *, timeout: float = HUB_TIMEOUT) -> OnHub:
    """Ask the hub for a model, through the proxy that the environment names, as the engine will."""
    endpoint = (environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    url = f"{endpoint}/api/models/{model}" + (f"/revision/{revision}" if revision else "")
    token, _ = token_of(environ)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        async with httpx.AsyncClient(trust_env=True, timeout=timeout, follow_redirects=True) as http:
            answer = await http.get(url, params={"blobs": "true"}, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return OnHub(None, f"{endpoint}: {error or type(error).__name__}")
    if answer.status_code != 200:
        told = answer.headers.get("x-error-message") or answer.reason_phrase
        return OnHub(answer.status_code, f"{endpoint} says {answer.status_code} {told}".strip())
    return OnHub(200, endpoint, _size(answer))


def _size(answer: httpx.Response) -> int | None:
    try:
        body: Any = answer.json()
        files = {str(one["rfilename"]): int(one.get("size") or 0) for one in body["siblings"]}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return weights_of(files) or None


def model_row(model: str, here: OnDisk | None, hub: OnHub | None, *, needs_files: bool, offline: bool) -> Check:
    """What is known of a model.

    Args:
        model: as the configuration has it.
        here: its files on this disk.
        hub: what the hub said; None if it was not asked.
        needs_files: the engine loads the model from disk or hub; for another, `model` may be a mere name.
        offline: HF_HUB_OFFLINE is set for the server.
    """
    name = "model"
    missing = blocker if needs_files else warning
    if here is not None:
        return _here(name, here, hub, offline=offline)
    if hub is None and looks_like_path(model):
        return missing(name, f"nothing is at {model}", "check the path")
    if hub is None or offline:
        advice = f"download it first (hf download {model}), or unset HF_HUB_OFFLINE"
        return missing(name, f"{model} is not on this disk, and HF_HUB_OFFLINE forbids to fetch it", advice)
    if hub.status == 200:
        size = f", {in_words(hub.size)} to download" if hub.size else ""
        return ok(name, f"{model} is on {hub.words}{size}")
    if hub.status in (401, 403):
        advice = "accept the model's terms on its page, and set HF_TOKEN to a token that may read it; check the name"
        return missing(name, f"{model}: {hub.words}", advice)
    if hub.status == 404:
        return missing(name, f"{model}: {hub.words}", "check the name and the revision")
    advice = "look at the proxy variables and HF_ENDPOINT, or download it elsewhere first and copy the cache"
    return missing(name, f"{model} is not on this disk, and the hub cannot be asked: {hub.words}", advice)


def _here(name: str, here: OnDisk, hub: OnHub | None, *, offline: bool) -> Check:
    found = f"{here.path}: {in_words(here.size)} of weights"
    if not here.size:
        return warning(name, f"{here.path} has no weights ({', '.join(WEIGHTS)})", "fine for dummy weights only")
    if not here.cached or offline or hub is None or hub.status == 200:
        return ok(name, found)
    return warning(name, f"{found}; but {hub.words}", "set HF_HUB_OFFLINE=1, so that the start does not need the hub")


def token_row(where: str) -> Check:
    """Whether there is a token for the hub; itself it is never shown. `where`: variable or file; empty for none."""
    if where:
        return ok("hub token", f"from {where}")
    return ok("hub token", "none; only private and gated models need one (HF_TOKEN)")
