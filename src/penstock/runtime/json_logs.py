"""Log lines as JSON: one object a line, for programs that collect logs.

    {"time":"2024-05-01T12:00:00.123Z","level":"INFO","logger":"penstock.broker.broker",
     "event":"broker started","name":"broker-a","port":10911}

A message is a fixed phrase and ``key=value`` pairs. Its template, such as ``"handler failed
group=%s offset=%d"``, has the keys, and the arguments of the call have the values, so values keep
their types and nothing is parsed out of a text that a peer has written. ``error`` and ``stack`` are
those of an exception; ``trace_id`` and ``span_id`` are there if the record has them, as
OpenTelemetry's logging integration sets them. Long texts are cut.
"""

from __future__ import annotations

import functools
import logging
import math
import re
import time
from typing import Final

import orjson

MAX_TEXT: Final = 1000
MAX_STACK: Final = 20_000
_FIELDS: Final = frozenset(
    {"time", "level", "logger", "event", "error", "stack", "trace_id", "span_id"}
)
_DIRECTIVE: Final = re.compile(r"%(?:%|[-#0 +]*(?:\*|\d+)?(?:\.(?:\*|\d+))?[a-zA-Z])")
_PAIR: Final = re.compile(
    rf"(?:^|\s)([A-Za-z_][\w.]*)=['\"]?({_DIRECTIVE.pattern})['\"]?[,;]?(?=\s|$)"
)
_SPAN_FIELDS: Final = {"otelTraceID": "trace_id", "otelSpanID": "span_id"}


class JsonFormatter(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        milliseconds = int(record.created * 1000)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
        line: dict[str, object] = {
            "time": f"{moment}.{milliseconds % 1000:03d}Z",
            "level": record.levelname,
            "logger": record.name,
            **_event(record),
        }
        for field, name in _SPAN_FIELDS.items():
            value = getattr(record, field, None)
            if isinstance(value, str) and value.strip("0"):
                line[name] = value[:MAX_TEXT]
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = _cut(f"{type(error).__name__}: {error}")
            line["stack"] = _cut(self.formatException(record.exc_info), MAX_STACK)
        return orjson.dumps(line).decode()


def _event(record: logging.LogRecord) -> dict[str, object]:
    """The phrase and the pairs; a record without a usable template has its text only."""
    args = record.args
    if not isinstance(record.msg, str) or not isinstance(args, tuple):
        return {"event": _cut(_text(record))}
    template = _template(record.msg)
    if template is None or template.count != len(args):
        return {"event": _cut(_text(record))}
    phrase = template.phrase
    if template.in_phrase:
        try:
            phrase %= tuple(args[place] for place in template.in_phrase)
        except (TypeError, ValueError):
            return {"event": _cut(_text(record))}
    found: dict[str, object] = {"event": _cut(phrase.replace("%%", "%"))}
    for key, place in template.pairs:
        name = f"{key}_" if key in _FIELDS else key
        found[name] = _value(args[place])
    return found


def _text(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        return f"{record.msg} {record.args}"


class _Template:
    """A message's template, taken apart."""

    def __init__(
        self, phrase: str, in_phrase: tuple[int, ...], pairs: list[tuple[str, int]], count: int
    ) -> None:
        self.phrase = phrase
        self.in_phrase = in_phrase
        """Places of the arguments within the phrase."""
        self.pairs = pairs
        """Keys, and the places of their arguments."""
        self.count = count


@functools.lru_cache(maxsize=1024)
def _template(text: str) -> _Template | None:
    """None for a template with a width or precision that is an argument, or named arguments."""
    directives = [found for found in _DIRECTIVE.finditer(text) if found[0] != "%%"]
    if "%(" in text or any("*" in found[0] for found in directives):
        return None
    place_of = {found.start(): place for place, found in enumerate(directives)}
    pairs: list[tuple[str, int]] = []
    cut: list[tuple[int, int]] = []
    for found in _PAIR.finditer(text):
        place = place_of.get(found.start(2))
        if place is not None and found[1] not in dict(pairs):
            pairs.append((found[1], place))
            cut.append(found.span())
    phrase = text
    for start, end in reversed(cut):
        phrase = phrase[:start] + phrase[end:]
    taken = {place for _, place in pairs}
    in_phrase = tuple(place for place in range(len(directives)) if place not in taken)
    return _Template(phrase.strip(), in_phrase, pairs, len(directives))


def _value(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # JSON's readers have 64 bits.
        return int(value) if -(1 << 63) <= value < 1 << 63 else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    return _cut(str(value))


def _cut(text: str, limit: int = MAX_TEXT) -> str:
    short = text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
    # A lone surrogate, as of a file name, is no UTF-8.
    return short.encode("utf-8", "backslashreplace").decode()
