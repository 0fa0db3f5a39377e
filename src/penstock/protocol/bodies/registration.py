"""The registration of a broker and its topics at a name server: REGISTER_BROKER.

The plain body is JSON. The compressed one is a zlib stream of

    i32 length | DataVersion JSON
    i32 count  | count x ( i32 length | "name read write perm filterType attributesJson" )
    i32 length | filter server list JSON
    i32 count  | count x ( i32 length | TopicQueueMapping JSON )       from V5_0_0 on

where 4.9 leaves out the attributes of a topic and the mappings. Order flag and system flag of a
topic are not part of it. Brokers of 5.x send it with ``compressed=false``, so the first byte of
a zlib stream takes precedence over the header.
"""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass, field
from struct import Struct

from penstock.errors import ProtocolError
from penstock.protocol.bodies.codec import decode_body, from_json
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.topics import (
    TellOdd,
    TopicConfigTable,
    TopicQueueMapping,
    read_topics,
)
from penstock.protocol.fastjson.dialect import Json, Key, loads

V3_0_11 = 37
V5_0_0 = 413

MAX_INFLATED = 64 * 1024 * 1024

_ZLIB_FIRST_BYTE = b"\x78"
_LENGTH = Struct(">i")
_TOPIC_ITEMS = 6
_TOPICS = "topicConfigSerializeWrapper"


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody:
    """The topics of a broker: all of them, or those that just changed."""

    topic_config_serialize_wrapper: TopicConfigTable = field(default_factory=TopicConfigTable)
    filter_server_list: tuple[str, ...] = ()

    @property
    def topics(self) -> TopicConfigTable:
        """The topics under a shorter name."""
        return self.topic_config_serialize_wrapper


def decode_registration(
    data: bytes,
    *,
    compressed: bool = False,
    version: int = V5_0_0,
    tell_odd: TellOdd = lambda topic, trouble: None,
) -> RegisterBrokerBody:
    """Read the body of REGISTER_BROKER, given the header's flag and the sender's version.

    Topics that make no sense are bounded or left out, and ``tell_odd`` is called for each.
    """
    if not data:
        # Brokers without topics and ancient ones send none.
        return RegisterBrokerBody()
    if is_compressed(data, compressed):
        return _decode_stream(_inflate(data), version, tell_odd)
    value = loads(data)
    if version < V3_0_11:
        return RegisterBrokerBody(read_topics(value, tell_odd))
    try:
        return from_json(RegisterBrokerBody, value)
    except ProtocolError:
        if not isinstance(value, dict) or _TOPICS not in value:
            raise
    rest = from_json(RegisterBrokerBody, {k: v for k, v in value.items() if k != _TOPICS})
    return dataclasses.replace(
        rest, topic_config_serialize_wrapper=read_topics(value[_TOPICS], tell_odd)
    )


def is_compressed(data: bytes, flag: bool) -> bool:
    """Whether a body is a zlib stream; ``flag`` is what the header says."""
    return flag or data.startswith(_ZLIB_FIRST_BYTE)


def body_crc32(data: bytes) -> int:
    """The check sum that goes into the header; 0 there means "not checked"."""
    return zlib.crc32(data) & 0x7FFF_FFFF


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, MAX_INFLATED)
    except zlib.error as error:
        raise ProtocolError(
            f"a registration that cannot be inflated: {error}",
            expected="a zlib stream, or JSON without compressed=true",
        ) from None
    if inflater.unconsumed_tail:
        raise ProtocolError(
            "a registration that inflates without end", expected=f"at most {MAX_INFLATED} bytes"
        )
    if not inflater.eof:
        raise ProtocolError("a registration that ends in the middle of its zlib stream")
    return plain


def _decode_stream(plain: bytes, version: int, tell_odd: TellOdd) -> RegisterBrokerBody:
    cursor = _Cursor(plain)
    data_version = decode_body(DataVersion, cursor.block("data version"))
    topics: dict[Key, Json] = {}
    for _ in range(cursor.number("topic count")):
        topic = _topic_of(cursor.block("topic"))
        topics[str(topic["topicName"])] = topic
    filter_servers = loads(cursor.block("filter server list"))
    mappings: dict[str, TopicQueueMapping] | None = None
    if version >= V5_0_0 and not cursor.at_end:
        mappings = {}
        for _ in range(cursor.number("mapping count")):
            mapping = decode_body(TopicQueueMapping, cursor.block("mapping"))
            mappings[mapping.topic or ""] = mapping
    if not cursor.at_end:
        raise ProtocolError("a registration with bytes after its end")
    table = dataclasses.replace(
        read_topics({"topicConfigTable": topics}, tell_odd),
        data_version=data_version,
        topic_queue_mapping_info_map=mappings,
    )
    body = from_json(RegisterBrokerBody, {"filterServerList": filter_servers})
    return dataclasses.replace(body, topic_config_serialize_wrapper=table)


def _topic_of(block: bytes) -> dict[Key, Json]:
    """A topic from its text; 4.9 writes five items, 5.x six."""
    try:
        items = block.decode().split(" ", _TOPIC_ITEMS - 1)
    except UnicodeDecodeError:
        raise ProtocolError("a registered topic that is no UTF-8") from None
    if len(items) < _TOPIC_ITEMS - 1 or not items[0]:
        raise ProtocolError(
            f"a registered topic {' '.join(items)[:60]!r}",
            expected="name, read queues, write queues, permission, filter type, attributes",
        )
    name, read, write, perm, filter_type, *attributes = items
    topic: dict[Key, Json] = {
        "topicName": name,
        "readQueueNums": read,
        "writeQueueNums": write,
        "perm": perm,
        "topicFilterType": filter_type,
    }
    if attributes:
        topic["attributes"] = loads(attributes[0].encode())
    return topic


class _Cursor:
    """Reads counted blocks; nothing is allocated on the word of a length alone."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def number(self, what: str) -> int:
        """A length or count, never more than the bytes that are left."""
        left = len(self._data) - self._at - _LENGTH.size
        if left < 0:
            raise ProtocolError(f"a registration that ends before its {what}")
        (value,) = _LENGTH.unpack_from(self._data, self._at)
        if not 0 <= value <= left:
            raise ProtocolError(f"a registration with a {what} of {value}", expected=f"0 to {left}")
        self._at += _LENGTH.size
        return int(value)

    def block(self, what: str) -> bytes:
        start = self._at + _LENGTH.size
        self._at = start + self.number(what)
        return self._data[start : self._at]
