"""Datasets of the hub, by the real `datasets` where it is installed and a stand-in of the same calls where it is not.

The "hub" is a folder: `datasets` takes one in the place of a name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from lifecycle.batch.sources import open_source
from lifecycle.errors import InputError

STAND_IN = '''
import json, pathlib
from types import SimpleNamespace

class IterableDataset:
    features = {"id": "int64"}
    def __init__(self, path, split):
        self.path, self.split = path, split
        self.info = SimpleNamespace(splits=None)
    def decode(self, enable):
        return self
    def __iter__(self):
        return map(json.loads, self.path.read_text().splitlines())

def disable_progress_bars():
    pass

def load_dataset(path, name=None, split=None, revision=None, streaming=False):
    if name is not None:
        raise ValueError(f"BuilderConfig {name!r} not found. Available: ['default']")
    files = {each.stem: each for each in pathlib.Path(path).glob("*.jsonl")}
    if not files:
        raise FileNotFoundError(f"Couldn't find any data file at {path}.")
    if split is not None and split not in files:
        raise ValueError(f"Bad split: {split}. Available splits: {list(files)}")
    every = {stem: IterableDataset(path, stem) for stem, path in files.items()}
    return every if split is None else every[split]
'''


@pytest.fixture(autouse=True)
def datasets(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if find_spec("datasets") is not None:
        yield
        return
    folder = tmp_path_factory.mktemp("stand-in")
    (folder / "datasets.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(folder)
    yield
    sys.modules.pop("datasets", None)


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    for split, numbers in {"train": range(3), "test": range(3, 5)}.items():
        lines = [json.dumps({"id": number, "prompt": f"p{number}"}) + "\n" for number in numbers]
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    return tmp_path


def test_the_rows_of_a_split_are_records(hub: Path) -> None:
    source = open_source(f"hf:{hub}@train")
    for _ in range(2):
        rows = list(source.rows())
        assert [json.loads(row.data) for row in rows] == [{"id": number, "prompt": f"p{number}"} for number in range(3)]
        assert [(row.number, row.where) for row in rows] == [(0, "row 1"), (1, "row 2"), (2, "row 3")]
    assert source.paths == ()
    assert source.total() in (None, 3)
    source.close()


def test_a_single_split_need_not_be_named(hub: Path) -> None:
    (hub / "test.jsonl").unlink()
    assert len(list(open_source(f"hf:{hub}").rows())) == 3


def test_of_several_splits_none_is_guessed(hub: Path) -> None:
    with pytest.raises(InputError, match=r"has the splits .*; say which, as hf:.*@t"):
        open_source(f"hf:{hub}")


def test_what_the_hub_says_reaches_the_user(hub: Path) -> None:
    with pytest.raises(InputError, match="cannot be opened: Bad split: nope"):
        open_source(f"hf:{hub}@nope")
    with pytest.raises(InputError, match="cannot be opened: BuilderConfig 'de' not found"):
        open_source(f"hf:{hub}:de@train")
    (hub / "empty").mkdir()
    with pytest.raises(InputError, match="cannot be opened: "):
        open_source(f"hf:{hub}/empty@train")


def test_rows_before_damage_are_given(hub: Path) -> None:
    with (hub / "train.jsonl").open("a") as file:
        file.write("{broken\n")
    with pytest.raises(InputError, match=r"(cannot be read after row \d|cannot be opened)"):
        list(open_source(f"hf:{hub}@train").rows())


@pytest.mark.parametrize("spec", ["hf:", "hf:a:", "hf:a@", "hf:a@b:c", "hf:a#r@train"])
def test_another_form_is_refused_with_the_right_one(spec: str) -> None:
    with pytest.raises(InputError, match=r"has not the form hf:NAME\[:CONFIG\]\[@SPLIT\]\[#REVISION\]"):
        open_source(spec)
