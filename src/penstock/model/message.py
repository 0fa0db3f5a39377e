"""A message before it is sent, and as a broker stored it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.model.hosts import offset_message_id, parse_host, unpack_host
from penstock.model.names import Property
from penstock.model.properties import get_property, parse_properties
from penstock.model.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Message:
    """A message to be sent.

    ``delay`` is one of RocketMQ's 18 delay levels, as a number or as the text of one (``"10s"``).
    With a ``sharding_key`` all messages of one key go to the same queue.
    """

    topic: str
    body: bytes
    tag: str | None = field(default=None, kw_only=True)
    keys: Iterable[str] = field(default=(), kw_only=True)
    properties: Mapping[str, str] | None = field(default=None, kw_only=True)
    delay: int | str | None = field(default=None, kw_only=True)
    sharding_key: str | None = field(default=None, kw_only=True)
    flag: int = field(default=0, kw_only=True)


class StoredMessage:
    """A message as a consumer gets it.

    One is made for every record of every pull, and most handlers look at a few fields only. So
    properties, hosts and ids are kept as they came off the wire until somebody reads them; either
    form may be handed in. Equality, ``repr`` and pickling don't show the difference.
    """

    __slots__ = (
        "_born_host",
        "_msg_id",
        "_offset_msg_id",
        "_properties",
        "_store_host",
        "body",
        "born_timestamp",
        "flag",
        "log_position",
        "prepared_transaction_offset",
        "queue",
        "queue_offset",
        "reconsume_times",
        "store_timestamp",
        "sys_flag",
        "topic",
    )

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
        self.log_position = log_position
        self.born_timestamp = born_timestamp
        self.store_timestamp = store_timestamp
        self.reconsume_times = reconsume_times
        self.sys_flag = sys_flag
        self.flag = flag
        self.prepared_transaction_offset = prepared_transaction_offset
        self._properties = properties
        self._born_host = born_host
        self._store_host = store_host
        self._msg_id = msg_id
        self._offset_msg_id = offset_msg_id

    @property
    def properties(self) -> dict[str, str]:
        """All properties, system ones too; the dict is this message's own and may be changed."""
        properties = self._properties
        if type(properties) is dict:
            return properties
        parsed = parse_properties(properties) if isinstance(properties, bytes) else dict(properties)
        self._properties = parsed
        return parsed

    @properties.setter
    def properties(self, properties: Mapping[str, str] | bytes) -> None:
        self._properties = properties

    def peek(self, key: str) -> str | None:
        """One property, without parsing the others when nobody has asked for them yet."""
        properties = self._properties
        if isinstance(properties, bytes):
            value = get_property(properties, key.encode())
            return None if value is None else value.decode("utf-8", "replace")
        return properties.get(key)

    def append_properties(self, encoded: bytes) -> None:
        """Add or replace properties given in their wire form, each pair ended by 0x02.

        What every message of a pull gets costs one concatenation here instead of a parse.
        """
        properties = self._properties
        if isinstance(properties, bytes):
            # Some releases leave out the last separator; a later duplicate wins.
            mark = b"" if not properties or properties.endswith(b"\x02") else b"\x02"
            self._properties = properties + mark + encoded
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
        if self._msg_id is None:
            self._msg_id = self.properties.get(Property.UNIQUE_KEY) or self.offset_msg_id
        return self._msg_id

    @property
    def offset_msg_id(self) -> str:
        """The broker's id of this copy: where it is stored. Empty when no store host is known."""
        if self._offset_msg_id is None:
            host = self._store_host
            packed = parse_host(host) if isinstance(host, str) and host else host
            self._offset_msg_id = (
                offset_message_id(packed, self.log_position) if isinstance(packed, bytes) else ""
            )
        return self._offset_msg_id

    @property
    def born_host(self) -> str:
        """The producer's address, ``ip:port``."""
        if isinstance(self._born_host, bytes):
            self._born_host = unpack_host(self._born_host)
        return self._born_host

    @property
    def store_host(self) -> str:
        """The address of the broker that stored this copy, ``ip:port``."""
        if isinstance(self._store_host, bytes):
            # The id is made of the packed form, which may hold a port that no text is read as.
            _ = self.offset_msg_id
            self._store_host = unpack_host(self._store_host)
        return self._store_host

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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredMessage):
            return NotImplemented
        return self._fields() == other._fields()

    # Mutable and compared by value.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = self.body if len(self.body) <= _BODY_SHOWN else self.body[:_BODY_SHOWN] + b"..."
        return (
            f"StoredMessage({self.queue}, queue_offset={self.queue_offset}, topic={self.topic!r}, "
            f"msg_id={self.msg_id!r}, tag={self.tag!r}, keys={self.keys!r}, "
            f"reconsume_times={self.reconsume_times}, body={shown!r} ({len(self.body)} bytes))"
        )


_BODY_SHOWN = 32
