"""Orderly pop: the last batch of each queue, ``config/consumerOrderInfo.json``.

A queue is blocked while a message of its last batch is neither acknowledged nor visible again. The
group's committed offset is the first message of the batch that is not acknowledged, so nothing else
has to be stored for a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from penstock.protocol.bodies.codec import decode_body, encode_state
from penstock.protocol.bodies.pop import OrderInfo, OrderInfoTable

log = logging.getLogger(__name__)

ORDERS_FILE = "consumerOrderInfo.json"
_OLDEST_MS = 24 * 3_600_000


class _Batch:
    """The messages of one queue that were handed out last."""

    __slots__ = ("attempt_id", "counts", "done", "invisible_ms", "noted", "offsets", "pop_time",
                 "visible_at")  # fmt: skip

    def __init__(
        self,
        offsets: Sequence[int],
        pop_time: int,
        invisible_ms: int,
        attempt_id: str | None,
        counts: dict[int, int],
        noted: int,
    ) -> None:
        self.offsets = tuple(offsets)
        self.pop_time = pop_time
        self.invisible_ms = invisible_ms
        self.attempt_id = attempt_id
        self.counts = counts
        """How often a message was handed out before, where that is above 0."""
        self.noted = noted
        self.done = 0
        """Bit i: message i is acknowledged."""
        self.visible_at: dict[int, int] = {}
        """When a message becomes visible whose time was changed."""

    def open_until(self) -> int:
        """When all messages are visible again; 0 if all are acknowledged."""
        usual = self.pop_time + self.invisible_ms
        return max(
            (
                self.visible_at.get(offset, usual)
                for i, offset in enumerate(self.offsets)
                if not self.done >> i & 1
            ),
            default=0,
        )

    def next_offset(self) -> int:
        """The first message that is not acknowledged, or the one after the last."""
        for i, offset in enumerate(self.offsets):
            if not self.done >> i & 1:
                return offset
        return self.offsets[-1] + 1


class OrderlyAck(NamedTuple):
    """What an acknowledgement leads to."""

    next_offset: int | None
    """Where the group stands now; None: the acknowledgement was of an earlier delivery."""
    is_free: bool
    """Whether the queue is not blocked any more."""
    is_new: bool = False
    """Whether the message was not acknowledged before."""


class Orders:
    """The last batches of all groups."""

    def __init__(
        self, *, now_ms: Callable[[], int], changed: Callable[[], None] = lambda: None
    ) -> None:
        self._now_ms = now_ms
        self._changed = changed
        self._table: dict[str, dict[int, _Batch]] = {}
        self.is_known: Callable[[str, str, int], bool] = lambda topic, group, queue_id: True
        """Whether a queue exists; entries of others are not saved."""

    def _batch(self, topic: str, group: str, queue_id: int) -> _Batch | None:
        return self._table.get(f"{topic}@{group}", {}).get(queue_id)

    def is_blocked(
        self, topic: str, group: str, queue_id: int, attempt_id: str | None, now_ms: int
    ) -> bool:
        """Whether the queue's last batch is not finished; a repeated attempt may have it again."""
        batch = self._batch(topic, group, queue_id)
        if batch is None or (attempt_id is not None and batch.attempt_id == attempt_id):
            return False
        return batch.open_until() > now_ms

    def blocked_until(self, topic: str, group: str, queue_id: int) -> int:
        """When the queue is free at the latest; 0: it is free."""
        batch = self._batch(topic, group, queue_id)
        return 0 if batch is None else batch.open_until()

    def used_up(
        self, topic: str, group: str, queue_id: int, attempt_id: str | None, max_times: int
    ) -> dict[int, int]:
        """Messages of the last batch that were handed out too often and are not acknowledged.

        With how often that was. A repeated attempt is none: it gets the batch as it was.
        """
        batch = self._batch(topic, group, queue_id)
        if batch is None or (attempt_id is not None and batch.attempt_id == attempt_id):
            return {}
        return {
            offset: times
            for i, offset in enumerate(batch.offsets)
            if (times := batch.counts.get(offset, 0) + 1) > max_times and not batch.done >> i & 1
        }

    def deliver(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offsets: Sequence[int],
        *,
        pop_time: int,
        invisible_ms: int,
        attempt_id: str | None,
    ) -> Mapping[int, int]:
        """Note a batch; how often its messages were handed out before, where that is above 0."""
        counts: dict[int, int] = {}
        before = self._batch(topic, group, queue_id)
        if before is not None:
            if attempt_id is not None and before.attempt_id == attempt_id:
                counts = dict(before.counts)
            else:
                again = set(before.offsets)
                counts = {
                    offset: before.counts.get(offset, 0) + 1
                    for offset in offsets
                    if offset in again
                }
        self._table.setdefault(f"{topic}@{group}", {})[queue_id] = _Batch(
            offsets, pop_time, invisible_ms, attempt_id, counts, self._now_ms()
        )
        self._changed()
        return counts

    def acknowledge(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time: int
    ) -> OrderlyAck | None:
        """End a message of the last batch; None if the batch does not have it."""
        batch = self._batch(topic, group, queue_id)
        if batch is None or batch.pop_time != pop_time:
            # Without the batch it is unknown whether messages before this one are finished.
            return OrderlyAck(None, False)
        if offset not in batch.offsets:
            return None
        bit = 1 << batch.offsets.index(offset)
        is_new = not batch.done & bit
        if is_new:
            batch.done |= bit
            self._changed()
        return OrderlyAck(batch.next_offset(), not batch.open_until(), is_new)

    def change(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, visible_at: int
    ) -> bool:
        """Let one message of the last batch become visible at another time."""
        batch = self._batch(topic, group, queue_id)
        if batch is None or batch.pop_time != pop_time or offset not in batch.offsets:
            return False
        batch.visible_at[offset] = visible_at
        self._changed()
        return True

    def forget(self, topic: str, group: str, queue_id: int) -> None:
        """Free a queue, as a reset does."""
        queues = self._table.get(f"{topic}@{group}")
        if queues is not None and queues.pop(queue_id, None) is not None:
            self._changed()

    def remove(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Forget a deleted topic or group."""
        for key in list(self._table):
            name, _, owner = key.partition("@")
            if topic in (None, name) and group in (None, owner):
                del self._table[key]
                self._changed()

    def blocked(self) -> list[tuple[str, str, int, int]]:
        """Topic, group, queue and time of all batches that are not finished."""
        return [
            (*_split(key), queue_id, until)
            for key, queues in self._table.items()
            for queue_id, batch in queues.items()
            if (until := batch.open_until())
        ]

    # Saving

    def dump(self) -> bytes:
        """The content of ``consumerOrderInfo.json``."""
        oldest = self._now_ms() - _OLDEST_MS
        table: dict[str, dict[int, OrderInfo]] = {}
        for key, queues in list(self._table.items()):
            topic, group = _split(key)
            for queue_id, batch in list(queues.items()):
                if batch.noted < oldest or not self.is_known(topic, group, queue_id):
                    del queues[queue_id]
            if queues:
                table[key] = {queue_id: _saved(batch) for queue_id, batch in queues.items()}
            else:
                del self._table[key]
        return encode_state(OrderInfoTable(table, sum(map(len, table.values()))))

    def load(self, data: bytes) -> None:
        """Load the content of a file that ``dump`` or Apache RocketMQ wrote."""
        table: dict[str, dict[int, _Batch]] = {}
        for key, queues in decode_body(OrderInfoTable, data).table.items():
            for queue_id, info in queues.items():
                if info.offsets:
                    table.setdefault(key, {})[queue_id] = _loaded(info)
        self._table = table


def _saved(batch: _Batch) -> OrderInfo:
    first, *others = batch.offsets
    return OrderInfo(
        pop_time=batch.pop_time,
        invisible_time=batch.invisible_ms,
        offsets=(first, *(offset - first for offset in others)),
        visible_at=dict(batch.visible_at) or None,
        counts=dict(batch.counts) or None,
        noted=batch.noted,
        done=batch.done,
        attempt_id=batch.attempt_id,
    )


def _loaded(info: OrderInfo) -> _Batch:
    first, *others = info.offsets
    batch = _Batch(
        [first, *(first + step for step in others)],
        info.pop_time,
        info.invisible_time,
        info.attempt_id,
        {offset: count for offset, count in (info.counts or {}).items() if count > 0},
        info.noted,
    )
    batch.done = max(0, info.done)
    batch.visible_at = dict(info.visible_at or {})
    return batch


def _split(key: str) -> tuple[str, str]:
    topic, _, group = key.partition("@")
    return topic, group
