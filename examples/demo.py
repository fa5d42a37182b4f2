"""What `make demo` and `make demo-llm` show: the `stoker` command at work, told what it does and why."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
ECHO = """\
The server is `echo`: a small process of Stoker's own that speaks OpenAI's HTTP and needs no model. It takes its time
as a real one would (--set latency=0.2 token_rate=20), and it is told to kill itself with SIGKILL when it has taken
110 requests (--set crash_after=110). So it dies in the middle of the job, with dozens of requests in flight. Watch it
come back: nobody has to do anything, and no prompt is lost.
"""
LLM = """\
The server is llama.cpp's `llama-server` with a real model, Gemma 3 270M, on this machine's CPU. It is a base model:
it continues text, so the prompts are beginnings.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llm", action="store_true", help="a real model instead of the echo server")
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where the results go")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    prompts = HERE / ("continue.jsonl" if args.llm else "prompts.jsonl")
    answers = args.folder / ("answers-llm.jsonl" if args.llm else "answers.jsonl")
    for old in args.folder.glob(f"{answers.name}*"):  # a run that is through has nothing left to show
        old.unlink()
    words = ["generate", str(prompts), "--output", str(answers)]
    if args.llm:
        words += ["--backend", "llamacpp", "--model", "gemma3-270m", "--max-tokens", "48", "--concurrency", "4"]
        words += ["--set", "ctx_size=2048", "--set", "parallel=4", "--temperature", "0.7", "--seed", "7"]
    else:
        words += ["--backend", "echo", "--set", "crash_after=110", "--set", "latency=0.2", "--set", "token_rate=20"]
    print(LLM if args.llm else ECHO)
    print("$ stoker " + " ".join(words) + "\n", flush=True)
    code = subprocess.run([sys.executable, "-m", "lifecycle.cli", *words]).returncode
    if code == 0:
        show(prompts, answers, args.llm)
    return code


def show(prompts: Path, answers: Path, some_text: bool) -> None:
    """Count what came of each prompt, and show a few answers."""
    asked = sum(1 for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip())
    lines = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    each = Counter(line["id"] for line in lines)
    once = sum(count == 1 for count in each.values())
    print(f"\nCounted again from the files: {asked} prompts, {once} with exactly one answer.")
    for line in lines[:4] if some_text else ():
        print(f"\n  {line['prompt'].strip()!r}\n  → {line['generations'][0]['text'].strip()!r}")


if __name__ == "__main__":
    sys.exit(main())
