"""Where groups stand: the offset tables and their files, resets, what a client reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model import MessageQueue
from penstock.protocol.bodies.codec import wire
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.values import Int32
from penstock.protocol.fastjson.dialect import FrozenObject, Json, Key


@dataclass(frozen=True, slots=True)
class ConsumerOffsetTable:
    """Committed offsets, ``topic@group`` to queue to offset: ``config/consumerOffset.json``.

    4.9 has the offsets alone; what is None is left out.
    """

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion | None = None
    group_topic_map: dict[str, tuple[str, ...]] | None = None
    pull_offset_table: dict[str, dict[int, int]] | None = None
    penstock_pop: int | None = None
    """The log position up to which pop consumption is taken into account; a key of our own."""
    penstock_resets: dict[str, dict[int, int]] | None = None
    """Log positions up to which pops are void, since their groups were moved; a key of our own."""


@dataclass(frozen=True, slots=True)
class DelayOffsetTable:
    """How far each delay level was delivered: ``config/delayOffset.json``."""

    offset_table: dict[int, int] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(frozen=True, slots=True)
class CorrectionOffsets:
    """The smallest offset in use by each queue, over the groups compared."""

    correction_offsets: dict[int, int] = field(default_factory=dict)


def _read_offset_list(value: Json) -> Json:
    """The offset table in the two forms that are lists, as an object.

    [{"topic":…,"brokerName":…,"queueId":…,"offset":…}]     what C++ clients are sent
    [[queue,offset]]                                         what the Go client also takes
    """
    if not isinstance(value, list):
        return value
    table: dict[Key, Json] = {}
    for item in value:
        if isinstance(item, list) and len(item) == 2 and isinstance(item[0], dict):
            table[FrozenObject.freeze(item[0])] = item[1]
        elif isinstance(item, dict):
            queue = {key: member for key, member in item.items() if key != "offset"}
            table[FrozenObject.freeze(queue)] = item.get("offset")
        else:
            return value
    return table


@dataclass(frozen=True, slots=True)
class ResetOffsets:
    """New offsets of a group; reads every form, writes the one that Java and Go take."""

    offset_table: dict[MessageQueue, int] = field(
        default_factory=dict, metadata=wire(read=_read_offset_list)
    )

    def for_cpp(self) -> ResetOffsetsList:
        """The form for a C++ client."""
        return ResetOffsetsList(
            tuple(QueueOffset(*queue, offset) for queue, offset in self.offset_table.items())
        )


@dataclass(frozen=True, slots=True)
class LocalOffsets:
    """The offsets of a broadcasting client, as it keeps them in a file of its own."""

    offset_table: dict[MessageQueue, int] = field(
        default_factory=dict, metadata=wire(read=_read_offset_list)
    )
    penstock_epochs: dict[MessageQueue, int] | None = None
    """The epochs of the topics that the offsets belong to, where they are known; a key of our own,
    which Java ignores."""


@dataclass(frozen=True, slots=True)
class QueueOffset:
    """A queue and an offset in one object."""

    topic: str
    broker_name: str
    queue_id: Int32
    offset: int


@dataclass(frozen=True, slots=True)
class ResetOffsetsList:
    """``ResetOffsets`` as a C++ client takes it."""

    offset_table: tuple[QueueOffset, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """Where a client stands (``message_queue_table``), or all clients of a group."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)
