"""`stoker generate`: start a server, send it every prompt, write every answer, end it."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

import anyio

from lifecycle.adapter import Adapter
from lifecycle.batch.job import JobConfig, Plan, prepare, run_job
from lifecycle.batch.progress import display
from lifecycle.batch.summary import EXIT_ERRORS
from lifecycle.cli.say import tell
from lifecycle.cli.settings import collect
from lifecycle.cli.watch import Narrator, attended, exit_code_of, tell_failure
from lifecycle.config import ServerConfig, convert
from lifecycle.errors import ConfigError, StartFailed
from lifecycle.server import Server

PLACES = ("input", "output", "model")
FLAGS = ("concurrency", "max_tokens", "temperature", "seed", "system", "retry_errors")


def run(args: argparse.Namespace) -> int:
    """The command. Its exit code: 0, 1 server given up, 3 lines with errors, 130 and 143 interrupted."""
    keys = {each.name for each in fields(JobConfig)} - set(PLACES)
    config, adapter, settings = collect(args, keys)
    job = job_of(args, settings)
    with prepare(job) as plan:
        if plan.left == 0:
            if plan.total == 0:
                tell(f"input {job.input} has no lines: there is nothing to do")
                return 0
            told = f", {plan.failed} of them with an error (--retry-errors sends these again)" if plan.failed else ""
            tell(f"all {plan.total} prompts have their line in {job.output} already{told}")
            return EXIT_ERRORS if plan.failed else 0
        journal = Path(args.journal or f"{job.output}.journal.jsonl")
        if journal.resolve() == Path(job.output).resolve():
            raise ConfigError(f"the journal cannot be the output {job.output} as well; name another file")
        began_at = journal.stat().st_size if journal.exists() else 0
        return anyio.run(_generate, config, adapter, plan, journal, began_at)


def job_of(args: argparse.Namespace, settings: dict[str, Any]) -> JobConfig:
    """The job's own settings: a flag wins over the file, `--set` over both."""
    flags = {name: getattr(args, name) for name in FLAGS if getattr(args, name) is not None}
    job = convert({**flags, **settings, "input": args.input, "output": args.output}, JobConfig)
    for name in ("concurrency", "max_tokens"):
        value = getattr(job, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} = {value} must be at least 1")
    return job


async def _generate(config: ServerConfig, adapter: Adapter, plan: Plan, journal: Path, began_at: int) -> int:
    shown = display()
    stop = anyio.Event()
    narrator = Narrator(shown.say, shown.phase, shown.status)
    try:
        server = Server(config, adapter=adapter, journal=journal, listener=narrator)
        async with server, attended(server, stop, shown.say) as signals:
            summary = await run_job(plan, server.request, progress=shown, stop=stop)
    except StartFailed as error:
        shown.end()
        code = tell_failure(error)
        if plan.output.has_lines:
            tell(f"stoker: what was answered is in {plan.job.output}; the same command goes on from there")
        return code
    finally:
        shown.end()
    tell(f"\n{summary.text()}")
    starts, again = server.driver.facts.attempt, server.client.retries
    if starts > 1:
        tell(f"the server was started {starts} times, {again} requests were sent again")
    elif again:
        tell(f"{again} requests were sent again")
    _tell_where(plan.job.output, journal, config.backend, began_at)
    return exit_code_of(signals) if signals else summary.exit_code


def _tell_where(output: str, journal: Path, backend: str, began_at: int) -> None:
    from lifecycle.diagram import run_diagram

    picture = Path(f"{output}.run.svg")
    run_diagram(journal, picture, backend, began_at)
    for name, path in (("answers", output), ("journal", journal), ("this run as a diagram", picture)):
        tell(f"{name + ':':<23}{path}")
