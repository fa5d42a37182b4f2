"""Parts of the fake server: its flags, its output, its children. Standard library only."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time


def parse(argv: list[str]) -> argparse.Namespace:
    """Flags, then those that `--per-attempt` adds for this `--attempt` (the last list goes on for later ones)."""
    parser = argparse.ArgumentParser(prog="fake_server")
    flag = parser.add_argument
    flag("--host", default="127.0.0.1")
    flag("--port", type=int, default=0)
    flag("--model", default="fake")
    flag("--attempt", type=int, default=1)
    flag("--per-attempt", type=json.loads, default=[], help="a JSON list of lists of flags")
    # starting
    flag("--bind-after", type=float, default=0.0, help="seconds before it binds")
    flag("--no-bind", action="store_true", help="never bind, stay alive")
    flag("--no-reuse", action="store_true", help="bind without SO_REUSEADDR")
    flag("--reuse-port", action="store_true", help="bind with SO_REUSEPORT, so that two can listen")
    flag("--ready-after", type=float, default=0.0, help="/health is 503 for so many seconds after binding")
    flag("--inner-deadline", type=float, help="it ends itself if it is not ready so many seconds after its start")
    flag("--extra-port", type=int, action="append", default=[])
    flag("--extra-offset", type=int, action="append", default=[], help="bind the port plus this, too")
    flag("--extra-after", type=float, default=0.0, help="seconds after binding before it binds extra ports")
    # ending
    flag("--exit-before-bind", action="store_true", help="after --bind-after, instead of binding")
    flag("--exit-after", type=float, help="seconds after its start")
    flag("--exit-after-bind", type=float, help="seconds after binding")
    flag("--exit-after-requests", type=int, help="when so many generations have been asked for")
    flag("--exit-after-aborted", type=int, help="when so many GETs were given up by the client")
    flag("--exit-code", type=int, default=1)
    flag("--die-by", default="", help="end by this signal, e.g. SIGKILL, instead of by an exit code")
    # output
    flag("--say", action="append", default=[], help="a line before binding")
    flag("--say-err", action="append", default=[], help="the same on stderr")
    flag("--say-hex", action="append", default=[], help="bytes before binding, in hexadecimal, no line end added")
    flag("--say-ready", action="append", default=[], help="a line once it listens")
    flag("--say-on-term", action="append", default=[], help="a line on SIGTERM")
    flag("--repeat-line", default="", help="a line again and again")
    flag("--repeat-every", type=float, default=0.1)
    flag("--long-line", type=int, default=0, help="one line of so many bytes")
    flag("--progress", type=int, default=0, help="a progress bar of so many steps, redrawn with carriage returns")
    flag("--broken-bytes", action="store_true", help="broken UTF-8 split over two writes, and NUL")
    flag("--traceback", default="", help="200 lines of a traceback with this line in the middle")
    flag("--flood", type=int, default=0, help="so many bytes of log, as fast as it can, each second line the same")
    flag("--show-environment", action="store_true", help="print argv and the environment")
    flag("--log-prompts", action="store_true", help="print the body of each generation")
    flag("--block-buffered", action="store_true", help="output appears only at its end")
    flag("--no-banner", action="store_true", help="say nothing when it listens")
    # children and signals
    flag("--child", action="append", default=[], help="same|session|double[,ignore-term][,quiet][,ends=S][,says=TEXT]")
    flag("--on-term", choices=("exit", "ignore", "drain", "delay"), default="exit")
    flag("--term-delay", type=float, default=1.0, help="seconds for --on-term delay")
    flag("--term-code", type=int, default=0)
    # answering
    flag("--routes", type=json.loads, default={}, help="a JSON object: path to rule, or to a list of rules")
    flag("--can-sleep", action="store_true", help="POST /sleep and /wake_up; generating while asleep kills it, and so "
         "does falling asleep while generating")
    flag("--need-key", default="", help="name of the environment variable that holds the key it wants")
    flag("--any-model", action="store_true", help="answer for every model's name")
    flag("--overload", type=int, default=0, help="503 with Retry-After beyond so many generations in flight")
    flag("--retry-after", default="1")
    flag("--reply-delay", type=float, default=0.0)
    flag("--answer-bytes", type=int, default=0, help="text of so many bytes")
    flag("--tokens", type=int, default=5, help="tokens of an answer")
    flag("--token-delay", type=float, default=0.0, help="seconds before each token of a stream")
    args = parser.parse_args(argv)
    if args.per_attempt:
        more = args.per_attempt[min(args.attempt, len(args.per_attempt)) - 1]
        args = parser.parse_args([*argv, *more, "--per-attempt", "[]"])
    return args


class Output:
    """Standard output, written at once or kept until the end."""

    def __init__(self, kept: bool) -> None:
        self._kept: list[bytes] | None = [] if kept else None

    def write(self, data: bytes, fd: int = 1) -> None:
        if self._kept is not None and fd == 1:
            self._kept.append(data)
            return
        while data:
            data = data[os.write(fd, data) :]

    def line(self, text: str, fd: int = 1) -> None:
        self.write(text.encode("utf-8", "surrogateescape") + b"\n", fd)

    def flush(self) -> None:
        kept, self._kept = self._kept or [], None
        self.write(b"".join(kept))


def speak(args: argparse.Namespace, out: Output) -> None:
    """All that is printed before the port is bound."""
    if args.show_environment:
        out.line(f"fake: argv {sys.argv!r}")
        for key, value in sorted(os.environ.items()):
            out.line(f"fake: {key}={value}")
    for text in args.say:
        out.line(text)
    for text in args.say_err:
        out.line(text, 2)
    for text in args.say_hex:
        out.write(bytes.fromhex(text))
    if args.long_line:
        out.line("x" * args.long_line)
    for step in range(args.progress):
        out.write(f"\rfake: step {step + 1}/{args.progress}".encode())
    if args.broken_bytes:
        for part in (b"fake: \xe2\x82", b"\xac and \xff and \xe2", b" and \0\n"):
            out.write(part)
    if args.traceback:
        out.line("Traceback (most recent call last):")
        for number in range(200):
            out.line(args.traceback if number == 100 else f'  File "engine.py", line {number}, in step')
        out.line("RuntimeError: Engine core initialization failed. See root cause above.")
    for number in range(args.flood // 100):
        out.line(f"fake: {number if number % 2 else 'same'} ".ljust(99, "."))


def spawn(spec: str, out: Output) -> int:
    """Fork a child; the pid of the one that stays. Called before there is an event loop."""
    kind, *words = spec.split(",")
    options = dict(word.partition("=")[::2] for word in words)
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        if kind != "same":
            os.setsid()
        if kind == "double" and os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if "ignore-term" in options else signal.SIG_DFL)
        os.write(writer, str(os.getpid()).encode())
        if "quiet" in options:
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            os.dup2(1, 2)
        if "says" in options:
            out.line(options["says"])
        os.close(writer)
        time.sleep(float(options.get("ends", 3600)))  # an hour: longer than any test, not for ever
        os._exit(1)
    os.close(writer)
    if kind == "double":
        os.waitpid(middle, 0)
    with os.fdopen(reader) as pipe:
        return int(pipe.read())
