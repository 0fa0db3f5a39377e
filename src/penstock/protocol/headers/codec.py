"""Typed headers: structs to ext fields and back.

A header class is a `Header`. Its fields say everything:

- the wire name is the field's name in camel case, unless ``msgspec.field(name="clientID")`` gives
  another one (RocketMQ's spelling is kept, mistakes included);
- the type is ``str``, ``bool``, ``Int32`` or ``Int64``; with ``| None`` an absent field is
  ``None`` and ``None`` is not written;
- a field with any other default takes it when absent and is always written, as Java does with
  its primitive fields; a field without a default is required, and refused by name if missing.

``msgspec`` converts the texts. A header that it refuses is read again by `decode_each`, the rules
spelled out: it accepts the numbers that only Java reads ("+5", "007"), or names the wrong field.
Beyond Java, msgspec reads "1e3" and "2.0" as integers and "null" as an absent number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import astuple, fields

from penstock.errors import HeaderFieldError

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Header(Struct, rename="camel", gc=False):
    """The base of all headers of requests and responses."""


T = TypeVar("T", bound=Header)

_NO_EXT: Final[Mapping[str, str]] = {}
# Java reads any spelling of "true" as true and everything else, "1" and "yes" too, as false.
_TRUE: Final = frozenset(a + b + c + d for a in "tT" for b in "rR" for c in "uU" for d in "eE")

# Texts that msgspec reads otherwise: "1" as true, "null" as absent.
_MISREAD_BOOLS: Final = frozenset({"1", "null"})
_BOOL_NAMES: Final[dict[type[Header], tuple[str, ...]]] = {}


def decode_header(cls: type[T], ext: Mapping[str, str] | None) -> T:
    """The typed header in the ext fields; fields that the class does not know are ignored.

    ``HeaderFieldError`` names a field that is missing or has a wrong value.
    """
    if ext is None:
        ext = _NO_EXT
    try:
        header = convert(ext, cls, strict=False)
    except ValidationError:
        return decode_each(cls, ext)
    for name in _BOOL_NAMES[cls] if cls in _BOOL_NAMES else _bool_names(cls):
        if ext.get(name) in _MISREAD_BOOLS:
            return decode_each(cls, ext)
    return header


def _bool_names(cls: type[Header]) -> tuple[str, ...]:
    names = tuple(field.wire for field in header_fields(cls) if field.kind == "bool")
    _BOOL_NAMES[cls] = names
    return names


def encode_header(header: Header) -> dict[str, str]:
    """The ext fields of a typed header."""
    names = header.__struct_encode_fields__
    ext: dict[str, str] = {}
    for index, value in enumerate(astuple(header)):
        if value is not None:
            kind = type(value)
            if kind is bool:
                value = "true" if value else "false"
            elif kind is not str:
                value = str(value)
            ext[names[index]] = value
    return ext


class HeaderField(NamedTuple):
    """One field of a header class."""

    name: str
    wire: str
    kind: str  # a key of _EXPECTED
    is_required: bool
    default: str | bool | int | None

    @property
    def is_nullable(self) -> bool:
        """Whether ``None`` stands for an absent field."""
        return not self.is_required and self.default is None


def header_fields(cls: type[Header]) -> list[HeaderField]:
    """The fields of ``cls`` in their order."""
    return [
        HeaderField(
            field.name,
            field.encode_name,
            _kind(field.type),
            field.required,
            None if field.required else field.default,
        )
        for field in fields(cls)
    ]


_EXPECTED: Final = {
    "str": "text",
    "bool": "true or false",
    "int32": "a 32-bit integer",
    "int64": "a 64-bit integer",
}


def _kind(hint: Any) -> str:
    arms = get_args(hint)
    if type(None) in arms:
        (hint,) = (arm for arm in arms if arm is not type(None))
    kinds = {str: "str", bool: "bool", Int32: "int32", Int64: "int64"}
    return kinds[hint]


def decode_each(cls: type[T], ext: Mapping[str, str]) -> T:
    """The header by Java's rules; ``HeaderFieldError`` names the first field that breaks them."""
    values: dict[str, str | bool | int] = {}
    for field in header_fields(cls):
        text = ext.get(field.wire)
        if text is not None:
            values[field.name] = _read(cls, field, text)
        elif field.is_required:
            raise HeaderFieldError(
                f"{cls.__name__} header without field {field.wire!r}",
                expected=f"{field.wire} as {_EXPECTED[field.kind]}",
            )
    return cls(**values)


def _read(cls: type[Header], field: HeaderField, text: str) -> str | bool | int:
    if field.kind == "str":
        return text
    if field.kind == "bool":
        return text in _TRUE
    try:
        return read_int32(text) if field.kind == "int32" else read_int64(text)
    except ValueError:
        shown = repr(text) if len(text) <= 40 else f"text of {len(text)} characters"
        raise HeaderFieldError(
            f"field {field.wire!r} of a {cls.__name__} header is {shown}",
            expected=_EXPECTED[field.kind],
        ) from None


def read_int32(text: str) -> int:
    """A decimal number of 32 bits; ``ValueError`` if it is none."""
    return _bounded(text, 2**31)


def read_int64(text: str) -> int:
    """A decimal number of 64 bits; ``ValueError`` if it is none."""
    return _bounded(text, 2**63)


def _bounded(text: str, limit: int) -> int:
    number = int(text)
    if not -limit <= number < limit:
        raise ValueError(text)
    return number
