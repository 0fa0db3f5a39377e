"""Where each queue ended at a clean stop, so that the next start notices what is gone.

After a clean stop queues are loaded on first use: ten thousand directories are not read to serve
one of them. A queue whose last file was lost meanwhile would look like a shorter one, or like none,
and give its offsets a second time. So a clean stop leaves ``penstock.queues``, which RocketMQ
ignores, with the end and the last entry of each queue:

    {"orders": {"0": [end, log_position, size], ...}, ...}

The note of the stop has the file's checksum; without it the file counts for nothing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from penstock.store.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from penstock.store.files import FileLayer
from penstock.store.note import StoreState, replace_file
from penstock.store.segments import segment_path

QUEUE_ENDS_NAME: Final = "penstock.queues"
_MAX_BYTES: Final = 256 << 20


class QueueEnd(NamedTuple):
    """The end of a queue, and what its last entry says."""

    end: int
    log_position: int
    size: int


QueueEnds = dict[tuple[str, int], QueueEnd]


def load_queue_ends(files: FileLayer, root: str, state: StoreState) -> QueueEnds | None:
    """What the clean stop that ``state`` is the note of said about queues; None if nothing."""
    path = f"{root}/{QUEUE_ENDS_NAME}"
    entry = files.stat(path)
    if not state.clean or entry is None or entry.size > _MAX_BYTES:
        return None
    descriptor = files.open(path)
    try:
        data = files.read(descriptor, entry.size, 0)
    finally:
        files.close(descriptor)
    if zlib.crc32(data) != state.queue_ends:
        return None
    raw: dict[str, dict[str, Any]] = json.loads(data)
    return {
        (topic, int(number)): QueueEnd(*numbers)
        for topic, queues in raw.items()
        for number, numbers in queues.items()
    }


def save_queue_ends(files: FileLayer, root: str, ends: QueueEnds) -> int:
    """Write the ends of all queues; returns the checksum for the note."""
    raw: dict[str, dict[str, QueueEnd]] = {}
    for (topic, queue_id), end in sorted(ends.items()):
        raw.setdefault(topic, {})[str(queue_id)] = end
    data = json.dumps(raw, separators=(",", ":")).encode()
    replace_file(files, root, QUEUE_ENDS_NAME, data)
    return zlib.crc32(data)


def end_of(queue: ConsumeQueue) -> QueueEnd:
    """Where a loaded queue ends."""
    last = queue.entry(queue.max_offset - 1) if queue.max_offset else None
    return QueueEnd(queue.max_offset, *((-1, 0) if last is None else last[:2]))


def changed_queues(
    files: FileLayer, directory: str, segment_bytes: int, ends: QueueEnds
) -> Iterable[tuple[str, int]]:
    """Queues whose last entry is not in their files any more as a clean stop left it."""
    for (topic, queue_id), (end, log_position, size) in ends.items():
        if log_position < 0:
            continue  # nothing but a place: it had no entry
        at = (end - 1) * UNIT_BYTES
        base = at - at % segment_bytes
        try:
            descriptor = files.open(segment_path(f"{directory}/{topic}/{queue_id}", base))
        except (FileNotFoundError, NotADirectoryError):
            yield topic, queue_id
            continue
        try:
            data = files.read(descriptor, 2 * UNIT_BYTES, at - base)
        finally:
            files.close(descriptor)
        is_last = len(data) < 2 * UNIT_BYTES or not any(data[UNIT_BYTES:])
        if (
            len(data) < UNIT_BYTES
            or UNIT.unpack_from(data)[:2] != (log_position, size)
            or not (is_last)
        ):
            yield topic, queue_id
