"""Finding messages by key: from the hash in the index to records that really have the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.protocol.records.codec import decode_record
from penstock.store.commit_log import CommitLog, store_timestamp_of
from penstock.store.index_builder import message_keys
from penstock.store.key_hashes import TopicHash
from penstock.store.key_index import KeyIndex

MAX_QUERY_COUNT: Final = 64
MAX_QUERY_BYTES: Final = 15 << 20
"""So much fits into one frame, whose limit is 16 MiB on either side."""
_MAX_QUERY_CANDIDATES = 4096


class QueryResult(NamedTuple):
    """Messages found by key, oldest first, and how far the index goes."""

    slices: list[memoryview]
    last_update_ms: int
    last_update_position: int


def possible_keys(index: KeyIndex, topic: str, keys: Sequence[bytes]) -> list[int]:
    """The places of the keys for which `find_by_key` may find a message; it finds none of others.

    Most keys that are new have a hash that no message has, and that takes no look at the log.
    """
    if not keys:
        return []
    topic_hash = TopicHash(topic.encode("utf-8", "replace"))
    if len(set(map(len, keys))) == 1:
        return index.possible(topic_hash.hash_all(b"", keys))
    return index.possible([topic_hash.hash(key) for key in keys])


def find_by_key(
    index: KeyIndex,
    commit_log: CommitLog,
    topic: str,
    key: str,
    max_count: int,
    begin_ms: int,
    end_ms: int,
) -> QueryResult:
    """The newest messages of a topic with a key, as far as they fit into one answer."""
    wanted = key.encode("utf-8", "replace")
    hashed = TopicHash(topic.encode("utf-8", "replace")).hash(wanted)
    found: dict[int, memoryview] = {}
    size = 0
    for tries, position in enumerate(index.find(hashed, begin_ms, end_ms)):
        if len(found) >= min(max_count, MAX_QUERY_COUNT) or tries >= _MAX_QUERY_CANDIDATES:
            break
        record = commit_log.record_at(position)
        if (
            record is not None
            and position not in found
            and begin_ms <= store_timestamp_of(record) <= end_ms
            and _has_key(record, topic, wanted)
        ):
            size += len(record)
            if found and size > MAX_QUERY_BYTES:
                break
            found[position] = record
    return QueryResult(
        [found[position] for position in sorted(found)],
        index.end_timestamp,
        index.end_position,
    )


def _has_key(record: memoryview, topic: str, key: bytes) -> bool:
    """Whether a record has a key, not just one with the same hash."""
    decoded = decode_record(record)
    return decoded.topic == topic and key in message_keys(decoded.properties)
