"""Reading trace messages, which the product only writes."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Final

from penstock.protocol.traces import ConsumeBegun, ConsumeEnded, Published, Trace, TransactionEnded

_FIELD: Final = "\x01"
_ENTRY: Final = "\x02"
_NULL: Final = "null"
_KINDS: Final[dict[str, type[Trace]]] = {
    kind.kind: kind for kind in (Published, ConsumeBegun, ConsumeEnded, TransactionEnded)
}
_WITHOUT_OFFSET_ID: Final = 12


def decode_traces(body: bytes) -> list[Trace]:
    """The entries of a trace message; what has no meaning is skipped."""
    found: list[Trace] = []
    for entry in body.decode("utf-8", "replace").split(_ENTRY):
        name, *line = entry.split(_FIELD)
        kind = _KINDS.get(name)
        if kind is None:
            continue
        if kind is Published and len(line) == _WITHOUT_OFFSET_ID:
            line.insert(-1, "")  # An earlier release: the outcome came right after the type.
        values = _values(kind, line)
        if values is not None:
            found.append(kind(**values))  # type: ignore[arg-type]  # read by the fields' types
    return found


def _values(kind: type[Trace], line: list[str]) -> dict[str, object] | None:
    values: dict[str, object] = {}
    for place, field in enumerate(fields(kind)):
        if place >= len(line):
            if field.default is MISSING:
                return None
            continue
        text = "" if line[place] == _NULL else line[place]
        if field.type == "bool":
            values[field.name] = text == "true"
        elif field.type == "int":
            if not (text.isascii() and text.isdecimal()) or len(text) > 19:
                return None
            values[field.name] = int(text)
        else:
            values[field.name] = text
    return values
