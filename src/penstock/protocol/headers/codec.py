"""Typed headers: dataclasses to ext fields and back.

A header class is a plain ``@dataclass(slots=True)``. Its fields say everything:

- the wire name is the field's name in camel case, unless ``metadata=wire("clientID")`` gives
  another one (RocketMQ's spelling is kept, mistakes included);
- the type is ``str``, ``bool``, ``Int32`` or ``Int64``; with ``| None`` an absent field is
  ``None`` and ``None`` is not written;
- a field with any other default takes it when absent and is always written, as Java does with
  its primitive fields; a field without a default is required, and refused by name if missing.

Headers are read once per request on the broker's hottest path. So each class gets two functions,
written out field by field as one would by hand and compiled at first use: they take less than
half the time of a loop over the fields.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeVar,
    get_args,
    get_type_hints,
)

from penstock.errors import HeaderFieldError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Int32 = Annotated[int, 32]
Int64 = Annotated[int, 64]

T = TypeVar("T", bound="DataclassInstance")

_INTEGER_KINDS: Final = ("int32", "int64")
_EXPECTED: Final = {
    "str": "text",
    "bool": "true or false",
    "int32": "a 32-bit integer",
    "int64": "a 64-bit integer",
}
_NO_EXT: Final[Mapping[str, str]] = {}
# Java reads any spelling of "true" as true and everything else, "1" and "yes" too, as false.
_TRUE: Final = frozenset(a + b + c + d for a in "tT" for b in "rR" for c in "uU" for d in "eE")


class _Int32s(dict[str, int]):
    """Texts to integers. Queue ids, flags and counts are small: looking them up beats parsing."""

    def __missing__(self, text: str) -> int:
        return read_int32(text)


_INT32S: Final = _Int32s({str(number): number for number in range(-1, 1024)})
SMALL_INT32S: Final[Mapping[str, int]] = dict(_INT32S)
"""The same without the others: what is not in it has to be parsed."""


def wire(name: str) -> dict[str, str]:
    """Field metadata: the name on the wire where it is not the field's own in camel case."""
    return {"wire": name}


class HeaderField(NamedTuple):
    """One field of a header class, as the codec sees it."""

    name: str
    wire: str
    kind: str  # a key of _EXPECTED
    is_required: bool
    default: str | bool | int | None

    @property
    def is_nullable(self) -> bool:
        """Whether ``None`` stands for an absent field."""
        return not self.is_required and self.default is None


def header_fields(
    cls: type[DataclassInstance], names: Mapping[str, str] = _NO_EXT
) -> tuple[HeaderField, ...]:
    """What ``cls`` has on the wire; ``names`` replaces wire names (field name to wire name)."""
    hints = get_type_hints(cls, include_extras=True)
    return tuple(
        HeaderField(
            field.name,
            names.get(field.name) or field.metadata.get("wire") or _camel_case(field.name),
            _kind(hints[field.name]),
            field.default is MISSING,
            None if field.default is MISSING else field.default,
        )
        for field in fields(cls)
    )


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _kind(hint: Any) -> str:
    if isinstance(hint, UnionType) or type(None) in get_args(hint):
        (hint,) = (arm for arm in get_args(hint) if arm is not type(None))
    kinds = {str: "str", bool: "bool", Int32: "int32", Int64: "int64"}
    return kinds[hint]


