"""A template makes a prompt of a record, or says what is missing and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lifecycle.batch.template import RenderError, Template
from lifecycle.errors import ConfigError


def template(folder: Path, text: str) -> Template:
    path = folder / "ask.jinja"
    path.write_text(text, encoding="utf-8")
    return Template(path)


@pytest.mark.parametrize(
    ("text", "record", "prompt"),
    [
        ("Q: {{ question }}\nA:", {"question": "Why?"}, "Q: Why?\nA:"),
        ("{{ text }}\n", {"text": "a < b & 'c'"}, "a < b & 'c'"),
        ('{{ record["my field"] }}', {"my field": "ä"}, "ä"),
        ("{{ record }}", {"record": 1}, "1"),
        ("{{ meta.items }} {{ meta.get }}", {"meta": {"items": 3, "get": 4}}, "3 4"),
        ("{{ names | tojson }}", {"names": ["<ü>", None]}, '["<ü>", null]'),
        ("{% for each in all %}\n  {% if each %}\n- {{ each }}\n  {% endif %}\n{% endfor %}\nend", {"all": [1, 0, 2]},
         "- 1\n- 2\nend"),
    ],
)  # fmt: skip
def test_a_record_is_rendered_as_plain_text(tmp_path: Path, text: str, record: dict[str, Any], prompt: str) -> None:
    assert template(tmp_path, text).render(record) == prompt


def test_a_template_includes_those_beside_it(tmp_path: Path) -> None:
    (tmp_path / "few.jinja").write_text("shot {{ n }}", encoding="utf-8")
    assert template(tmp_path, '{% include "few.jinja" %}!').render({"n": 1}) == "shot 1!"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n{{ question }}", "line 2: 'question' is undefined"),
        ("{{ meta.lang }}", "line 1: 'dict object' has no attribute 'lang'"),
        ("{% if gone %}x{% endif %}", "line 1: 'gone' is undefined"),
        ("\n\n{{ 1 / zero }}", "line 3: division by zero"),
        ("{{ text + 1 }}", "line 1: can only concatenate str"),
        ('{% include "nope.jinja" %}', "nope.jinja"),
    ],
)
def test_what_fails_on_a_record_names_the_record_the_line_and_the_fields(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RenderError) as caught:
        template(tmp_path, text).render({"id": 7, "text": "t", "meta": {}, "zero": 0}, "part-3.jsonl, line 7")
    message = str(caught.value)
    assert message.startswith(f"part-3.jsonl, line 7: template {tmp_path / 'ask.jinja'}")
    assert said in message
    assert message.endswith("the record has the fields: id, text, meta, zero")


@pytest.mark.parametrize("text", ["{{ record.update(a=1) }}", "{{ all.append(1) }}", "{{ ''.__class__.__mro__ }}"])
def test_a_template_can_neither_change_the_record_nor_reach_python(tmp_path: Path, text: str) -> None:
    record: dict[str, Any] = {"all": []}
    with pytest.raises(RenderError, match="unsafe"):
        template(tmp_path, text).render(record)
    assert record == {"all": []}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fine\n{% if %}", "line 2: Expected an expression"),
        ("{{ a", "line 1: unexpected end of template"),
        ("\n\n{% foo %}", "line 3: Encountered unknown tag 'foo'"),
        ("{{ a | nofilter }}", "line 1: No filter named 'nofilter'"),
    ],
)
def test_a_mistake_in_a_template_is_told_with_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        template(tmp_path, text)
    assert f"template {tmp_path / 'ask.jinja'}, {said}" in str(caught.value)


def test_a_template_that_is_missing_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.jinja cannot be read: No such file"):
        Template(tmp_path / "gone.jinja")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        Template(tmp_path)
    (tmp_path / "latin.jinja").write_bytes(b"gr\xfc\xdfe")
    with pytest.raises(ConfigError, match="is not UTF-8: byte 2 is 0xfc"):
        Template(tmp_path / "latin.jinja")
