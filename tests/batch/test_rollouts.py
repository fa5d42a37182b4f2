"""Several answers to a record, answers made by a user's own function, and what becomes of a record that fails."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.batch.asking import SEEDS, Generate, seed_of
from lifecycle.batch.config import JobConfig
from lifecycle.batch.functions import Rollout
from lifecycle.batch.job import JobAborted, run_job
from lifecycle.batch.plan import path_of, prepare
from lifecycle.batch.shard import Shard
from lifecycle.batch.summary import Summary
from lifecycle.errors import ConfigError, RequestRefused
from tests.batch.test_job import Quiet, Server, lines_of, write

pytestmark = pytest.mark.anyio


class Asked(Server):
    """Keeps what it was asked; answers with the seed that it got. Refuses what has a seed in `bad_seeds`."""

    def __init__(self, bad: Mapping[str, str] | None = None, bad_seeds: tuple[int, ...] = ()) -> None:
        super().__init__(bad=bad)
        self.payloads: list[tuple[str, Mapping[str, Any]]] = []
        self.bad_seeds = bad_seeds

    async def request(self, path: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        self.payloads.append((path, payload))
        prompt = payload.get("prompt") or payload["messages"][-1]["content"]
        if payload.get("seed") in self.bad_seeds:
            raise RequestRefused("HTTP 400", status=400)
        answer = await super().request(path, {"prompt": prompt})
        return {**answer, "choices": [{"text": f"{prompt} {payload.get('seed')}"}]}


async def run(
    folder: Path, lines: list[Any], server: Server, function: Rollout | None = None, context: Any = None, **more: Any
) -> Summary:
    source = write(folder / "in.jsonl", lines)
    with prepare(JobConfig(str(source), str(folder / "out.jsonl"), **more)) as plan:
        return await run_job(plan, server.request, progress=Quiet(), rollout=function, context=context)


def out(folder: Path) -> list[dict[str, Any]]:
    return sorted(lines_of(folder / "out.jsonl"), key=lambda line: str(line["id"]))


async def test_each_rollout_has_a_seed_of_its_own_and_the_same_one_in_every_run(tmp_path: Path) -> None:
    server = Asked()
    await run(tmp_path, [{"prompt": "a"}, {"prompt": "b", "params": {"seed": 100}}], server, rollouts=3)
    seeds = {line["prompt"]: [each["text"].split()[1] for each in line["generations"]] for line in out(tmp_path)}
    assert seeds == {"a": ["0", "1", "2"], "b": ["100", "101", "102"]}


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(2, 64))
def test_no_two_rollouts_of_a_job_without_a_seed_have_the_same_one(one: int, two: int, rollouts: int) -> None:
    seeds = {seed_of(None, number, k, rollouts) for number in {one, two} for k in range(rollouts)}
    assert len(seeds) == rollouts * len({one, two})
    assert all(seed is not None and 0 <= seed < SEEDS for seed in seeds)


async def test_without_rollouts_no_seed_is_made_up(tmp_path: Path) -> None:
    server = Asked()
    await run(tmp_path, [{"prompt": "a"}], server)
    assert "seed" not in server.payloads[0][1]


async def test_a_rollout_that_fails_makes_the_record_fail_and_the_others_are_kept(tmp_path: Path) -> None:
    summary = await run(tmp_path, [{"prompt": "a"}], Asked(bad_seeds=(1,)), rollouts=3, concurrency=1)
    (line,) = out(tmp_path)
    assert line["error"]["kind"] == "refused"
    assert line["error"]["message"].startswith("rollout 2 of 3: ")
    assert [each["text"] for each in line["generations"]] == ["a 0", "a 2"]
    assert summary.errors == {"refused": 1}
    again = await run(tmp_path, [{"prompt": "a"}], Asked(), rollouts=3, retry_errors=True)
    assert again.answered == 1
    assert [each["text"] for each in out(tmp_path)[0]["generations"]] == ["a 0", "a 1", "a 2"]


@pytest.mark.parametrize("rollouts", [1, 2])
async def test_an_answer_of_another_shape_is_shown_in_its_records_error(tmp_path: Path, rollouts: int) -> None:
    class Odd(Asked):
        async def request(self, path: str, payload: Mapping[str, Any]) -> dict[str, Any]:
            return {"detail": "a page of a proxy"}

    await run(tmp_path, [{"prompt": "a"}], Odd(), rollouts=rollouts)
    error = out(tmp_path)[0]["error"]
    assert error["kind"] == "request"
    assert "not the shape of a completion" in error["message"]
    assert "a page of a proxy" in error["body"]


async def test_rollouts_cannot_change_in_the_middle_of_a_job(tmp_path: Path) -> None:
    await run(tmp_path, [{"prompt": "a"}], Asked(), rollouts=3)
    with pytest.raises(Exception, match="rollouts"):
        await run(tmp_path, [{"prompt": "a"}], Asked(), rollouts=2)


async def critique(record: Mapping[str, Any], generate: Generate, tone: str = "kind") -> dict[str, Any]:
    """Asks twice, the second time with the first answer."""
    first = (await generate(record["question"], max_tokens=5))["choices"][0]["text"]
    second = await generate([{"role": "user", "content": f"be {tone}: {first}"}])
    return {"draft": first, "final": second["choices"][0]["text"]}


async def test_a_function_asks_as_often_as_it_likes_and_what_it_returns_is_the_result(tmp_path: Path) -> None:
    server = Asked()
    lines = [{"question": f"q{number}", "keep": number} for number in range(5)]
    summary = await run(tmp_path, lines, server, critique, {"tone": "harsh"}, temperature=0.5, seed=7)
    assert {line["keep"]: line["results"] for line in out(tmp_path)} == {
        number: [{"draft": f"q{number} 7", "final": f"be harsh: q{number} 7 7"}] for number in range(5)
    }
    assert summary.requests == 10
    assert summary.answered == 5
    assert {path for path, _ in server.payloads} == {"/v1/completions", "/v1/chat/completions"}
    assert all(payload["temperature"] == 0.5 for _, payload in server.payloads)


async def test_requests_of_functions_keep_the_limit_of_the_job(tmp_path: Path) -> None:
    async def branch(record: Mapping[str, Any], generate: Generate) -> list[str]:
        import anyio

        found: list[str] = []

        async def one(number: int) -> None:
            found.append((await generate(f"{record['n']}-{number}"))["choices"][0]["text"])

        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(one, number)
        return sorted(found)

    server = Asked()
    await run(tmp_path, [{"n": number} for number in range(10)], server, branch, concurrency=5)
    assert server.peak == 5
    assert server.asked.total() == 60


@pytest.mark.parametrize("rollouts", [1, 2])
async def test_what_a_function_raises_is_its_records_error_and_says_where(tmp_path: Path, rollouts: int) -> None:
    async def breaks(record: Mapping[str, Any], generate: Generate) -> str:
        return str(record["missing"])

    summary = await run(tmp_path, [{"n": 1}, {"n": 2, "missing": "m"}], Asked(), breaks, rollouts=rollouts)
    bad, good = out(tmp_path)
    assert bad["error"]["kind"] == "rollout"
    assert "KeyError: 'missing'" in bad["error"]["message"]
    assert "test_rollouts.py, line" in bad["error"]["message"]
    assert good["results"] == ["m"] * rollouts
    assert summary.exit_code == 3


async def test_a_result_that_json_cannot_hold_is_the_records_error(tmp_path: Path) -> None:
    async def odd(record: Mapping[str, Any], generate: Generate) -> object:
        return object()

    await run(tmp_path, [{"n": 1}], Asked(), odd)
    assert "object" in out(tmp_path)[0]["error"]["message"]


@pytest.mark.parametrize("kind", ["mapping", "function", "context manager", "async context manager"])
async def test_a_context_is_opened_once_and_closed_at_the_end(tmp_path: Path, kind: str) -> None:
    happened: list[str] = []

    @contextmanager
    def plain() -> Iterator[dict[str, str]]:
        happened.append("open")
        yield {"tone": "calm"}
        happened.append("closed")

    @asynccontextmanager
    async def waits() -> AsyncIterator[dict[str, str]]:
        happened.append("open")
        yield {"tone": "calm"}
        happened.append("closed")

    context = {
        "mapping": {"tone": "calm"}, "function": lambda: {"tone": "calm"}, "context manager": plain,
        "async context manager": waits,
    }[kind]  # fmt: skip
    await run(tmp_path, [{"question": "a"}, {"question": "b"}], Asked(), critique, context)
    assert all("be calm" in line["results"][0]["final"] for line in out(tmp_path))
    assert happened == (["open", "closed"] if "manager" in kind else [])


async def test_a_context_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a mapping of names to objects is needed"):
        await run(tmp_path, [{"question": "a"}], Asked(), critique, lambda: ["no"])


FUNCTIONS = """
async def shout(record, generate):
    return (await generate(record["word"]))["choices"][0]["text"].upper()
