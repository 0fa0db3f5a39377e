"""Pop: the broker keeps the state of consumption, message by message."""

from __future__ import annotations

from penstock.protocol.headers.codec import Header, Int32, Int64


class PopMessage(Header):
    """Messages that stay invisible to others for ``invisible_time``; queue -1 is any queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64 = 0
    init_mode: Int32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopMessageResult(Header):
    """What the client builds its receipt handles from."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PeekMessage(Header):
    """Messages, without taking them."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class AckMessage(Header):
    """A popped message is done; ``extra_info`` is its receipt handle."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


class ChangeInvisibleTime(Header):
    """Keep a popped message from others for longer, or for less."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    suspend: bool | None = None


class ChangeInvisibleTimeResult(Header):
    """What the new receipt handle is built from."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class Notification(Header):
    """Tell me when there is something to pop."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64 = 0
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResult(Header):
    has_msg: bool
    polling_full: bool | None = None


class PollingInfo(Header):
    """How many pops of a queue are held."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResult(Header):
    polling_num: Int32
