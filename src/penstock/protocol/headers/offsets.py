"""Where groups stand and where queues begin and end."""

from __future__ import annotations

from penstock.protocol.headers.codec import Header, Int32, Int64


class OffsetResult(Header):
    """The answer to every request that asks for one offset of a queue."""

    offset: Int64


class QueryConsumerOffset(Header):
    """What a group has committed in a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(Header):
    """Commit; the offset may also go backwards."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class SearchOffset(Header):
    """The offset at a time; ``boundary_type`` is LOWER (also when absent) or UPPER."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class GetMaxOffset(Header):
    """One past the last message; absent ``committed`` means true."""

    topic: str
    queue_id: Int32
    committed: bool | None = None


class GetMinOffset(Header):
    topic: str
    queue_id: Int32


class GetEarliestStoreTime(Header):
    topic: str
    queue_id: Int32


class EarliestStoreTimeResult(Header):
    """When the first message of a queue was stored; -1 for an empty one."""

    timestamp: Int64


class QueryCorrectionOffset(Header):
    """The smallest offsets of other groups; ``filter_groups`` is a comma list to leave out."""

    topic: str
    compare_group: str
    filter_groups: str | None = None
