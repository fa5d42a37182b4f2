"""JSON of others, decoded with one kind of error."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")


@overload
def decode(data: bytes | str) -> Any: ...
@overload
def decode(data: bytes | str, kind: type[T]) -> T: ...
def decode(data: bytes | str, kind: Any = Any) -> Any:
    """What `msgspec.json.decode` makes of it, as `kind`. Raises `msgspec.MsgspecError` and nothing else.

    msgspec itself raises `RecursionError` for brackets that are nested deeper than the interpreter's stack (a thousand
    of them, less what is on the stack already), and `UnicodeDecodeError` for some bytes that are no UTF-8.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise msgspec.DecodeError("JSON is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"JSON is not UTF-8: {error.reason}") from None
