"""Whether a queue entry points to a record: asked before bytes leave for a reader.

A reader that gets a record with a wrong length cannot even find the next one. So a read delivers
what precedes the damage, and a read that starts with it is refused, with the way out. To ask about
each record would cost a pull much of its speed. All are looked at that were there before this
start, since they may have come from the disk; of the younger ones, the first of each read: where a
reader stumbles over one of those, it asks again from there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import repeat
from struct import Struct
from typing import Final

from penstock.errors import StoreDamaged
from penstock.model.record_layout import (
    BODY_POSITION,
    HOST_BITS,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    PROPERTIES_LENGTH,
    TOPIC_LENGTH_V2,
    head_offset,
    head_struct,
)
from penstock.store.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)

_MAX_DAMAGES: Final = 100
_unpack_head = head_struct("size", "magic", "log_position", "sys_flag", "body_length").unpack_from
_unpack_identity = Struct(
    f">iI{head_offset('log_position') - head_offset('body_crc')}xq"
).unpack_from
_unpack_topic_length = TOPIC_LENGTH_V2.unpack_from
_unpack_properties_length = PROPERTIES_LENGTH.unpack_from


def is_sound(view: memoryview, at: int, size: int, position: int) -> bool:
    """Whether the bytes at ``at`` are the record of this log position, with lengths that add up."""
    end = at + size
    if size < MIN_RECORD_BYTES or end > len(view):
        return False
    head: tuple[int, int, int, int, int] = _unpack_head(view, at)
    stated, magic, stated_position, sys_flag, length = head
    if stated != size or stated_position != position:
        return False
    if sys_flag & HOST_BITS:
        return magic in (MAGIC_V1, MAGIC_V2)  # rare; its lengths are elsewhere
    topic_at = at + BODY_POSITION + length
    if length < 0 or topic_at + 4 > end:
        return magic == MAGIC_V1 and length >= 0 and topic_at + 3 == end and not view[topic_at]
    if magic == MAGIC_V1:
        topic_end = topic_at + 1 + view[topic_at]
    elif magic == MAGIC_V2:
        topic_end = topic_at + 2 + _unpack_topic_length(view, topic_at)[0]
    else:
        return False
    if not topic_at < topic_end <= end - 2:
        return False
    properties_length: int = _unpack_properties_length(view, topic_end)[0]
    return properties_length == end - topic_end - 2


def are_records(view: memoryview, positions: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether each record that lies in ``view``, side by side, begins as one.

    Its inner lengths are not looked at: this is done for all messages of a pull.
    """
    first = positions[0]
    heads = [_unpack_identity(view, position - first) for position in positions]
    if heads == list(zip(sizes, repeat(MAGIC_V1), positions)):
        return True
    return all(
        is_sound(view, position - first, size, position)
        for position, size in zip(positions, sizes, strict=True)
    )


class FoundDamages:
    """What readers stumbled over since the start: logged once, and shown to the doctor."""

    def __init__(self) -> None:
        self.by_queue: dict[tuple[str, int], tuple[int, StoreDamaged]] = {}

    def note(self, queue: ConsumeQueue, queue_offset: int, log_position: int) -> StoreDamaged:
        """The error for a message that cannot be delivered."""
        error = StoreDamaged(
            f"message {queue_offset} of topic {queue.topic!r}, queue {queue.queue_id}, cannot be "
            f"read: {queue.directory} points to log position {log_position}, where it is not",
            hint="penstock store verify DIR shows whether queue or log is damaged. Stop the broker "
            "and rebuild the queue with penstock store repair DIR; or pass the message: penstock "
            f"group reset GROUP --topic {queue.topic} --queue BROKER:{queue.queue_id} "
            f"--to {queue_offset + 1}",
        )
        known = self.by_queue.get(queue.key)
        if known is None or known[0] != queue_offset:
            if len(self.by_queue) < _MAX_DAMAGES:
                self.by_queue[queue.key] = (queue_offset, error)
            log.error("store is damaged error=%s", error)
        return error
