"""The Python of docs/testing.md runs as it stands there: its tests are tests here, with the fixtures of the plugin."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from backends.echo import EchoAdapter
from lifecycle.server_chart import SERVER

PAGE = (Path(__file__).parents[1] / "docs" / "testing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
SHOWN: dict[str, Any] = {"MyEngine": EchoAdapter, "MY_CHART": SERVER, "__name__": __name__}
"""What a reader of the page would have."""

for block in BLOCKS:
    exec(block, SHOWN)
globals().update({name: value for name, value in SHOWN.items() if name.lower().startswith("test")})


def test_every_block_of_the_page_has_been_run() -> None:
    assert len(BLOCKS) == PAGE.count("```python") > 4
    assert {"TestMine", "TestMyMachine", "test_whatever_happens"} <= set(globals())
