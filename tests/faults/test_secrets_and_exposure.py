"""Arguments, logs and addresses are public by default: no key in any of them, and nobody reached by accident."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lifecycle.config import load_config
from lifecycle.errors import ConfigError
from lifecycle.secrets import known_secrets
from tests.served import HELLO, fake, given_up, healthy, make, starts

pytestmark = pytest.mark.anyio
KEY, TOKEN = "sk-very-secret-0123456789", "hf_AbCdEfGhIjKlMnOp"


@pytest.fixture(params=["variable", "file"])
def key_settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A key, kept where keys may be kept."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    if request.param == "variable":
        monkeypatch.setenv("TEST_API_KEY", KEY)
        return {"api_key_env": "TEST_API_KEY"}
    (tmp_path / "key").write_text(f"{KEY}\n")
    return {"api_key_file": str(tmp_path / "key")}


def files_with_a_secret(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "key":
            content = path.read_bytes()
            if KEY.encode() in content or TOKEN.encode() in content:
                yield path


@pytest.mark.fault(89, 90)
async def test_a_key_shows_in_no_argument_no_log_and_no_record(tmp_path: Path, key_settings: dict[str, Any]) -> None:
    flags = {"show_environment": True, "need_key": "SERVER_KEY"}
    server = fake(tmp_path, flags, key_variable="SERVER_KEY", **key_settings)
    async with server:
        await healthy(server)
        await server.chat(HELLO)
        tree = server.activities.process
        assert tree is not None
        for pid in tree.pids():
            assert KEY not in " ".join(psutil.Process(pid).cmdline())
    assert list(files_with_a_secret(tmp_path / "state")) == []
    assert KEY not in json.dumps([str(record) for record in server.journal.records])
    log = Path(str(starts(server)[0].log)).read_text()  # noqa: ASYNC240
    assert "SERVER_KEY=***" in log
    assert "HF_TOKEN=***" in log


@pytest.mark.fault(89)
async def test_a_key_shows_in_no_error(tmp_path: Path, key_settings: dict[str, Any]) -> None:
    flags = {"say": [f"args: api_key={KEY}", f"Bearer {TOKEN}"], "exit_before_bind": True, "die_by": "SIGKILL"}
    error = await given_up(fake(tmp_path, flags, max_attempts=1, **key_settings))
    assert "Bearer ***" in str(error)
    assert KEY not in repr(error) + str(error)
    assert TOKEN not in repr(error) + str(error)


@pytest.mark.fault(48)
async def test_a_wrong_key_is_said_at_once_and_not_shown(
    tmp_path: Path, key_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is up, whatever the anonymous probe says: it is not waited for, and not restarted."""
    monkeypatch.setenv("SERVER_KEY", "another key")
    server = fake(tmp_path, {"need_key": "SERVER_KEY"}, **key_settings)
    error = await given_up(server)
    assert error.diagnosis.cause == "wrong-key"
    assert "HTTP 401" in str(error)
    assert "api_key_env or api_key_file" in str(error)
    assert KEY not in str(error)
    assert len(starts(server)) == 1


@pytest.mark.fault(91)
@pytest.mark.parametrize("backend", ["echo", "custom"])
async def test_by_default_nothing_of_the_tree_listens_where_others_can_reach_it(tmp_path: Path, backend: str) -> None:
    echo = backend == "echo"
    async with make(tmp_path, "echo") if echo else fake(tmp_path, {"extra_port": "{port1}"}, ports=1) as server:
        await healthy(server)
        tree = server.activities.process
        assert tree is not None
        addresses = {
            found.laddr.ip
            for pid in tree.pids()
            for found in psutil.Process(pid).net_connections("tcp")
            if found.status == psutil.CONN_LISTEN
        }
    assert addresses
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses)


@pytest.mark.fault(92)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "2001:db8::1"])
def test_an_address_that_others_reach_needs_a_key_or_an_explicit_word(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="api_key_env, or set allow_exposed") as caught:
        load_config("echo", host=host)
    assert repr(host) in str(caught.value)
    monkeypatch.setenv("TEST_API_KEY", KEY)
    load_config("echo", host=host, allow_exposed=True)
    load_config("echo", host=host, api_key_env="TEST_API_KEY")


@pytest.mark.parametrize("setting", ["api_key", "key", "apikey"])
def test_a_configuration_cannot_hold_a_key(setting: str) -> None:
    with pytest.raises(ConfigError, match="unknown setting") as caught:
        load_config("echo", settings={setting: KEY})
    assert KEY not in str(caught.value)


@pytest.mark.fault(90)
@pytest.mark.parametrize("flag", ["api-key", "api_key", "--api-key", "hf-token"])
def test_a_flag_that_would_show_a_key_in_ps_is_refused(flag: str) -> None:
    from backends.flags import flags

    with pytest.raises(ConfigError, match="ps") as caught:
        flags({flag: KEY})
    assert KEY not in str(caught.value)


def test_short_values_and_plain_names_are_no_secrets() -> None:
    plain = {"USE_KEY": "1", "PATH": "/usr/bin:/usr/local/bin", "HF_TOKEN": TOKEN, "my_password": " longer-than-8 "}
    assert known_secrets(None, plain) == (TOKEN, "longer-than-8")
    assert known_secrets("k", {}) == ("k",)


