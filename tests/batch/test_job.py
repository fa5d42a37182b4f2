"""A job asks for every prompt once; every line of input has exactly one line of output, whatever happens between."""

from __future__ import annotations

import io
import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lifecycle.batch.job import JobConfig, prepare, run_job
from lifecycle.batch.progress import PlainProgress
from lifecycle.batch.summary import Summary
from lifecycle.errors import Draining, InputError, OutputError, RequestRefused, RetriesExhausted

pytestmark = pytest.mark.anyio


class Quiet(PlainProgress):
    def __init__(self) -> None:
        super().__init__(io.StringIO())


class Server:
    """Answers, refuses, fails, or is ended after so many requests."""

    def __init__(self, ends_after: int | None = None, bad: Mapping[str, str] | None = None) -> None:
        self.ends_after = ends_after
        self.bad = bad or {}
        self.asked: Counter[str] = Counter()
        self.in_flight = self.peak = 0

    async def request(self, path: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        prompt = payload["prompt"]
        if self.ends_after is not None and self.asked.total() >= self.ends_after:
            raise Draining("the server is draining")
        self.asked[prompt] += 1
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        for _ in range(20):  # long enough for all workers to take a prompt
            await anyio.lowlevel.checkpoint()
        self.in_flight -= 1
        if self.bad.get(prompt) == "refused":
            raise RequestRefused("HTTP 400", status=400, body="too long")
        if self.bad.get(prompt) == "failed":
            raise RetriesExhausted("HTTP 500", status=500)
        return {"choices": [{"text": f"to {prompt}"}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


async def job(source: Path, output: Path, server: Server, *, concurrency: int = 4, **more: Any) -> Summary:
    with prepare(JobConfig(str(source), str(output), concurrency=concurrency, **more)) as plan:
        return await run_job(plan, server.request, progress=Quiet())


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of an output: a file, or a folder of parts, the one that grows too."""
    if path.is_dir():
        return [line for part in sorted(path.glob("*part-*.jsonl")) for line in lines_of(part)]
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


async def test_every_prompt_is_answered_once(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [{"prompt": f"p{number}"} for number in range(50)])
    server = Server()
    summary = await job(source, tmp_path / "out.jsonl", server)
    assert server.asked == Counter(f"p{number}" for number in range(50))
    assert {line["id"]: line["generations"][0]["text"] for line in lines_of(tmp_path / "out.jsonl")} == {
        f"line-{number + 1}": f"to p{number}" for number in range(50)
    }
    assert (summary.answered, summary.left, summary.exit_code, summary.completion_tokens) == (50, 0, 0, 100)


async def test_no_more_than_concurrency_are_in_flight_and_as_many_if_there_are_enough(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [{"prompt": f"p{number}"} for number in range(50)])
    server = Server()
    await job(source, tmp_path / "out.jsonl", server, concurrency=7)
    assert server.peak == 7


async def test_errors_are_lines_too_and_the_job_goes_on(tmp_path: Path) -> None:
    source = write(
        tmp_path / "in", [{"prompt": "a", "keep": 1}, "{broken", {"prompt": "b"}, {"prompt": 5}, {"prompt": "c"}]
    )
    summary = await job(source, tmp_path / "out.jsonl", Server(bad={"a": "refused", "b": "failed"}))
    lines = {line["id"]: line for line in lines_of(tmp_path / "out.jsonl")}
    assert lines["line-1"]["keep"] == 1
    assert lines["line-1"]["error"]["status"] == 400
    assert lines["line-1"]["error"]["body"] == "too long"
    assert lines["line-2"]["error"]["line"] == 2
    assert lines["line-3"]["error"]["kind"] == "failed"
    assert lines["line-4"]["error"]["kind"] == "malformed"
    assert lines["line-5"]["generations"][0]["text"] == "to c"
    assert summary.errors == {"refused": 1, "failed": 1, "malformed": 2}
    assert summary.exit_code == 3


@given(
    count=st.integers(1, 30),
    runs=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=4),
    rollouts=st.sampled_from([1, 1, 3]),
    parts=st.booleans(),
    seed=st.integers(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ended_at_any_moment_and_run_again_each_prompt_has_exactly_one_line(
    tmp_path: Path, count: int, runs: list[tuple[int, int]], rollouts: int, parts: bool, seed: int
) -> None:
    """Each run ends after some requests."""
    roll = random.Random(seed)
    kinds = [{"prompt": f"p{n}"} if roll.random() < 0.8 else "{broken" for n in range(count)]
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    source, output = write(tmp_path / "in", kinds), tmp_path / ("out" if parts else "out.jsonl")
    answered: Counter[str] = Counter()
    for ends_after, concurrency in [*runs, (10**6, 3)]:
        before = {line["id"] for line in lines_of(output)}
        server = Server(ends_after)
        more = {"rollouts": rollouts, "part_size": 4}
        anyio.run(lambda: job(source, output, server, concurrency=concurrency, **more))  # noqa: B023 - called at once
        again = {f"line-{int(prompt[1:]) + 1}" for prompt in server.asked} & before
        assert not again, "what has its line is never sent again"
        answered.update(server.asked)
    lines = lines_of(output)
    assert Counter(line["id"] for line in lines) == Counter(f"line-{number + 1}" for number in range(count))
    assert all(len(line["generations"]) == rollouts for line in lines if "error" not in line)
    assert all(asked <= rollouts * (1 + len(runs)) for asked in answered.values())


async def test_a_job_that_is_through_has_nothing_left(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [{"prompt": "a"}, "broken"])
    await job(source, tmp_path / "out.jsonl", Server())
    with prepare(JobConfig(str(source), str(tmp_path / "out.jsonl"))) as plan:
        assert plan.left == 0
        assert plan.failed == 1
        assert not any(plan.rows())


async def test_stop_takes_no_new_prompt_and_lets_those_in_flight_finish(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [{"prompt": f"p{number}"} for number in range(20)])
    stop, started, go = anyio.Event(), anyio.Event(), anyio.Event()
    server = Server()

    async def slow(path: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        if server.asked.total() == 2:
            started.set()
        answer = await server.request(path, payload)
        await go.wait()
        return answer

    with prepare(JobConfig(str(source), str(tmp_path / "out.jsonl"), concurrency=3)) as plan:
        async with anyio.create_task_group() as group:

            async def run() -> None:
                summary = await run_job(plan, slow, progress=Quiet(), stop=stop)
                assert summary.answered == server.asked.total() == 3
                assert summary.left == 17

            group.start_soon(run)
            await started.wait()
            await anyio.wait_all_tasks_blocked()
            stop.set()
            await anyio.wait_all_tasks_blocked()
            go.set()
    assert len(lines_of(tmp_path / "out.jsonl")) == 3


async def test_an_error_of_ours_ends_the_job_as_itself_and_keeps_what_was_written(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [{"prompt": f"p{number}"} for number in range(9)])
    server = Server()

    async def breaks(path: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        if server.asked.total() >= 4:
            raise ZeroDivisionError("a bug")
        return await server.request(path, payload)

    plan = prepare(JobConfig(str(source), str(tmp_path / "out.jsonl"), concurrency=2))
    with plan, pytest.raises(ZeroDivisionError, match="a bug"):
        await run_job(plan, breaks, progress=Quiet())
    assert len(lines_of(tmp_path / "out.jsonl")) >= 3


def test_a_missing_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.jsonl cannot be read: No such file"):
        prepare(JobConfig(str(tmp_path / "none.jsonl"), str(tmp_path / "out.jsonl")))
    assert not (tmp_path / "out.jsonl").exists()


async def test_records_with_one_id_are_answered_each(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [{"id": "x", "prompt": "a"}, {"id": "x", "prompt": "b"}])
    await job(source, tmp_path / "out.jsonl", Server())
    assert [(line["id"], line["prompt"]) for line in lines_of(tmp_path / "out.jsonl")] == [("x", "a"), ("x", "b")]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        pytest.param([{"prompt": "a"}, {"prompt": "z"}], "which was another one then", id="a record is another one"),
        pytest.param([{"prompt": "a"}], "1 results for records that this input does not", id="a record is missing"),
        pytest.param([{"prompt": "b"}, {"prompt": "a"}], "which was another one then", id="the order is another one"),
    ],
)
async def test_an_output_that_belongs_to_another_input_is_refused(
    tmp_path: Path, now: list[dict[str, str]], said: str
) -> None:
    source = write(tmp_path / "in", [{"prompt": "a"}, {"prompt": "b"}])
    await job(source, tmp_path / "out.jsonl", Server())
    write(source, now)
    with pytest.raises(OutputError, match=said):
        prepare(JobConfig(str(source), str(tmp_path / "out.jsonl")))


async def test_an_input_that_has_grown_is_gone_on_with(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [{"prompt": "a"}])
    await job(source, tmp_path / "out.jsonl", Server())
    write(source, [{"prompt": "a"}, {"prompt": "b"}])
    again = Server()
    await job(source, tmp_path / "out.jsonl", again)
    assert again.asked == Counter({"b": 1})
    assert len(lines_of(tmp_path / "out.jsonl")) == 2


@pytest.mark.parametrize("foreign", ["my thesis", '{"lr": 0.1, "epochs": 3}', "SECRET=abc"])
def test_a_file_of_somebody_elses_is_refused_and_stays_as_it_is(tmp_path: Path, foreign: str) -> None:
    """It has no whole line, so it could be taken for a line that was cut off."""
    source = write(tmp_path / "in", [{"prompt": "a"}, {"custom_id": "x", "url": "/v1/completions", "body": {}}])
    output = tmp_path / "out.jsonl"
    output.write_text(foreign)
    with pytest.raises(OutputError, match="it was not written by Stoker"):
        prepare(JobConfig(str(source), str(output)))
    assert output.read_text() == foreign


async def test_lines_with_errors_are_sent_again_when_asked_for_and_only_these(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [{"prompt": "a"}, {"prompt": "b"}, "broken"])
    await job(source, tmp_path / "out.jsonl", Server(bad={"a": "failed"}))
    again = Server()
    summary = await job(source, tmp_path / "out.jsonl", again, retry_errors=True)
    assert again.asked == Counter({"a": 1})
    assert summary.exit_code == 3, "the broken line is broken still"
    lines = {line["id"]: line for line in lines_of(tmp_path / "out.jsonl")}
    assert lines["line-1"]["generations"][0]["text"] == "to a"
    assert len(lines_of(tmp_path / "out.jsonl")) == 3


def test_standard_output_is_no_output(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [{"prompt": "a"}])
    with pytest.raises(OutputError, match="name a file"):
        prepare(JobConfig(str(source), "-"))


def test_the_input_as_its_own_output_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [{"prompt": "a"}])
    with pytest.raises(OutputError, match="is the input itself"):
        prepare(JobConfig(str(source), str(source)))
    assert lines_of(source) == [{"prompt": "a"}]


async def test_a_byte_order_mark_empty_lines_and_carriage_returns_do_no_harm(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n  \n{"prompt": "b"}\r\n')
    summary = await job(source, tmp_path / "out.jsonl", Server())
    assert summary.errors == {}
    assert {line["id"] for line in lines_of(tmp_path / "out.jsonl")} == {"line-1", "line-4"}


async def test_standard_input_is_an_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b'{"prompt": "a"}\n\n{"prompt": "b"}')

    monkeypatch.setattr(sys, "stdin", Stdin)
    with prepare(JobConfig("-", str(tmp_path / "out.jsonl"))) as plan:
        await run_job(plan, Server().request, progress=Quiet())
    assert {line["prompt"] for line in lines_of(tmp_path / "out.jsonl")} == {"a", "b"}
