"""From a user's message to the content of a send request: checked, with properties, compressed.

Pure. Every error in a message is found here, before a request is made.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

from penstock.client.producing.timers import DeliveryTime, delivery_time
from penstock.client.settings import ProducerSettings
from penstock.errors import IllegalMessage, IllegalName, InvalidArgument
from penstock.model import Message, StoredMessage
from penstock.model.names import RETRY_PREFIX, Property
from penstock.model.properties import format_properties
from penstock.protocol.delays import DELAY_LEVELS
from penstock.protocol.records.compression import Compression, compress
from penstock.protocol.validation import (
    check_body,
    check_sendable,
    check_topic,
    check_user_properties,
)

REMEMBERED_TAG = 255
"""Longer tags are not cached."""


class OutgoingMessage(NamedTuple):
    """A message ready to be sent."""

    topic: str
    body: bytes
    properties: str
    sys_flag: int
    flag: int
    msg_id: str
    may_batch: bool
    """Whether it may share a request: not delayed, not compressed, no extra properties."""
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    time: DeliveryTime | None = None
    """When it is delivered; properties for it depend on the broker."""


@functools.lru_cache(maxsize=1024)
def checked_topic(topic: str) -> str:
    """Return the name of a topic that clients may send to; refuse any other."""
    return check_sendable(check_topic(topic))


def sent_properties(message: Message, msg_id: str) -> dict[str, str]:
    """The properties a message is sent with."""
    properties: dict[str, str] = {}
    if message.properties:
        properties.update(_user_properties(message.properties))
    if message.tag:
        properties[Property.TAGS] = _tag(message.tag)
    if message.keys:
        properties[Property.KEYS] = _keys(message.keys)
    if message.sharding_key is not None:
        properties[Property.SHARDING_KEY] = _text("sharding_key", message.sharding_key)
    if message.delay is not None and not isinstance(message.delay, str | timedelta):
        level = DELAY_LEVELS.level_of(message.delay)
        if level:
            properties[Property.DELAY] = str(level)
    # Java always sets it; brokers take a missing WAIT for true.
    properties[Property.WAIT] = "true"
    properties[Property.UNIQUE_KEY] = msg_id
    return properties


def _user_properties(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Check the properties of the user: keys and values must be text.

    Consumers could not restore another type: None would arrive as "None".
    """
    if not isinstance(properties, Mapping):
        raise IllegalMessage(
            f"message properties of type {type(properties).__name__}",
            expected="a dict, such as {'colour': 'red'}",
        )
    for key, value in properties.items():
        if not isinstance(key, str):
            raise IllegalMessage(
                f"the key of message property {key!r} is of type {type(key).__name__}",
                expected="text",
                hint=f"{str(key)!r}",
            )
        if not isinstance(value, str):
            raise IllegalMessage(
                f"message property {key!r} = {value!r} is of type {type(value).__name__}",
                expected="text: consumers get properties as text",
                hint="leave the property out" if value is None else _as_text(value),
            )
    check_user_properties(properties)
    return properties


def _keys(keys: Iterable[str]) -> str:
    if isinstance(keys, str):
        return keys
    if isinstance(keys, bytes | bytearray) or not isinstance(keys, Iterable):
        raise IllegalMessage(
            f"message keys {keys!r} are of type {type(keys).__name__}",
            expected="a list of text, such as ['order-1']",
        )
    given = [_text("key", key) for key in keys]
    joined = " ".join(given)
    if joined.count(" ") >= max(1, len(given)):
        wrong = next(key for key in given if " " in key)
        raise IllegalMessage(
            f"message key {wrong!r} has a blank, which ends a key",
            expected="keys without blanks",
            hint=f"keys={wrong.split()!r}, or another character instead of the blank",
        )
    return joined


def _tag(tag: str) -> str:
    if "||" in _text("tag", tag):
        raise IllegalMessage(
            f"message tag {tag!r}: a message has one tag; || separates the tags of a filter",
            expected="one tag",
        )
    return tag


def _text(what: str, value: str) -> str:
    if not isinstance(value, str):
        raise IllegalMessage(
            f"message {what} {value!r} is of type {type(value).__name__}",
            expected="text",
            hint=_as_text(value),
        )
    return value


def _as_text(value: object) -> str:
    return f"{value!r}.decode()" if isinstance(value, bytes) else f"str({value!r})"


@functools.lru_cache(maxsize=1024)
def before_id(tag: str | None) -> str:
    """The property text of a message with just a tag, up to the value of its id."""
    properties = {Property.TAGS: _tag(tag)} if tag else {}
    return format_properties({**properties, Property.WAIT: "true"}) + f"{Property.UNIQUE_KEY}\x01"


def _property_text(
    message: Message, msg_id: str, namespace: str | None, extra: dict[str, str] | None
) -> str:
    tag = message.tag
    if (
        (tag is None or (type(tag) is str and len(tag) <= REMEMBERED_TAG))
        and not message.properties
        and not message.keys
        and message.sharding_key is None
        and message.delay is None
        and message.deliver_at is None
        and not namespace
        and not extra
    ):
        # The fast path for nearly every message: only the id differs.
        return f"{before_id(tag)}{msg_id}\x02"
    properties = sent_properties(message, msg_id)
    if namespace:
        properties[Property.INSTANCE_ID] = namespace
    if extra:
        properties.update(extra)
    return format_properties(properties)


