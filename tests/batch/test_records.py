"""A line of input becomes a request, an answer becomes a line of output, and nothing of the line is lost."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.batch.records import (
    CHAT,
    COMPLETIONS,
    Defaults,
    Malformed,
    Request,
    answered,
    malformed,
    parse,
    refused,
)

NONE = Defaults()
RESERVED = ("prompt", "messages", "custom_id", "id", "params", "generations", "error")
OTHER = st.text().filter(lambda key: key not in RESERVED)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def request(line: dict[str, Any], number: int = 1, defaults: Defaults = NONE) -> Request:
    found = parse(json.dumps(line).encode(), number, defaults)
    assert isinstance(found, Request)
    return found


def wrong(line: Any, number: int = 1) -> Malformed:
    data = line if isinstance(line, bytes) else json.dumps(line).encode()
    found = parse(data, number, NONE)
    assert isinstance(found, Malformed)
    return found


@given(st.binary())
def test_any_bytes_are_a_request_or_malformed_never_an_exception(line: bytes) -> None:
    found = parse(line, 7, NONE)
    assert found.line == 7
    json.dumps(malformed(found) if isinstance(found, Malformed) else refused(found, "no"))


@given(JSON)
def test_any_json_is_a_request_or_malformed_and_its_line_can_be_written(value: Any) -> None:
    found = parse(msgspec.json.encode(value), 3, NONE)
    line = malformed(found) if isinstance(found, Malformed) else refused(found, "no")
    back = msgspec.json.decode(msgspec.json.encode(line))
    assert str(back.get("custom_id", back.get("id"))) == found.key


@given(st.text(min_size=1), st.dictionaries(OTHER, JSON, max_size=4))
def test_every_other_field_of_a_record_comes_out_as_it_went_in(prompt: str, rest: dict[str, Any]) -> None:
    found = parse(msgspec.json.encode({**rest, "prompt": prompt}), 1, NONE)
    assert isinstance(found, Request)
    line = answered(found, {"choices": [{"text": "so"}]})
    assert {key: line[key] for key in rest} == rest
    assert line["prompt"] == prompt
    assert line["id"] == "line-1"
    assert line["generations"][0]["text"] == "so"




def test_a_prompt_is_a_completion_and_messages_are_a_chat() -> None:
    assert request({"prompt": "Hi"}).path == COMPLETIONS
    assert request({"prompt": "Hi"}).payload == {"prompt": "Hi"}
    said = [{"role": "user", "content": "Hi"}]
    assert request({"messages": said}).path == CHAT
    assert request({"messages": said}).payload == {"messages": said}


def test_a_system_message_turns_a_prompt_into_a_chat_and_leaves_a_systems_own_alone() -> None:
    kind = Defaults(system="Be brief.")
    assert request({"prompt": "Hi"}, defaults=kind).payload["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    own = [{"role": "system", "content": "Be long."}, {"role": "user", "content": "Hi"}]
    assert request({"messages": own}, defaults=kind).payload["messages"] == own


def test_a_records_own_parameters_win_over_the_jobs() -> None:
    job = Defaults(model="m", parameters={"max_tokens": 5, "seed": 1})
    payload = request({"prompt": "Hi", "params": {"max_tokens": 9}}, defaults=job).payload
    assert payload == {"model": "m", "prompt": "Hi", "max_tokens": 9, "seed": 1}
    assert request({"prompt": "Hi", "params": {"model": "own"}}, defaults=job).payload["model"] == "own"


def test_a_batch_line_is_sent_as_it_is() -> None:
    body = {"model": "b", "messages": [{"role": "user", "content": "Hi"}]}
    line = {"custom_id": "c-1", "method": "POST", "url": CHAT, "body": body}
    found = request(line, defaults=Defaults(model="job", parameters={"max_tokens": 3}))
    assert (found.key, found.path, found.payload) == ("c-1", CHAT, body)


def test_a_batch_line_gets_the_batch_output_format() -> None:
    found = request({"custom_id": "c-1", "method": "POST", "url": CHAT, "body": {}})
    answer = {"choices": [{"message": {"content": "so"}}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    line = answered(found, answer)
    assert set(line) == {"id", "custom_id", "response", "error"}
    assert line["custom_id"] == "c-1"
    assert line["response"]["status_code"] == 200
    assert line["response"]["body"] == answer
    assert line["error"] is None
    assert answered(found, answer) == line, "the same line each time that it is made"


def test_a_refused_batch_line_tells_status_body_and_why() -> None:
    found = request({"custom_id": "c-1", "method": "POST", "url": CHAT, "body": {}})
    line = refused(found, "HTTP 400", status=400, body='{"error": "too long"}', kind="refused")
    assert line["response"]["status_code"] == 400
    assert line["response"]["body"] == {"error": "too long"}
    assert line["error"]["code"] == "refused"
    assert line["error"]["message"] == "HTTP 400"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        ([1], "not a JSON object"),
        ("text", "not a JSON object"),
        ({}, "none of 'prompt', 'messages' and 'custom_id'"),
        ({"prompt": 3}, "'prompt' is not a text"),
        ({"messages": []}, "'messages' is not a list of JSON objects"),
        ({"messages": "Hi"}, "'messages' is not a list of JSON objects"),
        ({"messages": ["Hi"]}, "'messages' is not a list of JSON objects"),
        ({"prompt": "Hi", "params": 3}, "'params' is not a JSON object"),
        ({"prompt": "Hi", "id": [1]}, "'id' is neither a text nor a whole number"),
        ({"prompt": "Hi", "id": True}, "'id' is neither a text nor a whole number"),
        ({"custom_id": "", "url": CHAT, "body": {}}, "'custom_id' is neither a text nor a whole number"),
        ({"custom_id": "a", "method": "GET", "url": CHAT, "body": {}}, "only POST can be sent"),
        ({"custom_id": "a", "url": "http://elsewhere/v1", "body": {}}, "must be a path"),
        ({"custom_id": "a", "url": CHAT}, "'body' is not a JSON object"),
        ({"custom_id": "a", "url": CHAT, "body": {"stream": True}}, "asks for a stream"),
    ],
)
def test_a_malformed_line_says_what_is_wrong_with_which_line(line: Any, why: str) -> None:
    found = wrong(line, 12)
    assert why in found.why
    assert "line 12" in found.why
    error = malformed(found)["error"]
    assert error["line"] == 12


def test_a_number_as_an_id_stays_a_number() -> None:
    found = request({"prompt": "Hi", "id": 5})
    assert found.key == "5"
    assert answered(found, {"choices": [{"text": ""}]})["id"] == 5


def test_reasoning_and_text_are_kept_apart() -> None:
    choice = {"message": {"content": "4", "reasoning_content": "2 and 2"}, "finish_reason": "stop"}
    line = answered(request({"prompt": "2+2?"}), {"choices": [choice], "usage": {"completion_tokens": 1}})
    assert line["generations"] == [
        {"text": "4", "reasoning": "2 and 2", "finish_reason": "stop", "usage": {"completion_tokens": 1}}
    ]


@pytest.mark.parametrize("old", [{"error": "a text"}, {"error": {"kind": "failed"}}, {"generations": "odd"}])
def test_a_line_of_an_earlier_output_can_be_sent_again(old: dict[str, Any]) -> None:
    found = request({"prompt": "Hi", **old})
    done = answered(found, {"choices": [{"text": "so"}]})
    assert "error" not in done
    assert done["generations"][0]["text"] == "so"
    failed = refused(found, "no")
    assert "generations" not in failed
    assert failed["error"]["message"] == "no"


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": None}, {"choices": [3]}, {"error": "none"}])
def test_an_answer_of_another_shape_becomes_an_error_that_shows_it(answer: dict[str, Any]) -> None:
    line = answered(request({"prompt": "Hi"}), answer)
    assert "generations" not in line
    assert str(answer) in line["error"]["body"]
