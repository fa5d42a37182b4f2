"""Engine flags: what a table of the engine's own options makes of `engine_args`, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.flags import flags
from backends.options import APPEND, FLAG, Option, Options
from lifecycle.errors import ConfigError, UnknownFlag

OPTIONS = Options(
    "engine 1.2",
    (
        Option((), "model", nargs="?"),
        Option(("--port",), "port", type="int"),
        Option(("--eager", "--no-eager"), "eager", FLAG),
        Option(("--enable-prefix", "--disable-prefix", "--no-enable-prefix"), "prefix", FLAG),
        Option(("--quiet",), "quiet", FLAG),
        Option(("--share",), "share", type="float"),
        Option(("--kind", "-k"), "kind", choices=("one", "two")),
        Option(("--level",), "level", type="int", choices=("1", "2")),
        Option(("--sizes",), "sizes", nargs="+", type="int"),
        Option(("--lora",), "lora", APPEND),
        Option(("--enable-log",), "enable_log", "flag"),
        Option(("--origins",), "origins", type="loads"),
        Option(("--overrides",), "overrides", type="loads"),
        Option(("--any",), "any", type="something_of_its_own"),
    ),
)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"eager": True}, ["--eager"]),
        ({"eager": False}, ["--no-eager"]),
        ({"no-eager": True}, ["--no-eager"]),
        ({"no_eager": False}, ["--eager"]),
        ({"enable_prefix": False}, ["--no-enable-prefix"]),
        ({"disable-prefix": False}, ["--enable-prefix"]),
        ({"quiet": False}, []),
        ({"quiet": None, "share": None}, []),
        ({"share": 0.5}, ["--share", "0.5"]),
        ({"sizes": [1, 2]}, ["--sizes", "1", "2"]),
        ({"lora": ["a", "b"]}, ["--lora", "a", "--lora", "b"]),
        ({"origins": ["*"]}, ["--origins", '["*"]']),
        ({"overrides": {"a": {"b": [1, True]}}}, ["--overrides", '{"a":{"b":[1,true]}}']),
        ({"overrides.a.b": 1, "overrides.c": True}, ["--overrides", '{"a":{"b":1},"c":true}']),
        ({"any": True}, ["--any", "true"]),
        ({"any": "-x"}, ["--any=-x"]),
        ({"k": "one"}, ["-k", "one"]),
        ({"-kone": True}, ["-kone"]),
        ({"--kind": "one"}, ["--kind", "one"]),
    ],
)
def test_values_are_written_as_the_engine_takes_them(value: dict[str, Any], words: list[str]) -> None:
    assert flags(value, options=OPTIONS) == words
    OPTIONS.check(words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prot", "1"], "engine 1.2 has no flag --prot; did you mean '--port'?"),
        (["--prot=1"], "engine 1.2 has no flag --prot; did you mean '--port'?"),
        (["--zzzzzzzzz"], "engine 1.2 has no flag --zzzzzzzzz"),
        (["--disable-prefix-"], "engine 1.2 has no flag --disable-prefix-"),
        (["--no-quiet"], "engine 1.2 has no flag --no-quiet; it has --quiet, which means the opposite"),
        (["--disable-log"], "engine 1.2 has no flag --disable-log; it has --enable-log, which means the opposite"),
        (["--port", "many"], "argument --port: invalid int value: 'many'"),
        (["--port"], "argument --port: expected one argument"),
        (["--kind", "three"], "argument --kind/-k: invalid choice: 'three' (choose from"),
        (["--level", "3"], "argument --level: invalid choice: 3 (choose from 1, 2)"),
        (["--overrides", "{"], "argument --overrides: invalid loads value: '{'"),
        (["--eager=1"], "argument --eager/--no-eager: ignored explicit argument '1'"),
        (["model", "another"], "'another'"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_with_the_nearest_flag(words: list[str], said: str) -> None:
    with pytest.raises(UnknownFlag) as refused:
        OPTIONS.check(words)
    assert said in str(refused.value)


@pytest.mark.parametrize("flag", ["--zzzzzzzzz", "--bogus", "--help"])
def test_the_nearest_flag_is_the_end_of_the_message_only_if_one_is_near(flag: str) -> None:
    with pytest.raises(UnknownFlag) as refused:
        OPTIONS.check([flag])
    assert str(refused.value).endswith(flag)


def test_part_of_a_flag_and_the_whole_of_it_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match=r"'a\.b' inside a flag that it also sets as a whole"):
        flags({"a": "text", "a.b": 1})


JSON = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=6,
)


@given(st.fixed_dictionaries({}, optional={
    "eager": st.booleans(), "enable-prefix": st.booleans(), "quiet": st.booleans(), "port": st.integers(1, 65535),
    "share": st.floats(allow_nan=False), "kind": st.sampled_from(["one", "two"]), "level": st.sampled_from([1, 2]),
    "sizes": st.lists(st.integers(0, 99), min_size=1), "lora": st.lists(st.text(min_size=1)),
    "overrides": st.dictionaries(st.text("abc", min_size=1), JSON, min_size=1), "any": st.text(min_size=1),
}))  # fmt: skip
def test_whatever_the_values_are_the_engine_reads_back_the_same(args: dict[str, Any]) -> None:
    words = flags(args, options=OPTIONS)
    OPTIONS.check(words)
    read = vars(OPTIONS._parser.parse_args(words))
    for key in ("port", "share", "kind", "level", "sizes", "overrides", "any"):
        if key in args:
            assert read[key] == args[key]
    assert (read["lora"] or []) == args.get("lora", [])
