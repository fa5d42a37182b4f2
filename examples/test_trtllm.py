"""What every backend must do, asked of the example: `pytest examples/test_trtllm.py`. Needs no engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from trtllm import adapter

from lifecycle.adapter import Phase
from lifecycle.config import load_config
from lifecycle.errors import ConfigError
from lifecycle.testing.conformance import AdapterConformance


class TestTrtllm(AdapterConformance):
    adapter = adapter
    config = {"model": "TinyLlama/TinyLlama-1.1B-Chat-v1.0"}  # noqa: RUF012
    phases = {  # noqa: RUF012
        "Loading weights: 100%|##########| 1190/1190 [01:01<00:00, 19.26it/s]": Phase("loading", 1190, 1190),
        "Loading safetensors weights in parallel: 100%|##########| 1/1 [00:00<00:00]": Phase("loading", 1, 1),
    }
    failures = {  # noqa: RUF012
        "Error: No such option: --max_batch_sizes (Possible options: --max_batch_size)": "unknown-flag",
        "RuntimeError: Failed to bind socket to 127.0.0.1:8000: [Errno 98] Address already in use": "port-taken",
        "ValueError: No GPU devices found on the node": "no-gpu",
    }


def test_a_folder_must_be_served_under_its_last_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"will call this model {tmp_path.name!r}"):
        load_config(adapter=adapter, model=str(tmp_path))
    load_config(adapter=adapter, model=str(tmp_path), served_name=tmp_path.name)
