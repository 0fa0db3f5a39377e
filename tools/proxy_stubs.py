"""Writes ``proxy/wire/messages.pyi``: the types of the messages that are made at run time.

python -m tools.proxy_stubs           write the file
python -m tools.proxy_stubs --check   fail if it is not as it would be written
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from penstock.proxy.wire.definitions import ENUMS
from penstock.proxy.wire.descriptors import MESSAGES, fields_of

STUB = Path(__file__).parents[1] / "src/penstock/proxy/wire/messages.pyi"
_SCALARS = {
    "string": "str",
    "i32": "int",
    "i64": "int",
    "bool": "bool",
    "float": "float",
    "bytes": "bytes",
}
_NAMES = {"R": "Resource", "St": "Status", "D": "Duration", "T": "Timestamp"}
_HEAD = '''\
"""Written by ``python -m tools.proxy_stubs``; do not edit."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, Self, TypeVar

_T = TypeVar("_T")

POOL: Any

class Repeated(Generic[_T]):
    def __iter__(self) -> Iterator[_T]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> _T: ...
    def append(self, value: _T) -> None: ...
    def extend(self, values: Iterable[_T]) -> None: ...

class Message_:
    DESCRIPTOR: Any
    @classmethod
    def FromString(cls, data: bytes) -> Self: ...
    def SerializeToString(self) -> bytes: ...
    def CopyFrom(self, other: Self) -> None: ...
    def HasField(self, field: str) -> bool: ...
    def WhichOneof(self, oneof: str) -> str | None: ...
    def ClearField(self, field: str) -> None: ...
    def ByteSize(self) -> int: ...

class Duration(Message_):
    seconds: int
    nanos: int
    def __init__(self, *, seconds: int = ..., nanos: int = ...) -> None: ...

class Timestamp(Message_):
    seconds: int
    nanos: int
    def __init__(self, *, seconds: int = ..., nanos: int = ...) -> None: ...
'''


def stub() -> str:
    """The content of the file."""
    lines = "".join(f"\n{line}" for name in MESSAGES for line in _class(name))
    return _HEAD + lines.rstrip("\n") + "\n"


def _class(name: str) -> Iterator[str]:
    yield f"class {name}(Message_):"
    arguments: list[str] = []
    for field in fields_of(MESSAGES[name]):
        scalar = _SCALARS.get(field.type) or ("int" if _is_enum(field.type) else None)
        type_ = scalar or _NAMES.get(field.type, field.type)
        given = type_
        if field.type == "map":
            type_, given = "MutableMapping[str, str]", "Mapping[str, str]"
        elif field.mark == "*":
            type_, given = f"Repeated[{type_}]", f"Iterable[{type_}]"
        if scalar and field.mark != "*":
            yield f"    {field.name}: {type_}"
        else:
            yield "    @property"
            yield f"    def {field.name}(self) -> {type_}: ..."
        arguments.append(f"        {field.name}: {given} | None = ...,")
    yield "    def __init__("
    yield "        self,"
    yield "        *,"
    yield from arguments
    yield "    ) -> None: ..."
    yield ""


def _is_enum(type_: str) -> bool:
    return type_ in ENUMS or "." in type_


def main(arguments: list[str]) -> int:
    """Write the file, or compare it."""
    if "--check" in arguments:
        return int(STUB.read_text() != stub())
    STUB.write_text(stub())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
