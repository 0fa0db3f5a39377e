"""Pop consumption and assignment by the broker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.errors import InvalidArgument, ProtocolError
from penstock.model import MessageQueue
from penstock.protocol.bodies.codec import wire
from penstock.protocol.bodies.common import MessageModel, RequestMode
from penstock.protocol.bodies.values import Int32

# A delivery has at most 32 messages; filtered ones in between make it longer, but not this long.
MAX_BITS = 65_536


@dataclass(frozen=True, slots=True)
class QueryAssignment:
    """A member asks the broker for its queues."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: MessageModel = MessageModel.CLUSTERING


@dataclass(frozen=True, slots=True)
class QueueAssignment:
    """A queue a member may use, and how."""

    message_queue: MessageQueue
    mode: RequestMode = RequestMode.PULL
    attachments: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class QueueAssignments:
    """The queues of a member; None: no valid answer, keep what you have."""

    message_queue_assignments: tuple[QueueAssignment, ...] | None = None


@dataclass(frozen=True, slots=True)
class SetRequestMode:
    """Whether a group pulls or pops a topic; a share of 0 or less: all pop every queue."""

    topic: str
    consumer_group: str
    mode: RequestMode = RequestMode.PULL
    pop_share_queue_num: Int32 = 0


@dataclass(frozen=True, slots=True)
class RequestModes:
    """All request modes of a broker by topic and group: ``config/messageRequestMode.json``."""

    message_request_mode_map: dict[str, dict[str, SetRequestMode]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchAckEntry:
    """Offsets of one delivery that are done: bit i of ``bits`` stands for start_offset + i.

    On the wire the members have short names; the long ones are read, too.
    """

    consumer_group: str = field(metadata=wire("c", "consumerGroup"))
    topic: str = field(metadata=wire("t", "topic"))
    retry: str = field(metadata=wire("r", "retry"))
    start_offset: int = field(metadata=wire("so", "startOffset"))
    queue_id: Int32 = field(metadata=wire("q", "queueId"))
    revive_queue_id: Int32 = field(metadata=wire("rq", "reviveQueueId"))
    pop_time: int = field(metadata=wire("pt", "popTime"))
    invisible_time: int = field(metadata=wire("it", "invisibleTime"))
    bits: bytes = field(default=b"", metadata=wire("b", "bitSet"))

    def offsets(self) -> list[int]:
        """The offsets that are done, in order."""
        if len(self.bits) > MAX_BITS // 8:
            raise ProtocolError(
                f"an acknowledgement of {len(self.bits) * 8} offsets",
                expected=f"at most {MAX_BITS}",
            )
        return [
            self.start_offset + position * 8 + bit
            for position, byte in enumerate(self.bits)
            for bit in range(8)
            if byte >> bit & 1
        ]


def bits_of(start_offset: int, offsets: Iterable[int]) -> bytes:
    """The bit set of ``offsets``, lowest bit first in each byte, no longer than needed."""
    mask = 0
    for offset in offsets:
        bit = offset - start_offset
        if not 0 <= bit < MAX_BITS:
            raise InvalidArgument(
                f"offset {offset} of a delivery that starts at {start_offset}",
                expected=f"{start_offset} to {start_offset + MAX_BITS - 1}",
            )
        mask |= 1 << bit
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


@dataclass(frozen=True, slots=True)
class BatchAck:
    """Many acknowledgements in one request."""

    broker_name: str | None = None
    acks: tuple[BatchAckEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class OrderInfo:
    """The last batch of an orderly pop in one queue.

    ``offsets`` has the first offset, then distances to it; bit i of ``done`` stands for the i-th.
    """

    pop_time: int
    invisible_time: int = field(metadata=wire("i"))
    offsets: tuple[int, ...] = field(metadata=wire("o"))
    visible_at: dict[int, int] | None = field(default=None, metadata=wire("ot"))
    counts: dict[int, int] | None = field(default=None, metadata=wire("oc"))
    noted: int = field(default=0, metadata=wire("l"))
    done: int = field(default=0, metadata=wire("cm"))
    attempt_id: str | None = field(default=None, metadata=wire("a"))


@dataclass(frozen=True, slots=True)
class OrderInfoTable:
    """The last batches by ``topic@group`` and queue: ``config/consumerOrderInfo.json``."""

    table: dict[str, dict[int, OrderInfo]] = field(default_factory=dict)
    order_info_count: int | None = None
    ordered_consumption_level: str = "QUEUE"