def _check_flag(flag: int) -> None:
    if not isinstance(flag, int) or isinstance(flag, bool) or not -(2**31) <= flag < 2**31:
        raise IllegalMessage(
            f"message flag {flag!r} of type {type(flag).__name__}",
            expected="a whole number of 32 bits",
        )


def make_outgoing(
    message: Message,
    msg_id: str,
    settings: ProducerSettings,
    extra: dict[str, str] | None = None,
) -> OutgoingMessage:
    """Check and prepare a message; ``extra`` are properties that users may not set."""
    if not isinstance(message, Message):
        raise not_a_message(message)
    # A topic that is not text may not be hashable, so it must not reach the cache.
    topic = message.topic
    topic = checked_topic(topic) if isinstance(topic, str) else check_topic(topic)
    body = message.body
    if not isinstance(body, bytes):
        body = _as_bytes(body)
    check_body(body, max_bytes=settings.max_message_bytes)
    properties = _property_text(message, msg_id, settings.namespace, extra)
    sys_flag = 0
    if len(body) >= settings.compress_over > 0:
        kind = Compression.named(settings.compression)
        body = compress(body, kind, settings.compression_level)
        sys_flag = kind.sys_flag
    flag = message.flag
    if flag or type(flag) is not int:
        _check_flag(flag)
    is_delayed = message.delay is not None or message.deliver_at is not None
    may_batch = not sys_flag and not is_delayed and not extra
    time = delivery_time(message) if is_delayed else None
    # The same as OutgoingMessage(...), without the Python function a NamedTuple calls.
    return tuple.__new__(
        OutgoingMessage,
        (topic, body, properties, sys_flag, flag, msg_id, may_batch, 0, None, time),
    )


def make_outgoing_copy(
    topic: str,
    message: StoredMessage,
    properties: dict[str, str],
    settings: ProducerSettings,
    *,
    reconsume_times: int,
    max_reconsume_times: int,
) -> OutgoingMessage:
    """Prepare a stored message for another topic.

    It keeps its unique id, so that all copies can be found by it.
    """
    body, sys_flag = message.body, 0
    if len(body) >= settings.compress_over > 0:
        kind = Compression.named(settings.compression)
        body = compress(body, kind, settings.compression_level)
        sys_flag = kind.sys_flag
    properties = {**properties, Property.WAIT: "true"}
    if message.msg_id:
        properties.setdefault(Property.UNIQUE_KEY, message.msg_id)
    return OutgoingMessage(
        check_topic(topic),
        body,
        format_properties(properties),
        sys_flag,
        message.flag,
        message.msg_id,
        False,
        reconsume_times,
        max_reconsume_times,
    )


def as_message(message: Message | str, body: bytes | None) -> Message:
    """The message of ``send(message)`` or ``send(topic, body)``."""
    if isinstance(message, str):
        if body is not None:
            return Message(message, body)
        raise InvalidArgument(
            f"send({message!r}) without a body",
            expected="a Message, or a topic and a body",
            hint=f'send({message!r}, b"...")',
        )
    if not isinstance(message, Message):
        raise not_a_message(message)
    if body is not None:
        raise InvalidArgument(
            f"send(Message(...), {body!r:.50})", expected="a Message alone, or a topic and a body"
        )
    return message


def as_messages(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The messages of ``send_batch``."""
    if isinstance(messages, Message | str | bytes) or not isinstance(messages, Iterable):
        raise InvalidArgument(
            f"send_batch() of {messages!r:.50}, of type {type(messages).__name__}",
            expected="a list of messages",
            hint='send_batch([Message("topic", b"..."), ...])',
        )
    given = tuple(messages)
    for one in given:
        if not isinstance(one, Message):
            raise InvalidArgument(
                f"send_batch() of a list with {one!r:.50}, of type {type(one).__name__}",
                expected="messages",
                hint='Message("topic", b"...")',
            )
    return given


def not_a_message(given: object) -> InvalidArgument:
    """The error for a send of something else."""
    return InvalidArgument(
        f"send() of {given!r:.50}, of type {type(given).__name__}",
        expected="a Message, or a topic and a body",
        hint='send("topic", b"...")',
    )


def _as_bytes(body: object) -> bytes:
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    hint = "body.encode()" if isinstance(body, str) else None
    raise IllegalMessage(
        f"a message body of type {type(body).__name__}", expected="bytes", hint=hint
    )


def check_batch(messages: list[Message]) -> str:
    """Check messages for one batch; return their topic."""
    if not messages:
        raise InvalidArgument("a batch of no messages", expected="at least one")
    topic = messages[0].topic
    for message in messages:
        if message.topic != topic:
            raise IllegalMessage(
                f"a batch with messages of topics {topic!r} and {message.topic!r}",
                expected="one topic",
            )
        if message.is_delayed:
            raise IllegalMessage(
                f"a batch to topic {topic!r} with a delayed message", expected="no delay"
            )
    if topic.startswith(RETRY_PREFIX):
        raise IllegalName(f"a batch to the retry topic {topic!r}", expected="an ordinary topic")
    return topic
