"""What comes after `--` on the command line is the engine's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.flags import flags
from lifecycle.cli.rest import engine_args_of
from lifecycle.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "args"),
    [
        ("", {}),
        ("--max-num-seqs 64 --enforce-eager", {"max-num-seqs": "64", "enforce-eager": True}),
        ("--max-num-seqs=64", {"max-num-seqs": "64"}),
        ("--lora a b --x", {"lora": ["a", "b"], "x": True}),
        ("--lora a --lora b", {"lora": ["a", "b"]}),
        ("--offset -1 --scale -0.5", {"offset": "-1", "scale": "-0.5"}),
        ("-O3", {"-O3": True}),
        ("--stdin -", {"stdin": "-"}),
        ("--json {}", {"json": "{}"}),
    ],
)
def test_flags_and_their_values_are_told_apart(words: str, args: dict[str, Any]) -> None:
    assert engine_args_of(words.split()) == args


def test_a_word_that_belongs_to_no_flag_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'vllm' after -- belongs to no flag"):
        engine_args_of(["vllm", "serve"])


VALUES = st.text("abc1{}=.", min_size=1)


@given(st.lists(st.tuples(st.sampled_from(["--alpha", "--beta", "-c"]), VALUES), unique_by=lambda pair: pair[0]))
def test_one_value_each_comes_out_as_it_went_in(pairs: list[tuple[str, str]]) -> None:
    words = [word for pair in pairs for word in pair]
    assert flags(engine_args_of(words)) == words
