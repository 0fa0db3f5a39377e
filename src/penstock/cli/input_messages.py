"""From what a user pipes in to messages: plain lines, JSON lines, a whole file. Pure.

A JSON line is one object:

    {"body": ..., "tag": "paid", "keys": ["o-1"], "properties": {"a": "b"}, "delay": "10s",
     "sharding_key": "c-7"}

``body`` is text, or any other JSON value, which is sent as JSON; ``body_base64`` has other bytes.
What ``penstock tail --json``, ``query --json`` and ``store export`` print can be sent again as it
is: where and when it was stored is left out, and so are properties that a broker had set.
"""

from __future__ import annotations

import binascii
import difflib
import itertools
from base64 import b64decode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

import orjson

from penstock.errors import InvalidArgument
from penstock.model import Message
from penstock.model.names import Property
from penstock.protocol.validation import MAX_MESSAGE_BYTES, RESERVED_PROPERTIES

FIELDS = ("body", "body_base64", "tag", "keys", "properties", "delay", "sharding_key")
_ALIASES = {"tags": "tag"}
# What our own commands print beside these. A line with an id is one that was stored before.
_STORED_AS = frozenset(
    {
        "topic",
        "broker",
        "queue_id",
        "queue_offset",
        "msg_id",
        "offset_msg_id",
        "born_timestamp",
        "store_timestamp",
        "born_host",
        "store_host",
        "reconsume_times",
        "sys_flag",
        "log_position",
        "size",
        "flag",
        "prepared_transaction_offset",
    }
)
_EXPORTED = "log_position"
_MAX_JSON_LINE = 8 * MAX_MESSAGE_BYTES
"""Room for a body of which every character is escaped, and for the rest of the message."""


class Numbered(NamedTuple):
    """A message and the line it came from, counted from 1."""

    line: int
    message: Message


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a message has unless its line says otherwise."""

    topic: str
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    delay: int | str | None = None
    sharding_key: str | None = None

    def message(self, body: bytes) -> Message:
        """A message that is nothing but a body."""
        return Message(
            self.topic,
            body,
            tag=self.tag,
            keys=self.keys,
            properties=self.properties,
            delay=self.delay,
            sharding_key=self.sharding_key,
        )


def delay_of(text: str | None) -> int | str | None:
    """A delay level as it was typed: its number or its text."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else text


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """Properties given as ``key=value``."""
    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise InvalidArgument(f"--property {text!r}", expected="KEY=VALUE")
        found[key] = value
    return found


def bounded_lines(stream: BinaryIO, *, is_json: bool = False) -> Iterator[bytes]:
    """The lines of a stream, of which none can be a message if it is too long.

    Such a line is refused before all of it is read: a device may have no end, and Ctrl-C is noticed
    only between two reads.
    """
    most = _MAX_JSON_LINE if is_json else MAX_MESSAGE_BYTES
    for number in itertools.count(1):
        line = stream.readline(most + len(b"\r\n") + 1)
        if not line:
            return
        if len(line.rstrip(b"\r\n")) > most:
            raise InvalidArgument(
                f"line {number} has more than {most:,} bytes",
                expected=f"lines; each becomes a message of at most {MAX_MESSAGE_BYTES:,} bytes",
                hint="send where it is stored instead",
            )
        yield line


def whole(stream: BinaryIO) -> bytes:
    """All of a stream as a body; what is too long for one is refused before all of it is read."""
    body = stream.read(MAX_MESSAGE_BYTES + 1)
    if len(body) > MAX_MESSAGE_BYTES:
        raise InvalidArgument(
            f"the input has more than {MAX_MESSAGE_BYTES:,} bytes, the largest message",
            hint="send its lines, without --whole, or where it is stored",
        )
    return body


def from_lines(lines: Iterable[bytes], defaults: Defaults) -> Iterator[Numbered]:
    """Each line that is not empty is a body; RocketMQ takes no message without one."""
    for number, line in enumerate(lines, start=1):
        body = line.rstrip(b"\r\n")
        if body:
            yield Numbered(number, defaults.message(body))


