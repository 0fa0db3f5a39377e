"""Pulls, and queries for messages."""

from __future__ import annotations

from typing import Final

from msgspec import field

from penstock.protocol.headers.codec import Header, Int32, Int64


class PullFlag:
    """Bits of a pull's ``sys_flag``."""

    COMMIT_OFFSET: Final = 0x1
    SUSPEND: Final = 0x2
    SUBSCRIPTION: Final = 0x4
    CLASS_FILTER: Final = 0x8
    LITE_PULL: Final = 0x10


class PullMessage(Header):
    """The messages of a queue from ``queue_offset`` on; bits of ``sys_flag``: ``PullFlag``."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    # Java's own misspelling is the name on the wire.
    proxy_forward_client_id: str | None = field(default=None, name="proxyFrowardClientId")


class PullMessageResult(Header):
    """Where the queue stands; sent with all four pull codes, since Java reads it unchecked."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class PullRefused(Header):
    """What forbade a pull: 1 broker, 2 group, 3 topic, 4 no broadcasting, 5 subscription."""

    forbidden_type: Int32 | None = None


class ViewMessage(Header):
    """The message at a position of the log, as its offset message id gives it."""

    offset: Int64
    topic: str | None = None


class QueryMessage(Header):
    """Messages by key, or by unique key, within a time range."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: bool | None = field(default=None, name="_UNIQUE_KEY_QUERY")
    index_type: str | None = None
    last_key: str | None = None


class QueryMessageResult(Header):
    """How far the key index reached; also answered when nothing was found."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64
