"""One codec for every JSON body: dataclasses in, dataclasses out.

A body is a frozen dataclass. Its type hints say how each member is read and written; they are
turned into closures once per class. The hints:

    bool int float str bytes        scalars; numbers and booleans may come as text; bytes are base64
    Annotated[int, Between(0, 9)]   an integer within bounds
    a WireEnum                      by name, or by ordinal as the C++ client sends them
    a dataclass, MessageQueue       objects
    tuple[T, ...]                   arrays
    dict[K, T]                      objects used as maps; K is str, int or MessageQueue
    T | None                        left out when None
    object                          any JSON value, kept as it is

The wire name of a field is its name in camelCase unless ``wire("clientID")`` says otherwise. A
field without a default is required; null and absent are the same. Unknown members are ignored,
or collected by a field marked ``extra()`` unless they are nested deeply. Every error names its
path, such as ``brokerDatas[0].brokerAddrs``.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from penstock.errors import ProtocolError
from penstock.model import MessageQueue
from penstock.protocol.bodies.values import (
    SCALARS,
    Decode,
    Encode,
    Misfit,
    WireEnum,
    bounded,
    decode_int,
    decode_queue,
    decode_queue_key,
    decode_str,
    encode_queue,
    encode_queue_key,
    enumeration,
    folded,
    misfit,
    other_spellings,
    same,
)
from penstock.protocol.fastjson.dialect import FrozenObject, Json, Key, dumps, dumps_pretty, loads

T = TypeVar("T")

# Unknown members are written again as part of larger documents, whose nesting is limited.
MAX_EXTRA_LEVELS = 8


def wire(
    name: str | None = None,
    *aliases: str,
    read: Callable[[Json], Json] | None = None,
) -> Mapping[str, object]:
    """Field metadata: the name on the wire, further names accepted, a filter for odd forms."""
    return {"wire": name, "aliases": aliases, "read": read}


def extra() -> Mapping[str, object]:
    """Field metadata: collects unknown members, so that writing does not lose them."""
    return {"extra": True}


def whole() -> Mapping[str, object]:
    """Field metadata: this one field is the whole value, for bodies that are no object."""
    return {"whole": True}


def decode_body(cls: type[T], data: bytes) -> T:
    """Read a body; ``ProtocolError`` names what is wrong and where."""
    if (decode := getattr(cls, "from_bytes", None)) is not None:
        return cast("T", decode(data))
    return from_json(cls, loads(data))


def encode_body(body: object, *, bare_integer_keys: bool = False) -> bytes:
    """Write a body for the wire: compact, members in the order of the alphabet, no nulls."""
    if (encode := getattr(body, "to_bytes", None)) is not None:
        return cast("bytes", encode())
    return dumps(to_json(body), bare_integer_keys=bare_integer_keys)


def encode_state(body: object) -> bytes:
    """Write a table as Apache's brokers write their state files."""
    return dumps_pretty(to_json(body))


def from_json(cls: type[T], value: Json) -> T:
    """Read a body from a JSON value."""
    try:
        return cast("T", shape_of(cls).decode(value))
    except Misfit as wrong:
        raise ProtocolError(f"{cls.__name__}: {wrong}", expected=wrong.expected) from None


def to_json(body: object) -> Json:
    """A body as a JSON value; integer keys stay integers."""
    return shape_of(type(body)).encode(body)


@functools.cache
def _codec_of(hint: Any) -> tuple[Decode, Encode]:
    """How values of a hint are read and written."""
    if hint in SCALARS:
        return SCALARS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return bounded(arguments[1]), same
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _codec_of(inner)
    if origin is tuple:
        return _array(arguments[0])
    if origin is dict:
        return _map(*arguments)
    if hint is MessageQueue:
        return decode_queue, encode_queue
    if issubclass(hint, WireEnum):
        return enumeration(hint), str
    shape = shape_of(hint)
    return shape.decode, shape.encode


def _array(item: Any) -> tuple[Decode, Encode]:
    decode_item, encode_item = _codec_of(item)

    def decode(value: Json) -> tuple[object, ...]:
        if not isinstance(value, (list, tuple)):
            raise misfit(value, "a list")
        items: list[object] = []
        try:
            for entry in value:
                items.append(decode_item(entry))
        except Misfit as wrong:
            raise wrong.under(f"[{len(items)}]") from None
        return tuple(items)

    def encode(value: tuple[object, ...]) -> Json:
        return [encode_item(entry) for entry in value]

    return decode, encode


_KEYS: dict[object, tuple[Callable[[Json], Any], Callable[[Any], Key]]] = {
    str: (decode_str, str),
    int: (decode_int, int),
    MessageQueue: (decode_queue_key, encode_queue_key),
}


