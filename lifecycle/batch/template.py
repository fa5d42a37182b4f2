"""A prompt made from the fields of a record by a Jinja template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lifecycle.errors import ConfigError, InputError

if TYPE_CHECKING:
    import jinja2

FIELDS_SHOWN = 20


class RenderError(InputError):
    """One record has no prompt by this template. The message names the place in the template, the cause and the
    fields that the record has; what names the record comes first."""


class Template:
    """A template over a record's fields, such as `{{ question }}`; `record` is the record itself, for fields whose
    names are no identifiers (`{{ record["my field"] }}`), unless it has a field of that name.

    Blocks leave no blank lines (`trim_blocks` and `lstrip_blocks`, as in chat templates), nothing is escaped, `tojson`
    writes plain JSON rather than HTML's. `include` and `import` look beside the file. It runs in a sandbox that can
    neither call into Python nor change the record.
    """

    def __init__(self, path: str | Path) -> None:
        """Raises `ConfigError`, with file and line, if it cannot be read or is no template, and if Jinja is not
        installed."""
        self.path = Path(path)
        self._template = _load(self.path)

    def render(self, record: Mapping[str, Any], where: str = "record") -> str:
        """The prompt. `where` names the record for people. Raises `RenderError` if a field is missing, or the template
        fails on this record in another way."""
        try:
            return self._template.render({"record": record, **record})
        except Exception as error:  # whatever the template's expressions raise on these values
            line = _line(error.__traceback__, self._template.filename)
            place = f"template {self.path}, line {line}" if line else f"template {self.path}"
            fields = ", ".join(list(map(str, record))[:FIELDS_SHOWN]) or "none"
            more = ", ..." if len(record) > FIELDS_SHOWN else ""
            cause = str(error) or type(error).__name__
            raise RenderError(f"{where}: {place}: {cause}; the record has the fields: {fields}{more}") from None


def _load(path: Path) -> jinja2.Template:
    try:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ConfigError(f"template {path} needs Jinja: pip install 'stoker[data]'") from None

    class Fields(ImmutableSandboxedEnvironment):
        def getattr(self, obj: Any, attribute: str) -> Any:
            """`{{ meta.items }}` is the field of that name, where Jinja would take the method of `dict`."""
            if isinstance(obj, Mapping) and attribute in obj:
                return obj[attribute]
            return super().getattr(obj, attribute)

    environment = Fields(
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FileSystemLoader(path.parent),
    )
    environment.filters["tojson"] = _tojson
    try:
        path.read_text("utf-8")  # the loader's own error does not say why
        return environment.get_template(path.name)
    except OSError as error:
        raise ConfigError(f"template {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ConfigError(f"template {path} is not UTF-8: byte {error.start} is {byte:#04x}") from None
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"template {error.filename or path}, line {error.lineno}: {error.message}") from None


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _line(trace: TracebackType | None, filename: str | None) -> int | None:
    """The line of the template that failed: Jinja writes it into the traceback."""
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