"""


async def test_a_function_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FUNCTIONS)
    await run(tmp_path, [{"word": "hi"}], Asked(), rollout=f"{tmp_path}/own.py:shout")
    assert out(tmp_path)[0]["results"] == ["HI NONE"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nothing", "is not module:name"),
        ("json:lods", "json has no 'lods'; did you mean 'loads'?"),
        ("no_such_module:f", "no_such_module cannot be imported: ModuleNotFoundError"),
        ("none/such.py:f", "there is no file none/such.py"),
        ("json:__name__", "is str, not a function"),
    ],
)
async def test_a_function_that_is_not_there_is_named(tmp_path: Path, spec: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        await run(tmp_path, [{"n": 1}], Asked(), rollout=spec)
    assert said in str(refused.value)


async def test_a_record_that_is_skipped_has_no_line_and_is_not_sent_again_unless_asked_for(tmp_path: Path) -> None:
    lines = [{"prompt": "a"}, {"prompt": "b"}, "broken"]
    summary = await run(tmp_path, lines, Asked(bad={"a": "failed"}), on_error="skip")
    assert [line["prompt"] for line in out(tmp_path)] == ["b"]
    assert (summary.skipped, summary.answered, summary.left) == (2, 1, 0)
    again = Asked()
    await run(tmp_path, lines, again, on_error="skip")
    assert not again.asked
    await run(tmp_path, lines, again, on_error="skip", retry_errors=True)
    assert again.asked == Counter({"a": 1})
    assert [line["prompt"] for line in out(tmp_path)] == ["a", "b"]


async def test_a_job_that_aborts_names_the_record_keeps_what_is_answered_and_goes_on_from_it(tmp_path: Path) -> None:
    lines = [{"prompt": f"p{number}"} for number in range(30)]
    server = Asked(bad={"p3": "refused"})
    with pytest.raises(JobAborted, match=r"line 4 of .*in\.jsonl: HTTP 400"):
        await run(tmp_path, lines, server, on_error="abort", concurrency=2)
    kept = {line["prompt"] for line in out(tmp_path)}
    assert "p3" not in kept
    assert kept == set(server.asked) - {"p3"}, "what was in flight was finished"
    assert len(kept) < 29
    again = Asked()
    await run(tmp_path, lines, again, on_error="abort")
    assert set(again.asked) == {f"p{number}" for number in range(30)} - kept


@pytest.mark.parametrize("world", [1, 3, 7])
async def test_the_shards_together_have_every_record_once_and_a_finished_one_has_nothing_to_do(
    tmp_path: Path, world: int
) -> None:
    lines = [{"prompt": f"p{number}"} for number in range(20)]
    asked: Counter[str] = Counter()
    for rank in range(world):
        server = Asked()
        await run(tmp_path, lines, server, rank=rank, world_size=world)
        asked.update(server.asked)
        source = str(tmp_path / "in.jsonl")
        with prepare(JobConfig(source, str(tmp_path / "out.jsonl"), rank=rank, world_size=world)) as plan:
            assert plan.left == 0
            assert plan.store.complete
    assert asked == Counter(f"p{number}" for number in range(20))
    paths = [path_of(str(tmp_path / "out.jsonl"), Shard(rank, world)) for rank in range(world)]
    found = [line["prompt"] for path in paths for line in lines_of(path)]
    assert Counter(found) == asked


def test_shards_of_a_folder_have_folders_in_it(tmp_path: Path) -> None:
    assert path_of(f"{tmp_path}/out", Shard(1, 4)) == tmp_path / "out" / "rank-00001-of-00004"
    assert path_of(f"{tmp_path}/out.jsonl", Shard(1, 4)) == tmp_path / "out.rank-00001-of-00004.jsonl"
    assert path_of(f"{tmp_path}/out.jsonl", None) == tmp_path / "out.jsonl"


async def test_a_template_makes_prompts_and_a_record_that_it_fails_on_is_malformed(tmp_path: Path) -> None:
    (tmp_path / "ask.jinja").write_text("Translate {{ word }} into {{ into | default('French') }}.")
    lines = [{"word": "hi", "into": "Latin"}, {"word": "ho", "messages": []}, {"other": 1}]
    server = Asked()
    summary = await run(tmp_path, lines, server, template=str(tmp_path / "ask.jinja"))
    assert set(server.asked) == {"Translate hi into Latin.", "Translate ho into French."}
    bad = next(line for line in out(tmp_path) if "error" in line)
    assert bad["error"]["kind"] == "malformed"
    assert "line 3" in bad["error"]["message"]
    assert "'word' is undefined" in bad["error"]["message"]
    assert summary.errors == {"malformed": 1}


async def test_a_concurrency_that_is_found_is_never_above_its_limit(tmp_path: Path) -> None:
    server = Asked()
    await run(tmp_path, [{"prompt": f"p{number}"} for number in range(300)], server, adaptive=True, concurrency=24)
    assert server.asked.total() == 300
    assert 1 <= server.peak <= 24


@pytest.mark.parametrize("format", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
async def test_parts_of_every_format_can_be_the_input_of_the_next_job(tmp_path: Path, format: str) -> None:
    source = write(tmp_path / "in.jsonl", [{"prompt": f"p{number}", "n": number} for number in range(25)])
    with prepare(JobConfig(str(source), str(tmp_path / "mid/"), format=format, part_size=10)) as plan:
        await run_job(plan, Server().request, progress=Quiet())
    assert len(list((tmp_path / "mid").glob(f"part-*.{format}"))) == 3
    again = Server()
    with prepare(JobConfig(str(tmp_path / "mid"), str(tmp_path / "out.jsonl"))) as plan:
        await run_job(plan, again.request, progress=Quiet())
    assert again.asked == Counter(f"p{number}" for number in range(25))
    assert {line["n"] for line in lines_of(tmp_path / "out.jsonl")} == set(range(25))
    assert json.dumps(lines_of(tmp_path / "out.jsonl")[0]["generations"])