def _map(key: Any, item: Any) -> tuple[Decode, Encode]:
    decode_key, encode_key = _KEYS[key]
    decode_item, encode_item = _codec_of(item)

    def decode(value: Json) -> dict[object, object]:
        if not isinstance(value, dict):
            raise misfit(value, "an object")
        result: dict[object, object] = {}
        name: Key = ""
        try:
            for name, entry in value.items():
                result[decode_key(name)] = decode_item(entry)
        except Misfit as wrong:
            shown = "{…}" if isinstance(name, FrozenObject) else repr(name)[:60]
            raise wrong.under(f"[{shown}]") from None
        return result

    def encode(value: dict[object, object]) -> Json:
        return {encode_key(name): encode_item(entry) for name, entry in value.items()}

    return decode, encode


class BodyField(NamedTuple):
    """One member of a body, compiled."""

    name: str
    wire_name: str
    aliases: tuple[str, ...]
    hint: Any
    decode: Decode
    encode: Encode
    default: Callable[[], object] | None


class Shape(NamedTuple):
    """A body class, compiled."""

    fields: tuple[BodyField, ...]
    decode: Decode
    encode: Encode


_shapes: dict[type, Shape] = {}


def shape_of(cls: type) -> Shape:
    """How a body class is read and written."""
    shape = _shapes.get(cls)
    if shape is None:
        shape = _shapes[cls] = _compile(cls)
    return shape


def _compile(cls: type) -> Shape:
    hints = get_type_hints(cls, include_extras=True)
    fields: list[BodyField] = []
    collector: str | None = None
    for field in dataclasses.fields(cls):
        if field.metadata.get("extra"):
            collector = field.name
            continue
        decode, encode = _codec_of(hints[field.name])
        if field.metadata.get("whole"):
            return _whole_shape(cls, field.name, hints[field.name], decode, encode)
        if (read := field.metadata.get("read")) is not None:
            decode = _filtered(read, decode)
        fields.append(
            BodyField(
                field.name,
                field.metadata.get("wire") or _camel_case(field.name),
                field.metadata.get("aliases", ()),
                hints[field.name],
                decode,
                encode,
                _default_of(field),
            )
        )
    return Shape(
        tuple(fields), _decode_object(cls, fields, collector), _encode_object(fields, collector)
    )


def _whole_shape(cls: type[Any], name: str, hint: Any, decode: Decode, encode: Encode) -> Shape:
    field = BodyField(name, "", (), hint, decode, encode, None)
    return Shape(
        (field,), lambda value: cls(decode(value)), lambda body: encode(getattr(body, name))
    )


def _filtered(read: Callable[[Json], Json], decode: Decode) -> Decode:
    return lambda value: decode(read(value))


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _default_of(field: dataclasses.Field[Any]) -> Callable[[], object] | None:
    if field.default_factory is not MISSING:
        return field.default_factory
    if field.default is not MISSING:
        value = field.default
        return lambda: value
    return None


def _decode_object(
    cls: type[Any], fields: list[BodyField], collector: str | None
) -> Callable[[Json], Any]:
    known = {field.wire_name for field in fields}
    known.update(alias for field in fields for alias in field.aliases)
    folds = {field.wire_name: folded(field.wire_name) for field in fields}

    def decode(value: Json) -> Any:
        if not isinstance(value, dict):
            raise misfit(value, "an object")
        members: dict[str, object] = {}
        respelt: dict[str, Json] | None = None
        for name, wire_name, aliases, _, decode_member, _, default in fields:
            member = value.get(wire_name)
            if member is None and aliases:
                member = next((value[a] for a in aliases if value.get(a) is not None), None)
            # What is collected keeps its spelling; everything else may have another one.
            if member is None and collector is None:
                if respelt is None:
                    respelt = other_spellings(value, known)
                if respelt:
                    member = respelt.get(folds[wire_name])
            if member is not None:
                try:
                    members[name] = decode_member(member)
                except Misfit as wrong:
                    raise wrong.under(wire_name) from None
            elif default is None:
                raise Misfit("is missing").under(wire_name)
        if collector is not None:
            members[collector] = {
                key: item
                for key, item in value.items()
                if key not in known
                and isinstance(key, str)
                and item is not None
                and _is_shallow(item, MAX_EXTRA_LEVELS)
            }
        return cls(**members)

    return decode


def _is_shallow(value: Json, levels: int) -> bool:
    if isinstance(value, dict):
        return levels > 0 and all(
            isinstance(key, str) and _is_shallow(item, levels - 1) for key, item in value.items()
        )
    if isinstance(value, list):
        return levels > 0 and all(_is_shallow(item, levels - 1) for item in value)
    return True


def _encode_object(fields: list[BodyField], collector: str | None) -> Callable[[Any], Json]:
    by_wire_name = sorted(fields, key=lambda field: field.wire_name)
    plan = [
        (field.name, field.wire_name, None if field.encode is same else field.encode)
        for field in by_wire_name
    ]

    def encode(body: Any) -> Json:
        members: dict[Key, Json] = {}
        for name, wire_name, encode_member in plan:
            value = getattr(body, name)
            if value is not None:
                members[wire_name] = value if encode_member is None else encode_member(value)
        if collector is not None and (unknown := getattr(body, collector)):
            members.update(unknown)
            members = dict(sorted(members.items(), key=lambda item: str(item[0])))
        return members

    return encode
