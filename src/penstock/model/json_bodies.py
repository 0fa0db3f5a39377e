"""Bodies that are JSON: encoded from, and parsed to, the types of a program.

msgspec reads and writes dataclasses, its own structs, `TypedDict`s and what JSON itself has. A
pydantic model reads and writes itself, so pydantic is not imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.errors import IllegalMessage, InvalidArgument

BodyParser = Callable[[bytes], Any]


def encode_json(value: object) -> bytes:
    """A value as the body of a message."""
    own = getattr(value, "model_dump_json", None)
    try:
        if callable(own) and not isinstance(value, type):
            return str(own()).encode()
        return msgspec.json.encode(value)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise IllegalMessage(
            f"a body of type {type(value).__name__} that cannot be written as JSON: {error}",
            expected="a dict, a list, a dataclass, a msgspec.Struct or a pydantic model",
        ) from error


def body_parser(kind: object) -> BodyParser:
    """A function that parses bodies to ``kind``; it raises what says why a body does not fit."""
    own = getattr(kind, "model_validate_json", None)
    if callable(own) and isinstance(kind, type):
        validate: BodyParser = own
        return validate
    try:
        return msgspec.json.Decoder(kind).decode
    except TypeError as error:
        raise InvalidArgument(
            f"bodies of type {kind!r}: {error}",
            expected="a dataclass, a msgspec.Struct, a pydantic model, or a type such as dict",
        ) from error


def why_unfit(error: Exception) -> str:
    """Why a body does not fit, in one line: pydantic writes several, and an address."""
    listed = getattr(error, "errors", None)
    if type(error).__module__.startswith("pydantic") and callable(listed):
        return "; ".join(
            ": ".join(part for part in (".".join(map(str, one["loc"])), one["msg"]) if part)
            for one in listed(include_url=False, include_context=False, include_input=False)
        )
    return " ".join(str(error).split())


def name_of(kind: object) -> str:
    """A type in the words of an error."""
    return getattr(kind, "__qualname__", None) or repr(kind)
