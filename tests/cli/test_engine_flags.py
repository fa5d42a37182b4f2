"""A flag that the installed engine does not have, on Stoker's command line: named at once, and nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.standin import FROM_JSON, environment
from tests.cli.command import Stoker

OPTIONS = Path(__file__).parents[1] / "engines" / "options" / "sglang-0.5.23.json"


@pytest.mark.fault(42)
@pytest.mark.parametrize("verb", ["serve", "generate", "check"])
def test_a_flag_that_the_engine_does_not_have_is_named_and_nothing_is_started(
    verb: str, stoker: Stoker, tmp_path: Path
) -> None:
    python = environment(tmp_path, "0.5.23", FROM_JSON.format(path=str(OPTIONS)))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hello"}\n')
    words = [verb, "--backend", "sglang", "--model", str(model), "--python", str(python)]
    words += ["--set", f"cache_dir={tmp_path / 'caches'}"]
    words += [str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")] if verb == "generate" else []
    done = stoker.run(*words, "--", "--max-runing-requests", "8")
    assert done.code == (1 if verb == "check" else 2)
    told = " ".join((done.out + done.err).split())
    assert "sglang 0.5.23 has no flag --max-runing-requests; did you mean '--max-running-requests'?" in told
    assert "Starting" not in told
    assert "attempt" not in told
