"""The options of an installed engine, as its own parser has them. Run by the engine's interpreter, not by Stoker's:

    PYTHON -c "$(cat parser_dump.py)" vllm

prints one line of JSON behind a mark. Uses nothing but the standard library and the engine.
"""

import argparse
import json
import sys

MARK = "stoker-options: "


def vllm() -> argparse.ArgumentParser:
    """vLLM 0.10 to 0.33: parser and maker have moved twice."""
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    for place in ("launchers", "common", "openai"):
        try:
            module = __import__(f"vllm.entrypoints.{place}.cli_args", fromlist=["make_arg_parser"])
        except ImportError:
            continue
        parser: argparse.ArgumentParser = module.make_arg_parser(FlexibleArgumentParser())
        return parser
    raise SystemExit("this vllm has no make_arg_parser in a place that is known")


def sglang() -> argparse.ArgumentParser:
    """SGLang, all versions with `ServerArgs.add_cli_args`."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


def described(action: argparse.Action) -> dict[str, object]:
    """One option as data. `kind` is "flag" (no value), "append" or "store"; `type` the name of what reads its value."""
    flag = action.nargs == 0
    append = isinstance(action, (argparse._AppendAction, argparse._ExtendAction))
    return {
        "names": list(action.option_strings),
        "dest": action.dest,
        "kind": "flag" if flag else "append" if append else "store",
        "nargs": action.nargs if isinstance(action.nargs, (int, str)) and not flag else None,
        "choices": None if action.choices is None else [str(choice) for choice in action.choices],
        "type": reader(action.type),
    }


def reader(kind: object) -> str:
    """The name of what reads an option's value; of a wrapper (`optional_type(int)`), the name of what is in it."""
    for cell in getattr(kind, "__closure__", None) or ():
        if callable(cell.cell_contents):
            return reader(cell.cell_contents)
    return getattr(kind, "__name__", "")


def main(engine: str) -> None:
    parser = {"vllm": vllm, "sglang": sglang}[engine]()
    seen = [described(action) for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    print("\n" + MARK + json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
