"""The page of settings is what the code says."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from lifecycle.adapter import backends, load_adapter
from lifecycle.config import ServerConfig
from lifecycle.reference import job_settings, page, server_settings, settings_of, text

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_setting_is_on_the_page_and_means_something() -> None:
    every = [*server_settings(), *job_settings()]
    every += [one for name in backends() for one in settings_of(load_adapter(name).options)]
    for one in every:
        assert f"| `{one.name}` |" in page()
        assert one.meaning, f"{one.name} has no text"
    assert {one.name for one in server_settings()} == {f.name for f in fields(ServerConfig)} - {"backend", "options"}


def test_a_backends_own_defaults_are_shown() -> None:
    found = {one.name: one for one in server_settings("endpoint")}
    assert found["startup_timeout"].default == 10.0
    assert found["probe_interval"].shown == "1.0"
    assert "latency = 0.0" in text(server_settings("echo"), 80)
