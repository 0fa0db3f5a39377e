"""A message before it is sent, and as a broker stored it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar, overload

from penstock.errors import IllegalMessage
from penstock.model.hosts import offset_message_id, parse_host, unpack_host
from penstock.model.json_bodies import encode_json
from penstock.model.names import Property
from penstock.model.properties import get_property, parse_properties
from penstock.model.queue import MessageQueue
from penstock.model.record_layout import head_struct

_NO_JSON: Final = object()


def _body_of(
    topic: str, body: bytes | None, json: object, tags: object, key: object
) -> bytes | None:
    """The body of a message made with unusual keywords."""
    if key is not None:
        raise IllegalMessage(
            f"a message to topic {topic!r} with key={key!r}",
            expected="keys, by which it can be found, or sharding_key, which keeps order",
            hint=f"keys=[{key!r}], or sharding_key={key!r}",
        )
    if tags is not None:
        raise IllegalMessage(
            f"a message to topic {topic!r} with tags={tags!r}",
            expected="one tag: a filter selects several tags, a message has one",
            hint='tag="..."; further labels are keys or properties',
        )
    if body is not None:
        raise IllegalMessage(
            f"a message to topic {topic!r} with both body and json", expected="one of them"
        )
    return encode_json(json)


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """A message to be sent.

    ``delay`` is how long a broker keeps the message back: text such as ``"7m30s"``, a `timedelta`,
    or the number of one of RocketMQ's 18 delay levels. ``deliver_at`` is the time of its delivery
    instead: an aware `datetime`, or seconds since 1970. Brokers before RocketMQ 5 know only the
    levels; any other time is refused for them. With a ``sharding_key`` all messages of one key go
    to the same queue. ``json`` is a value that becomes the body: a dict, a list, a dataclass, a
    ``msgspec.Struct`` or a pydantic model.
    """

    topic: str
    body: bytes
    tag: str | None = field(default=None, kw_only=True)
    keys: Iterable[str] = field(default=(), kw_only=True)
    properties: Mapping[str, str] | None = field(default=None, kw_only=True)
    delay: int | str | timedelta | None = field(default=None, kw_only=True)
    sharding_key: str | None = field(default=None, kw_only=True)
    flag: int = field(default=0, kw_only=True)
    deliver_at: datetime | float | None = field(default=None, kw_only=True)

    def __init__(
        self,
        topic: str,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        delay: int | str | timedelta | None = None,
        sharding_key: str | None = None,
        flag: int = 0,
        deliver_at: datetime | float | None = None,
        json: object = _NO_JSON,
        tags: None = None,
        key: None = None,
    ) -> None:
        if json is not _NO_JSON or tags is not None or key is not None:
            body = _body_of(topic, body, json, tags, key)
        # Made for each send. The generated __init__ of a frozen dataclass looks up every field by
        # name, which takes three times as long.
        _set_topic(self, topic)
        _set_body(self, body)
        _set_tag(self, tag)
        _set_keys(self, keys)
        _set_properties(self, properties)
        _set_delay(self, delay)
        _set_sharding_key(self, sharding_key)
        _set_flag(self, flag)
        _set_deliver_at(self, deliver_at)

    @property
    def is_delayed(self) -> bool:
        """Whether it is delivered later than it is sent."""
        return self.delay is not None or self.deliver_at is not None


(
    _set_topic,
    _set_body,
    _set_tag,
    _set_keys,
    _set_properties,
    _set_delay,
    _set_sharding_key,
    _set_flag,
    _set_deliver_at,
) = (Message.__dict__[one.name].__set__ for one in fields(Message))


_T = TypeVar("_T")

# The fields of a record's head that are no slots of a message; both hosts are IPv4.
_HEAD: Final = head_struct(
    "flag",
    "log_position",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
)
_BORN_HOST: Final = 4
_STORE_HOST: Final = 6
_MSG_ID: Final = 9
_OFFSET_MSG_ID: Final = 10


class _OfHead(Generic[_T]):
    """A field of the head of a message, which is unpacked when the first one is read."""

    __slots__ = ("_index",)

    def __init__(self, index: int) -> None:
        self._index = index

    @overload
    def __get__(self, message: None, owner: object) -> _OfHead[_T]: ...

    @overload
    def __get__(self, message: StoredMessage, owner: object) -> _T: ...

    def __get__(self, message: StoredMessage | None, owner: object) -> _OfHead[_T] | _T:
        if message is None:
            return self
        value: _T = message._fields_of_head()[self._index]
        return value

    def __set__(self, message: StoredMessage, value: _T) -> None:
        message._fields_of_head()[self._index] = value


class StoredMessage:
    """A message as a consumer gets it.

    One is made for every record of every pull, and most handlers read a few fields only. So
    properties, hosts, ids and the other fields of a record's head are kept in wire form until they
    are read; properties and hosts may be passed in either form. Equality, ``repr`` and pickling do
    not show the difference.
    """

    # Messages of a pull are made slot by slot, in protocol.records.pulled.
    __slots__ = ("_added", "_head", "_properties", "body", "queue", "queue_offset", "topic")

    topic: str
    body: bytes
    queue: MessageQueue
    queue_offset: int
    _properties: Mapping[str, str] | bytes
    _added: bytes
    """Properties in wire form that came later, while the others had not been parsed."""
    _head: list[Any] | bytes

    flag: _OfHead[int] = _OfHead(0)
    """A number that the producer may set; brokers only keep it."""
    log_position: _OfHead[int] = _OfHead(1)
    """Its position in the broker's commit log."""
    sys_flag: _OfHead[int] = _OfHead(2)
    """RocketMQ's bits: compression, transactions, IPv6 addresses."""
    born_timestamp: _OfHead[int] = _OfHead(3)
    """When the producer sent it, in milliseconds since 1970."""
    store_timestamp: _OfHead[int] = _OfHead(5)
    """When the broker stored this copy, in milliseconds since 1970."""
    reconsume_times: _OfHead[int] = _OfHead(7)
    """How many attempts failed before this one; 0 at the first."""
    prepared_transaction_offset: _OfHead[int] = _OfHead(8)
    """The position of the half message of a transaction."""

    def __init__(
        self,
        topic: str,
        body: bytes,
        properties: Mapping[str, str] | bytes,
        queue: MessageQueue,
        queue_offset: int,
        log_position: int = 0,
        born_timestamp: int = 0,
        store_timestamp: int = 0,
        born_host: str | bytes = "",
        store_host: str | bytes = "",
        reconsume_times: int = 0,
        sys_flag: int = 0,
        flag: int = 0,
        prepared_transaction_offset: int = 0,
        msg_id: str | None = None,
        offset_msg_id: str | None = None,
    ) -> None:
        self.topic = topic
        self.body = body
        self.queue = queue
        self.queue_offset = queue_offset
        self._properties = properties
        self._added = b""
        self._head = [
            flag,
            log_position,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            msg_id,
            offset_msg_id,
        ]

    def _fields_of_head(self) -> list[Any]:
        head = self._head
        if isinstance(head, bytes):
            # Ids are made on demand.
            head = self._head = [*_HEAD.unpack(head), None, None]
        return head

    @property
    def properties(self) -> dict[str, str]:
        """All properties, system ones too; the dict is this message's own and may be changed."""
        properties = self._properties
        if type(properties) is dict:
            return properties
        if isinstance(properties, bytes):
            # Some releases leave out the last separator; a later duplicate wins.
            parsed = parse_properties(b"%b\x02%b" % (properties, self._added))
        else:
            parsed = dict(properties)
        self._properties = parsed
        self._added = b""
        return parsed

    @properties.setter
    def properties(self, properties: Mapping[str, str] | bytes) -> None:
        self._properties = properties
        self._added = b""

    def peek(self, key: str) -> str | None:
        """One property, without parsing the others unless they were read before."""
        properties = self._properties
        if isinstance(properties, bytes):
            name = key.encode()
            value = get_property(self._added, name) if self._added else None
            if value is None:
                value = get_property(properties, name)
            return None if value is None else value.decode("utf-8", "replace")
        return properties.get(key)

    def append_properties(self, encoded: bytes) -> None:
        """Add or replace properties given in their wire form, each pair ended by 0x02.

        For properties that every message of a pull gets: one concatenation instead of a parse.
        """
        properties = self._properties
        if isinstance(properties, bytes):
            self._added += encoded
        else:
            self._properties = {**properties, **parse_properties(encoded)}

    @property
    def tag(self) -> str | None:
        """The tag consumers filter by."""
        return self.properties.get(Property.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The business keys the message can be found by."""
        return tuple(self.properties.get(Property.KEYS, "").split())

    @property
    def msg_id(self) -> str:
        """The id its producer gave the message, else the broker's."""
        head = self._fields_of_head()
        msg_id: str | None = head[_MSG_ID]
        if msg_id is None:
            msg_id = self.properties.get(Property.UNIQUE_KEY) or self.offset_msg_id
            head[_MSG_ID] = msg_id
        return msg_id

    @property
    def offset_msg_id(self) -> str:
        """The broker's id of this copy: where it is stored. Empty when no store host is known."""
        head = self._fields_of_head()
        offset_msg_id: str | None = head[_OFFSET_MSG_ID]
        if offset_msg_id is None:
            host = head[_STORE_HOST]
            packed = parse_host(host) if isinstance(host, str) and host else host
            offset_msg_id = (
                offset_message_id(packed, self.log_position) if isinstance(packed, bytes) else ""
            )
            head[_OFFSET_MSG_ID] = offset_msg_id
        return offset_msg_id

    @property
    def born_host(self) -> str:
        """The producer's address, ``ip:port``."""
        head = self._fields_of_head()
        host: str | bytes = head[_BORN_HOST]
        if isinstance(host, bytes):
            host = head[_BORN_HOST] = unpack_host(host)
        return host

    @property
    def store_host(self) -> str:
        """The address of the broker that stored this copy, ``ip:port``."""
        head = self._fields_of_head()
        host: str | bytes = head[_STORE_HOST]
        if isinstance(host, bytes):
            # The id is made of the packed form, which may hold a port that no text is read as.
            _ = self.offset_msg_id
            host = head[_STORE_HOST] = unpack_host(host)
        return host

    def _fields(self) -> tuple[object, ...]:
        return (
            self.topic,
            self.body,
            self.properties,
            self.queue,
            self.queue_offset,
            self.log_position,
            self.born_timestamp,
            self.store_timestamp,
            self.born_host,
            self.store_host,
            self.reconsume_times,
            self.sys_flag,
            self.flag,
            self.prepared_transaction_offset,
            self.msg_id,
            self.offset_msg_id,
        )

    # Mutable and compared by value, so it has no hash: Python takes it away with this.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredMessage):
            return NotImplemented
        return self._fields() == other._fields()

    def __repr__(self) -> str:
        shown = self.body if len(self.body) <= _BODY_SHOWN else self.body[:_BODY_SHOWN] + b"..."
        return (
            f"StoredMessage({self.queue}, queue_offset={self.queue_offset}, topic={self.topic!r}, "
            f"msg_id={self.msg_id!r}, tag={self.tag!r}, keys={self.keys!r}, "
            f"reconsume_times={self.reconsume_times}, body={shown!r} ({len(self.body)} bytes))"
        )


_BODY_SHOWN = 32

_Value = TypeVar("_Value")


class TypedMessage(StoredMessage, Generic[_Value]):
    """A message whose body was parsed to the type that its handler was registered with."""

    __slots__ = ("value",)

    value: _Value
    """The parsed body."""

    @classmethod
    def of(cls, message: StoredMessage, value: _Value) -> TypedMessage[_Value]:
        """The same message, with its parsed body."""
        typed: TypedMessage[_Value] = object.__new__(cls)
        for slot in StoredMessage.__slots__:
            setattr(typed, slot, getattr(message, slot))
        typed.value = value
        return typed


def append_to_all(messages: Iterable[StoredMessage], encoded: bytes) -> None:
    """`append_properties` for each of them, made for a whole pull or batch."""
    before = added = b""
    for message in messages:
        if type(message._properties) is bytes:
            # Messages of one pull share one object before and after.
            if message._added is not before or not added:
                before = message._added
                added = before + encoded
            message._added = added
        else:
            message.append_properties(encoded)
