"""The body of REGISTER_BROKER as brokers of other versions write it; ours sends plain JSON."""

from __future__ import annotations

import zlib
from struct import Struct

from penstock.protocol.bodies.codec import encode_body, to_json
from penstock.protocol.bodies.registration import V5_0_0, RegisterBrokerBody
from penstock.protocol.bodies.topics import TopicConfig
from penstock.protocol.fastjson.dialect import Json, Key, dumps

_LENGTH = Struct(">i")


def encode_registration(
    body: RegisterBrokerBody, *, compressed: bool = False, version: int = V5_0_0
) -> bytes:
    """Write the body of REGISTER_BROKER as a broker of ``version`` does."""
    if not compressed:
        return encode_body(body)
    return zlib.compress(_encode_stream(body, version), 9)


def _encode_stream(body: RegisterBrokerBody, version: int) -> bytes:
    topics = body.topics
    parts = [_counted(dumps(to_json(topics.data_version)))]
    parts.append(_LENGTH.pack(len(topics.topic_config_table)))
    for name, topic in topics.topic_config_table.items():
        parts.append(_counted(_topic_text(name, topic, version).encode()))
    parts.append(_counted(dumps(list(body.filter_server_list))))
    if version >= V5_0_0:
        mappings = topics.topic_queue_mapping_info_map or {}
        parts.append(_LENGTH.pack(len(mappings)))
        parts.extend(_counted(encode_body(mapping)) for mapping in mappings.values())
    return b"".join(parts)


def _counted(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _topic_text(name: str, topic: TopicConfig, version: int) -> str:
    items = [
        name,
        str(topic.read_queue_nums),
        str(topic.write_queue_nums),
        str(topic.perm),
        topic.topic_filter_type,
    ]
    if version >= V5_0_0:
        attributes: dict[Key, Json] = {k: v for k, v in (topic.attributes or {}).items()}
        items.append(dumps(attributes).decode())
    return " ".join(items)