def from_json_lines(lines: Iterable[bytes], defaults: Defaults) -> Iterator[Numbered]:
    """Each line that is not blank is a JSON object."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield Numbered(number, from_json(line, defaults, where=f"line {number}"))


def from_json(line: bytes, defaults: Defaults, *, where: str) -> Message:
    """The message of one JSON line."""
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(
            f"{where} is not JSON: {error.args[0]}",
            expected='an object such as {"body": "hello", "tag": "greeting"}',
        ) from None
    if not isinstance(said, dict):
        raise InvalidArgument(
            f"{where} is a JSON {type(said).__name__}",
            expected='an object such as {"body": "hello"}',
            hint=None if isinstance(said, dict) else "without --jsonl every line is a body",
        )
    said = {_ALIASES.get(key, key): value for key, value in said.items()}
    was_stored = "msg_id" in said or "offset_msg_id" in said
    unknown = said.keys() - set(FIELDS) - (_STORED_AS if was_stored else {"topic"})
    if unknown:
        name = min(unknown)
        near = difflib.get_close_matches(name, FIELDS, n=1)
        raise InvalidArgument(
            f"{where} has {name!r}",
            expected=f"only {', '.join(FIELDS)}",
            hint=f"did you mean {near[0]}?" if near else "put it into properties, or into the body",
        )
    properties = {**defaults.properties, **_properties(said.get("properties"), where)}
    sharding_key = _optional_text(said, "sharding_key", where) or defaults.sharding_key
    if was_stored:
        sharding_key = sharding_key or properties.get(Property.SHARDING_KEY)
        properties = {k: v for k, v in properties.items() if k not in RESERVED_PROPERTIES}
    delay = said.get("delay", defaults.delay)
    if delay is not None and (isinstance(delay, bool) or not isinstance(delay, int | str)):
        raise InvalidArgument(f"{where} has delay {delay!r}", expected='a level, or text as "10s"')
    return Message(
        defaults.topic,
        _body(said, where),
        tag=_optional_text(said, "tag", where) or defaults.tag,
        keys=_keys(said.get("keys"), where) or defaults.keys,
        properties=properties,
        delay=delay_of(delay) if isinstance(delay, str) else delay,
        sharding_key=sharding_key,
    )


def _body(said: dict[str, Any], where: str) -> bytes:
    body, encoded = said.get("body"), said.get("body_base64")
    if encoded is None and _EXPORTED in said:
        encoded, body = body, None
    if encoded is not None:
        if body is not None or not isinstance(encoded, str):
            raise InvalidArgument(
                f"{where} has a body_base64 that is not text",
                expected="text, and no body beside it",
            )
        try:
            return b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidArgument(f"{where} has a body that is not base64: {error}") from None
    if body is None:
        raise InvalidArgument(f"{where} has no body", expected='"body" or "body_base64"')
    return body.encode("utf-8", "replace") if isinstance(body, str) else orjson.dumps(body)


def _keys(keys: object, where: str) -> tuple[str, ...]:
    if keys is None:
        return ()
    if isinstance(keys, str):
        return tuple(keys.split())
    if isinstance(keys, list) and all(isinstance(key, str) for key in keys):
        return tuple(keys)
    raise InvalidArgument(f"{where} has keys {keys!r}", expected="a list of texts")


def _properties(properties: object, where: str) -> dict[str, str]:
    if properties is None:
        return {}
    if isinstance(properties, dict) and all(isinstance(v, str) for v in properties.values()):
        return properties
    raise InvalidArgument(
        f"{where} has properties that are not text", expected='an object such as {"region": "eu"}'
    )


def _optional_text(said: dict[str, Any], name: str, where: str) -> str | None:
    value = said.get(name)
    if value is None or isinstance(value, str):
        return value
    raise InvalidArgument(f"{where} has {name} {value!r}", expected="text")
