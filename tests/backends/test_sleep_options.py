"""Engines that can sleep are started so, and only if that is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from backends import sglang, vllm
from backends.engine import Engine
from backends.options import Option, Options
from backends.vllm_flags import serve_words
from lifecycle.config import ServerConfig, load_config
from lifecycle.errors import ConfigError

DUMPS = Path(__file__).parents[1] / "engines" / "options"


def engine(name: str, version: str) -> Engine:
    all_of_them = msgspec.convert(json.loads((DUMPS / f"{name}-{version}.json").read_text()), tuple[Option, ...])
    return Engine(name, "python", version, "", Options(f"{name} {version}", all_of_them))


@pytest.mark.parametrize("version", ["0.18.1", "0.33.0"])
def test_vllm_is_started_with_its_sleep_mode_only_if_asked(version: str) -> None:
    found = engine("vllm", version)
    for asked in (True, False):
        config, adapter = load_config("vllm", model="m", sleep_mode=asked)
        words = serve_words(config, found)
        found.check(words)
        assert ("--enable-sleep-mode" in words) is asked
        assert (vllm.adapter.capabilities_for(config).sleep is not None) is asked
        assert adapter is vllm.adapter


@pytest.mark.parametrize("version", ["0.5.15", "0.5.23"])
def test_sglang_keeps_its_weights_in_the_hosts_memory_while_it_sleeps(version: str) -> None:
    found = engine("sglang", version)
    for asked in (True, False):
        config, _ = load_config("sglang", model="m", memory_saver=asked)
        words = sglang.model_words(config, found)
        found.check(words)
        assert ("--enable-memory-saver" in words) is ("--enable-weights-cpu-backup" in words) is asked
        assert (sglang.adapter.capabilities_for(config).sleep is not None) is asked


def test_a_vllm_that_others_can_reach_has_no_sleep_mode() -> None:
    with pytest.raises(ConfigError, match="control paths, which ask for no key"):
        load_config("vllm", model="m", sleep_mode=True, host="0.0.0.0", allow_exposed=True)
    assert isinstance(load_config("vllm", model="m", sleep_mode=True)[0], ServerConfig)