class HeaderCodec(Generic[T]):
    """Both directions for one header class; all of them are compiled functions.

    Ext fields that the class does not know are left alone; they stay in the command.
    """

    def __init__(self, cls: type[T], names: Mapping[str, str] = _NO_EXT) -> None:
        self.cls = cls
        self.fields = header_fields(cls, names)
        self.keys = frozenset(field.wire for field in self.fields)
        self.decode: Callable[[Mapping[str, str]], T] = self._compile(self._decode_source())
        self.encode: Callable[[T], dict[str, str]] = self._compile(self._encode_source())

    @functools.cached_property
    def read(self) -> Callable[[Mapping[str, str]], tuple[Any, ...]]:
        """``decode`` for the hottest paths: the fields in their order, without an object."""
        return self._compile(self._decode_source(made_by=""))

    def _compile(self, source: str) -> Callable[[Any], Any]:
        names: dict[str, Any] = {
            "cls": self.cls,
            "true": _TRUE,
            "int32s": _INT32S,
            "int32": read_int32,
            "int64": read_int64,
            "low": -(2**63),
            "high": 2**63 - 1,
            "explain": self._explain,
        }
        # The source is made of the names of our own classes and fields; nothing is a peer's.
        exec(compile(source, f"<header {self.cls.__name__}>", "exec"), names)
        function: Callable[[Any], Any] = names["function"]
        return function

    def _decode_source(self, made_by: str = "cls") -> str:
        values = {field.name: _read(field) for field in self.fields}
        # An Int64 is parsed into a name of its own first, so that its range can be checked.
        wide = [f.name for f in self.fields if f.kind == "int64" and not f.is_nullable]
        lines = [f"wide_{name} = {values[name]}" for name in wide]
        if wide:
            in_range = " and ".join(f"low <= wide_{name} <= high" for name in wide)
            lines.append(f"if not ({in_range}): raise ValueError")
        values.update({name: f"wide_{name}" for name in wide})
        lines.append(f"return {made_by}({', '.join(values.values())},)")
        body = "".join(f"        {line}\n" for line in lines)
        return (
            f"def function(ext):\n    try:\n{body}"
            "    except (KeyError, ValueError):\n        raise explain(ext) from None\n"
        )

    def _encode_source(self) -> str:
        always = [field for field in self.fields if not field.is_nullable]
        items = (f"{field.wire!r}: {_written(field, 'header.' + field.name)}" for field in always)
        lines = [f"ext = {{{', '.join(items)}}}"]
        for field in self.fields:
            if field.is_nullable:
                lines.append(f"value = header.{field.name}")
                text = _written(field, "value")
                lines.append(f"if value is not None: ext[{field.wire!r}] = {text}")
        lines.append("return ext")
        return "def function(header):\n" + "".join(f"    {line}\n" for line in lines)

    def _explain(self, ext: Mapping[str, str]) -> HeaderFieldError:
        """Find the field that the compiled function stumbled over."""
        for field in self.fields:
            text = ext.get(field.wire)
            if text is None:
                if field.is_required:
                    return HeaderFieldError(
                        f"{self.cls.__name__} header without field {field.wire!r}",
                        expected=f"{field.wire} as {_EXPECTED[field.kind]}",
                    )
            elif field.kind in _INTEGER_KINDS:
                try:
                    (read_int32 if field.kind == "int32" else read_int64)(text)
                except ValueError:
                    shown = repr(text) if len(text) <= 40 else f"text of {len(text)} characters"
                    return HeaderFieldError(
                        f"field {field.wire!r} of a {self.cls.__name__} header is {shown}",
                        expected=_EXPECTED[field.kind],
                    )
        raise AssertionError(f"{self.cls.__name__} header refused without a reason: {ext}")


_READ: Final = {"str": "{}", "bool": "{} in true", "int32": "int32s[{}]", "int64": "int({})"}
_READ_NULLABLE: Final = {"bool": "value in true", "int32": "int32(value)", "int64": "int64(value)"}


def _read(field: HeaderField) -> str:
    """The expression that reads ``field`` from ``ext``."""
    key = repr(field.wire)
    if field.is_nullable:
        if field.kind == "str":
            return f"ext.get({key})"
        return f"None if (value := ext.get({key})) is None else {_READ_NULLABLE[field.kind]}"
    text = f"ext[{key}]" if field.is_required else f"ext.get({key}, {_text(field.default)!r})"
    return _READ[field.kind].format(text)


def _written(field: HeaderField, value: str) -> str:
    """The expression that turns ``value`` into the text of ``field``."""
    forms = {"str": "{}", "bool": "'true' if {} else 'false'"}
    return forms.get(field.kind, "str({})").format(value)


def _text(value: str | bool | int | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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


_CODECS: Final[dict[type, HeaderCodec[Any]]] = {}


def header_codec(cls: type[T]) -> HeaderCodec[T]:
    """The codec of a header class, made at its first use. Hot paths keep its functions."""
    codec = _CODECS.get(cls)
    if codec is None:
        codec = _CODECS[cls] = HeaderCodec(cls)
    return codec


def decode_header(cls: type[T], ext: Mapping[str, str] | None) -> T:
    """The typed header in the ext fields; ``HeaderFieldError`` names a field that is not right."""
    return header_codec(cls).decode(_NO_EXT if ext is None else ext)


def encode_header(header: DataclassInstance) -> dict[str, str]:
    """The ext fields of a typed header."""
    return header_codec(type(header)).encode(header)
