"""Which messages a page shows: by tag, key, text, time and a SQL92 condition. Nothing is evaluated
as code.

A condition is RocketMQ's SQL92 over the properties of a message, and over names that the console
adds: ``tag``, ``size``, ``reason``, ``attempts``, and fields of a JSON body as ``$total`` and
``$customer$id``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping

from penstock.admin import DeadLetterRow
from penstock.errors import InvalidArgument, SubscriptionIllegal
from penstock.model import StoredMessage
from penstock.protocol.filters.sql92.parser import CompiledFilter, compile_expression
from penstock.protocol.filters.tags import parse_tags

MAX_JSON_BYTES = 1 << 20
_MISSING = object()


class _Names(Mapping[str, str]):
    """The values that a condition may use, found when they are asked for."""

    def __init__(self, message: StoredMessage, *, hide_body: bool = False) -> None:
        self._message = message
        self._json: object = None if hide_body else _MISSING

    def __getitem__(self, name: str) -> str:
        value = self._find(name)
        if value is None:
            raise KeyError(name)
        return value

    def get(self, name: str, default: object = None) -> object:  # type: ignore[override]
        value = self._find(name)
        return default if value is None else value

    def _find(self, name: str) -> str | None:
        message = self._message
        if name.startswith("$"):
            return self._field(name[1:].split("$"))
        given = message.properties.get(name)
        if given is not None:
            return given
        if name == "tag":
            return message.tag
        if name == "size":
            return str(len(message.body))
        if name in ("reason", "attempts"):
            value = getattr(DeadLetterRow.from_message(message), name)
            return None if value is None else str(value)
        return None

    def _field(self, path: list[str]) -> str | None:
        if self._json is _MISSING:
            try:
                is_small = len(self._message.body) <= MAX_JSON_BYTES
                self._json = json.loads(self._message.body) if is_small else None
            except (ValueError, RecursionError):
                self._json = None
        value = self._json
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value) if isinstance(value, str | int | float) else None

    def __iter__(self) -> Iterator[str]:
        return iter(self._message.properties)

    def __len__(self) -> int:
        return len(self._message.properties)


class MessageFilter:
    """All given conditions must hold."""

    def __init__(
        self,
        *,
        tag: str = "",
        key: str = "",
        text: str = "",
        where: str = "",
        begin_ms: int | None = None,
        end_ms: int | None = None,
        hide_body: bool = False,
    ) -> None:
        try:
            self._tags = parse_tags(tag).tags
            self._where: CompiledFilter | None = compile_expression(where) if where else None
        except SubscriptionIllegal as error:
            raise InvalidArgument(
                error.what,
                expected=error.expected or "a condition such as $total > 100 AND region = 'eu'",
                hint=error.hint,
            ) from error
        self._key = key
        self._text = text.encode()
        self._hide_body = hide_body
        self._begin = begin_ms
        self._end = end_ms

    @property
    def is_open(self) -> bool:
        """Whether it looks at nothing but times."""
        return not (self._tags or self._key or self._text or self._where)

    def __call__(self, message: StoredMessage) -> bool:
        """Whether a message passes."""
        stored = message.store_timestamp
        if self._begin is not None and stored < self._begin:
            return False
        if self._end is not None and stored > self._end:
            return False
        if self._tags and message.tag not in self._tags:
            return False
        if self._key and self._key not in message.keys:
            return False
        if self._text and self._text not in message.body:
            return False
        # The expression only ever asks for single names.
        names = _Names(message, hide_body=self._hide_body)
        return self._where is None or self._where(names)


def reads_body(where: str) -> bool:
    """Whether a condition has a field of the body outside its texts in quotes."""
    return "$" in re.sub(r"'[^']*'", "", where)


Wanted = Callable[[StoredMessage], bool]
