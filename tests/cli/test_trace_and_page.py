"""`stoker serve --ui` as a user runs it: the page says what the command does, and its traces tell it afterwards."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any

import pytest

from lifecycle.cli import parse
from tests.cli.command import Stoker


def shown(url: str, wanted: str) -> Any:
    """The first state of the server that the page is sent."""
    with urllib.request.urlopen(url + "events", timeout=30) as answer:
        for line in answer:
            if line.startswith(b"data: ") and b'"state"' in line:
                found = json.loads(line[6:])
                if found["state"] == wanted:
                    return found
    raise AssertionError(f"the page never showed {wanted}")


def test_the_page_shows_what_the_command_does_and_the_trace_tells_it_afterwards(stoker: Stoker) -> None:
    process = stoker.start("serve", "--backend", "echo", "--ui", "--journal", "j.jsonl")
    assert process.stdout is not None
    told = ""
    for line in process.stdout:
        told += line
        if line.startswith("http"):
            break
    url = re.search(r"live page  (http://127\.0\.0\.1:\d+/)", told)
    assert url is not None
    assert shown(url[1], "Healthy")["attempt"] == 1
    process.terminate()
    process.communicate()
    assert process.returncode == 0
    trace = stoker.run("trace", "j.jsonl")
    assert trace.code == 0
    assert "server echo" in trace.out
    assert re.search(r"Stopped +Ended", trace.out)


@pytest.mark.parametrize(("words", "port"), [(["--ui"], 0), (["--ui", "8265"], 8265), ([], None)])
def test_a_port_can_be_named_or_left_to_the_system(words: list[str], port: int | None) -> None:
    assert parse(["serve", "--backend", "echo", *words]).ui == port


def test_a_port_that_cannot_be_is_refused_before_anything_starts(stoker: Stoker) -> None:
    ended = stoker.run("serve", "--backend", "echo", "--ui", "70000")
    assert ended.code == 2
    assert "ui = 70000" in ended.err
