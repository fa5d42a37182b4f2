"""The `stoker` command. Every sub-command imports what it needs when it is run, so `--help` is there at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from lifecycle.cli.say import let_go, open_missing_streams, put, tell
from lifecycle.cli.signals import Told, exit_code_of, inbox
from lifecycle.errors import ConfigError, InputError, JournalError, OutputError, PortTaken, StokerError

GIVEN_UP, WRONG_USE, INTERRUPTED = 1, 2, 130


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="stoker",
        description="Tends LLM inference servers: starts, watches, feeds, drains and ends them; leaves nothing behind.",
        epilog="Exit codes: 0 done, 1 server given up, 2 wrong usage or configuration, 3 done with errors in some "
        "lines, 75 out of time: run it again, 130 interrupted.",
    )
    top.add_argument("--version", action="store_true", help="print the version and exit")
    commands = top.add_subparsers(dest="verb", metavar="COMMAND")
    generate = commands.add_parser(
        "generate",
        help="send the prompts of a file to a server and write the answers",
        description="Start a server, send it every record of INPUT, write the answers to OUT, end the server. "
        "Run again, it goes on where it stopped.",
    )
    _job_options(generate)
    _fleet_options(generate)
    _operate_options(generate)
    _server_options(generate)
    serve = commands.add_parser(
        "serve",
        help="keep a server, or several behind one URL, healthy until it is told to stop",
        description="Start a server, print its base URL when it is Healthy, restart it when it fails, end it on "
        "SIGTERM or Ctrl-C (twice: at once).",
    )
    serve.add_argument("--json", action="store_true", help="print the journal as JSON lines, and the URL as one too")
    serve.add_argument("--ui", nargs="?", type=int, const=0, metavar="PORT", help="show a live page for your browser, "
                       "on 127.0.0.1 (a free port)")  # fmt: skip
    serve.add_argument("--detach", metavar="NAME", help="return when it serves, and leave its manager in the "
                       "background")  # fmt: skip
    serve.add_argument("--attach", metavar="NAME", help="take over the server of this name whose manager has died, if "
                       "one is kept; else start it")  # fmt: skip
    serve.add_argument("--keep-for", type=float, metavar="S", help="keep the server for so many seconds when this "
                       "manager dies, for another one to attach (0)")  # fmt: skip
    serve.add_argument("--idle-timeout", type=float, metavar="S", help="put the server to rest after so many seconds "
                       "without a request (never)")  # fmt: skip
    serve.add_argument("--idle-action", choices=("stop", "sleep"), help="how (stop)")
    serve.add_argument("--rolling-restart", action="store_true", help="let SIGHUP restart the replicas one after the "
                       "other, instead of ending all")  # fmt: skip
    _fleet_options(serve)
    _front_options(serve)
    _operate_options(serve)
    _server_options(serve)
    check = commands.add_parser(
        "check",
        help="look whether a server could be started, and start nothing",
        description="Look at the engine, its flags, the model, GPUs, memory, ports, locks, disks and limits, and say "
        "what would go wrong; with INPUT and --output, at a job of `stoker generate` too. Exit code 1 if a start would "
        "fail.",
    )
    check.add_argument("--json", action="store_true", help="print each row as a JSON line")
    _job_options(check, needed=False)
    _fleet_options(check)
    _front_options(check)
    _server_options(check)
    diagram = commands.add_parser("diagram", help="draw the state machine")
    diagram.add_argument("--backend", metavar="NAME", help="only what this backend can do (default: everything)")
    diagram.add_argument("--format", choices=("mermaid", "dot", "svg", "table"), default="mermaid")
    diagram.add_argument("--journal", action="append", default=[], metavar="FILE", help="light up what this run did")
    diagram.add_argument("--coverage", nargs="+", default=[], metavar="FILE", help="how often all these runs took each "
                         "transition; --format table: also what they never did")  # fmt: skip
    diagram.add_argument("--chart", choices=("server", "fleet", "group", "worker", "placement"), default="server",
                         help="of --coverage (server)")  # fmt: skip
    diagram.add_argument("--output", metavar="FILE", help="default: standard output")
    trace = commands.add_parser(
        "trace",
        help="show a run as a timeline, from its journal",
        description="Show what happened in the runs that these journals tell of: each change of state, the time in "
        "each state, the attempts and why they failed; as text, as a picture, or as a page to step through.",
    )
    trace.add_argument("journals", nargs="+", metavar="JOURNAL", help="file of --journal, or OUT.journal.jsonl")
    trace.add_argument("--format", choices=("text", "svg", "html"), default="text")
    trace.add_argument("--server", action="append", default=[], metavar="NAME", help="only this one; repeatable")
    trace.add_argument("--last", type=int, metavar="N", help="only the last N lives (all)")
    trace.add_argument("--output", metavar="FILE", help="default: standard output")
    options = commands.add_parser("options", help="list every setting with its default and meaning")
    options.add_argument("--backend", metavar="NAME", help="with this backend's own settings and defaults")
    reap = commands.add_parser(
        "reap",
        help="find and end what dead managers left behind",
        description="Show what managers that were killed together with their keepers have left behind: processes, "
        "temporary files, shared memory. With --yes it is ended and removed. A new server does that too, before it "
        "starts.",
    )
    reap.add_argument("--yes", action="store_true", help="end it; without this it is only shown")
    reap.add_argument("--state-dir", metavar="DIR", help="state folder to look in")
    _watch_options(commands)
    cache = commands.add_parser(
        "cache",
        help="list and remove the compile caches of the engines",
        description="What engines compile is kept for the next start, in one cache for each engine, version, model and "
        "set of flags. List these caches, or remove them.",
    )
    _cache_options(cache)
    top.set_defaults(own=top)
    for command in commands.choices.values():
        command.set_defaults(own=command)  # for its usage, where it is used wrongly
    return top


def _job_options(command: argparse.ArgumentParser, *, needed: bool = True) -> None:
    add = command.add_argument
    add("input", metavar="INPUT", nargs=None if needed else "?", help="JSON Lines (.gz, .zst) or Parquet: a file, a "
        "folder, a quoted glob; - for standard input; hf:NAME for a dataset of the hub")  # fmt: skip
    add("--output", required=needed, metavar="OUT", help="JSON Lines file, or a folder for numbered parts; to write or "
        "to go on with")  # fmt: skip
    add("--format", metavar="F", help="of the parts: jsonl, jsonl.gz, jsonl.zst, parquet (jsonl)")
    add("--part-size", type=int, metavar="N", help="lines of a part (10000)")
    add("--concurrency", metavar="N", help="requests in flight at once (64); auto: find the best number")
    add("--max-tokens", type=int, metavar="N", help="longest answer, in tokens")
    add("--temperature", type=float, metavar="X")
    add("--seed", type=int, metavar="N")
    add("--param", action="append", default=[], metavar="NAME=VALUE", help="any other parameter of each "
        "request, such as top_k=20 or stop='[\"\\n\"]'; repeatable")  # fmt: skip
    add("--system", metavar="TEXT", help="system message for records that have none")
    add("--template", metavar="FILE", help="Jinja template that makes the prompt from a record's fields")
    add("--rollouts", type=int, metavar="K", help="answers to each record, each with a seed of its own (1)")
    add("--rollout", metavar="MODULE:FUNCTION", help="your own: async def function(record, generate)")
    add("--context", metavar="MODULE:NAME", help="what that function is given by keyword")
    add("--on-error", choices=("record", "skip", "abort"), help="a record that fails gets a line with its error, gets "
        "none, or ends the job (record)")  # fmt: skip
    add("--retry-errors", action="store_true", default=None, help="send the records again that have failed")
    add("--rank", type=int, metavar="R", help="take only the R-th share of the input, from 0 (what Slurm or RANK says)")
    add("--world-size", type=int, metavar="W", help="how many shares there are")
    add("--summary", metavar="FILE", help="write the summary as JSON")
    add("--stop-before", type=float, metavar="SECONDS", help="under Slurm: begin nothing new so long before the job's "
        "end (as long as a drain may take)")  # fmt: skip


def _fleet_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--replicas", type=int, metavar="N", help="equal servers on this host, which share out its "
        "GPUs (1)")  # fmt: skip
    command.add_argument("--min-healthy", type=int, metavar="M", help="how many of them are needed (1)")
    command.add_argument("--ray", metavar="HOST:PORT", help="let this Ray cluster place the replicas on its nodes")


def _front_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--router", metavar="NAME", help="backend of the router that stands before several replicas (router)")
    add("--router-policy", metavar="X", help="how it chooses a replica: cache_aware, round_robin, random (cache_aware)")
    add("--router-python", metavar="PATH", help="interpreter that the router is installed in")


def _operate_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--metrics", type=int, metavar="PORT", help="let Prometheus read metrics on this port of 127.0.0.1 (0: a free "
        "one)")  # fmt: skip
    add("--on", action="append", default=[], dest="hooks", metavar="STATE=WHAT", help="when a server comes to STATE, "
        "run a command or POST to a URL, such as --on Failed=https://…; repeatable")  # fmt: skip


def _server_options(command: argparse.ArgumentParser) -> None:
    command.epilog = "What comes after -- are the engine's own flags: ... --backend vllm --model M -- --max-num-seqs 64"
    command.set_defaults(engine_words=[])
    command.add_argument("--backend", metavar="NAME", help="vllm, sglang, llamacpp, custom, endpoint, echo, or another")
    command.add_argument("--model", metavar="M", help="path or hub name, as the engine takes it")
    command.add_argument("--python", metavar="PATH", help="interpreter that the engine is installed in")
    command.add_argument("--tensor-parallel", type=int, metavar="N", help="GPUs that share each layer (1)")
    command.add_argument("--context-length", type=int, metavar="N", help="tokens of prompt and answer together")
    command.add_argument("--name", metavar="NAME", help="what the server is called in journals and logs")
    command.add_argument("--host", metavar="H", help="address to bind (127.0.0.1)")
    command.add_argument("--port", type=int, metavar="P", help="port to bind (a free one)")
    command.add_argument("--command", metavar="LINE", help="command line of the custom backend, with {port}")
    command.add_argument("--base-url", metavar="URL", help="server of the endpoint backend")
    command.add_argument("--api-key-env", metavar="VAR", help="variable that holds the server's key")
    command.add_argument("--config", metavar="FILE", help="TOML file with settings")
    command.add_argument("--nodes", type=int, metavar="N", help="hosts that serve one model together (1)")
    command.add_argument("--node-rank", type=int, metavar="R", help="which of them this is, 0 the head (what Slurm, "
                         "MPI or torchrun say)")  # fmt: skip
    command.add_argument("--head", metavar="HOST", help="where the head is, as HOST or HOST:PORT (what Slurm says)")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting; repeatable")
    command.add_argument("--journal", metavar="FILE", help="append what happens to this file, as JSON lines")


def _watch_options(commands: Any) -> None:
    """Of the commands for servers that run already."""
    show = commands.add_parser(
        "ps",
        help="show every server here and how it stands",
        description="Show every server of this user on this host: its state and since when, attempt, model, port, "
        "processes, their memory, requests in flight, log.",
    )
    show.add_argument("--json", action="store_true", help="print each server as a JSON line")
    stop = commands.add_parser(
        "stop",
        help="drain and end a server that another command tends",
        description="Tell the `stoker serve` or `stoker generate` that tends this server to drain and end it, as "
        "SIGTERM does, and wait until it has. A job goes on when its command is run again.",
    )
    stop.add_argument("name", nargs="?", metavar="NAME", help="the server's name, or its manager's pid")
    stop.add_argument("--all", action="store_true", help="every one of this user on this host")
    stop.add_argument("--now", action="store_true", help="end it at once, whatever is in flight")
    stop.add_argument("--leave", action="store_true", help="end its manager alone, at once: its keeper keeps the "
                      "server for as long as --keep-for said, for the next manager to attach")  # fmt: skip
    stop.add_argument("--timeout", type=float, metavar="SECONDS", help="longest wait (as long as it takes)")
    logs = commands.add_parser(
        "logs",
        help="print the log of a server",
        description="Print the log of a server's present or last attempt.",
    )
    logs.add_argument("name", metavar="NAME", help="the server's name")
    logs.add_argument("-f", "--follow", action="store_true", help="and what it prints from now on, also in its next "
                      "attempts")  # fmt: skip
    logs.add_argument("-n", "--lines", type=int, default=50, metavar="N", help="how many of the last lines (50)")
    for command in (show, stop, logs):
        command.add_argument("--state-dir", metavar="DIR", help="state folder to look in")


def _cache_options(cache: argparse.ArgumentParser) -> None:
    actions = cache.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser(
        "list",
        help="show every cache: complete, building, void or unfinished",
        description="Show every compile cache: its name, engine, state (complete; building; void: its files have gone; "
        "unfinished: its build was ended), age, size, who builds or built it, pids that use it, and its key.",
    )
    clear = actions.add_parser(
        "clear",
        help="remove caches that nobody builds or uses",
        description="Remove compile caches: shown first, removed with --yes. One that is being built stays; one that a "
        "running server uses stays unless --force.",
    )
    clear.add_argument("which", nargs="?", metavar="CACHE", help="its name, or a part of its key")
    clear.add_argument("--all", action="store_true", help="all of them")
    clear.add_argument("--yes", action="store_true", help="remove them; without this they are only shown")
    clear.add_argument("--force", action="store_true", help="also those that running servers use")
    for action in (show, clear):
        action.add_argument("--cache-dir", metavar="DIR", help="cache folder to look in")
        action.add_argument("--state-dir", metavar="DIR", help="state folder to look in")
        action.add_argument("--json", action="store_true", help="print JSON lines")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """A command line without the program's name. What comes after `--` are the `engine_words`."""
    ours, rest = list(words), []
    if "--" in ours:
        end = ours.index("--")
        ours, rest = ours[:end], ours[end + 1 :]
    top = parser()
    args, unknown = top.parse_known_args(ours)
    if unknown:
        hint = "; the engine's own flags go after --" if hasattr(args, "engine_words") else ""
        args.own.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if rest and not hasattr(args, "engine_words"):
        parser().error("what comes after -- is for an engine, and this command starts none")
    if rest:
        args.engine_words = rest
    args.words = list(words)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code.

    Args:
        argv: None: this process is the command, with its arguments and its signals.
    """
    open_missing_streams()
    if argv is None:
        inbox.open()
    try:
        return _run(argv)
    except Told as told:  # before there is anything to drain
        tell(f"stoker: {told}: nothing had been begun")
        return exit_code_of([told.number])
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        let_go()


def _run(argv: Sequence[str] | None) -> int:
    args = parse(sys.argv[1:] if argv is None else argv)
    if args.version:
        from importlib.metadata import version

        put(f"stoker {version('stoker')}")
        return 0
    if args.verb is None:
        parser().print_help()
        return WRONG_USE
    try:
        code: int = import_module(f"lifecycle.cli.{args.verb}").run(args)
    except StokerError as error:
        tell(f"stoker: {error}")
        wrong = isinstance(error, ConfigError | InputError | JournalError | OutputError | PortTaken)
        return WRONG_USE if wrong else GIVEN_UP
    return code
