"""What needs an extra says which, before anything is read; plain and gzipped lines need none."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

from lifecycle.batch.sources import open_source, packed
from lifecycle.batch.template import Template
from lifecycle.errors import ConfigError, InputError


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without extras: an import of None fails as a missing module does."""
    for name in ("pyarrow", "pyarrow.parquet", "jinja2", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(packed, "zstd", None)


@pytest.mark.parametrize(
    ("name", "data", "extra"),
    [("in.zst", b"\x28\xb5\x2f\xfd", "data"), ("in.parquet", b"PAR1", "data"), ("hf:a/b@train", b"", "hub")],
)
def test_a_missing_extra_is_named(tmp_path: Path, name: str, data: bytes, extra: str) -> None:
    if data:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=rf"needs: pip install 'stoker\[{extra}\]'"):
        open_source(str(tmp_path / name) if data else name)


def test_a_template_names_its_extra(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs Jinja: pip install 'stoker\[data\]'"):
        Template(tmp_path / "ask.jinja")


def test_lines_need_no_extra(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"1\n")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"2\n"))
    assert [row.data for row in open_source(str(tmp_path)).rows()] == [b"1", b"2"]
