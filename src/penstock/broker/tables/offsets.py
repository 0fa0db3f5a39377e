"""Committed offsets of groups: the table that is saved in ``config/consumerOffset.json``.

A commit overwrites the earlier one, also with a smaller number: RocketMQ's clients rewind that way.
While a reset waits for the next pull of its queue, commits are accepted and ignored, and a query
returns the reset.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from penstock.protocol.bodies.codec import decode_body, encode_state
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.offsets import ConsumerOffsetTable

log = logging.getLogger(__name__)

_COMMITS_PER_VERSION = 500
_ENTRIES_PER_STEP = 1024
_SEPARATOR = "@"

QueueOffsets = dict[int, int]


class _Unflushed(NamedTuple):
    """A commit that relies on a record which is not on the disk yet."""

    log_end: int
    key: str
    queue_id: int
    before: int | None


class Offsets:
    """Committed, pulled and pending offsets of all groups."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], int],
        changed: Callable[[], None] = lambda: None,
        flushed_position: Callable[[], int] = lambda: 0,
    ) -> None:
        """``flushed_position`` is how much of the log is on the disk."""
        self._now_ms = now_ms
        self._flushed_position = flushed_position
        self._unflushed: deque[_Unflushed] = deque()
        self.journal_position: int | None = 0
        """The log position up to which a loaded file takes pop consumption into account; None:
        another broker wrote the file, and what it says is all that counts."""
        self.journal_end: Callable[[], int] = lambda: 0
        """The log position after the newest record of pop consumption; the journal sets it."""
        self._changed = changed
        self._committed: dict[str, QueueOffsets] = {}
        self._pulled: dict[str, QueueOffsets] = {}
        self._resets: dict[str, QueueOffsets] = {}
        self._moved_at: dict[str, dict[int, int]] = {}
        """Log positions up to which pops say nothing any more: the group was moved then."""
        self._version = DataVersion(0, now_ms(), 0)
        self._commits = 0

    # Committed offsets

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset that a query returns: a pending reset, else the last commit, else None."""
        key = _key(topic, group)
        reset = self._resets.get(key)
        if reset and queue_id in reset:
            return reset[queue_id]
        queues = self._committed.get(key)
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int, source: str) -> None:
        """Overwrite a group's offset, unless a reset is pending; -1 has no effect."""
        if offset < 0:
            return
        key = _key(topic, group)
        reset = self._resets.get(key)
        if reset and queue_id in reset:
            return
        queues = self._committed.get(key)
        if queues is None:
            queues = self._committed[key] = {}
        before = queues.get(queue_id, -1)
        if offset < before:
            log.warning(
                "offset moved back group=%s topic=%s queue=%d from=%d to=%d client=%s",
                group, topic, queue_id, before, offset, source,
            )  # fmt: skip
            self._forget_pops(key, queue_id)
        if offset != before:
            queues[queue_id] = offset
            self._note_commit()

    def commit_after_flush(
        self, group: str, topic: str, queue_id: int, offset: int, log_end: int
    ) -> None:
        """Commit now, but save it only when the log is on the disk up to ``log_end``.

        Else a power failure could leave an offset that passes messages, without the record
        that says what became of them.
        """
        before = self._committed.get(_key(topic, group), {}).get(queue_id)
        self.commit(group, topic, queue_id, offset, "pop")
        if self._pulled:
            self._forget_pull(_key(topic, group), queue_id)
        self._drop_flushed()
        self._unflushed.append(_Unflushed(log_end, _key(topic, group), queue_id, before))

    def take_back(self, group: str, topic: str, queue_id: int, before: int) -> None:
        """Undo commits whose records could not be written."""
        queues = self._committed.get(_key(topic, group))
        if queues is not None and queue_id in queues:
            queues[queue_id] = min(before, queues[queue_id])
            self._note_commit()

    def _drop_flushed(self) -> None:
        flushed, waiting = self._flushed_position(), self._unflushed
        while waiting and waiting[0].log_end <= flushed:
            waiting.popleft()

    @property
    def has_unflushed(self) -> bool:
        """Whether a save would leave the newest commits out."""
        self._drop_flushed()
        return bool(self._unflushed)

    def touch(self) -> None:
        """Save the table again."""
        self._changed()

    def of_group(self, group: str) -> dict[str, QueueOffsets]:
        """The committed offsets of a group by topic and queue."""
        suffix = _SEPARATOR + group
        return {
            key.removesuffix(suffix): dict(queues)
            for key, queues in self._committed.items()
            if key.endswith(suffix) and _split(key)[1] == group
        }

    def topics_by_group(self) -> dict[str, list[str]]:
        """The topics in which each group has committed offsets."""
        topics: dict[str, list[str]] = {}
        for topic, group in map(_split, self._committed):
            topics.setdefault(group, []).append(topic)
        return topics

    def groups_of_topic(self, topic: str) -> list[str]:
        """The groups with committed offsets in a topic."""
        return [group for name, group in map(_split, self._committed) if name == topic]

    def of_topic(self, group: str, topic: str) -> QueueOffsets:
        """Queue to offset of one group in one topic."""
        return dict(self._committed.get(_key(topic, group), {}))

    def entries(self) -> Iterator[tuple[str, str, int, int]]:
        """Topic, group, queue and offset of everything committed."""
        for key, queues in self._committed.items():
            topic, group = _split(key)
            for queue_id, offset in queues.items():
                yield topic, group, queue_id, offset

    # Pulled offsets, for the lag of groups that commit late; not saved.

    def note_pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Remember where the next pull of a group will start."""
        key = _key(topic, group)
        queues = self._pulled.get(key)
        if queues is None:
            queues = self._pulled[key] = {}
        queues[queue_id] = next_offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where a group's next pull will start."""
        return self._pulled.get(_key(topic, group), {}).get(queue_id)

    def _forget_pull(self, key: str, queue_id: int) -> None:
        """The group goes on elsewhere than its last pull said."""
        queues = self._pulled.get(key)
        if queues is not None:
            queues.pop(queue_id, None)

    # Resets

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Move a group; its next pull of the queue gets the new offset."""
        key = _key(topic, group)
        self._forget_pops(key, queue_id)
        self._forget_pull(key, queue_id)
        self._resets.setdefault(key, {})[queue_id] = offset
        self._committed.setdefault(key, {})[queue_id] = offset
        self._note_commit()

    def _forget_pops(self, key: str, queue_id: int) -> None:
        """The group goes on elsewhere, also after a restart: earlier pops do not count."""
        if self._unflushed:
            self._unflushed = deque(
                one for one in self._unflushed if (one.key, one.queue_id) != (key, queue_id)
            )
        position = self.journal_end()
        if position > self._flushed_position():
            self._moved_at.setdefault(key, {})[queue_id] = position

    def reset_position(self, group: str, topic: str, queue_id: int) -> int:
        """The log position before which pops of a queue are void."""
        return self._moved_at.get(_key(topic, group), {}).get(queue_id, 0)

    def note_journal_read(self) -> None:
        """The journal was read: what is appended now may have the place of what was lost."""
        self._moved_at.clear()

    def restore(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Move a group to where the journal says it is, at the start."""
        queues = self._committed.setdefault(_key(topic, group), {})
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._note_commit()

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The pending reset of a queue, which is removed."""
        if not self._resets:
            return None
        key = _key(topic, group)
        queues = self._resets.get(key)
        if not queues or queue_id not in queues:
            return None
        offset = queues.pop(queue_id)
        if not queues:
            del self._resets[key]
        return offset

    # Removing

    def remove_topic(self, topic: str) -> None:
        """Remove the offsets of a deleted topic."""
        self._remove(lambda name, group: name == topic)

    def remove_group(self, group: str) -> None:
        """Remove the offsets of a deleted group."""
        self._remove(lambda name, owner: owner == group)

    def clone(self, source: str, target: str, topic: str) -> None:
        """Give one group the offsets of another."""
        queues = self._committed.get(_key(topic, source))
        if queues:
            self._committed[_key(topic, target)] = dict(queues)
            self._note_commit()

    def clamp(self, end_of: Callable[[str, int], int]) -> list[str]:
        """Move offsets beyond the end of their queue back to it; return descriptions of them.

        After a crash that lost messages a saved offset may be beyond the end of its queue. The
        group would then skip as many new messages.
        """
        moved: list[str] = []
        for topic, group, queue_id, offset in list(self.entries()):
            end = end_of(topic, queue_id)
            if offset > end:
                self._committed[_key(topic, group)][queue_id] = end
                moved.append(f"{topic}@{group}:{queue_id} {offset}->{end}")
        if moved:
            self._changed()
        return moved

    # Saving

    def table(self) -> ConsumerOffsetTable:
        """The table for answers and for the file."""
        return ConsumerOffsetTable(
            {key: dict(queues) for key, queues in self._committed.items()}, self._version
        )

    def full_table(self) -> Generator[None, None, ConsumerOffsetTable]:
        """The table with what 5.x adds in answers: topics by group and pulled offsets.

        Copied in steps, because it may be large; offsets of different steps are of different times.
        """
        committed: dict[str, QueueOffsets] = {}
        pulled: dict[str, QueueOffsets] = {}
        topics: dict[str, list[str]] = {}
        for table, copy in ((self._committed, committed), (self._pulled, pulled)):
            size = 0
            for key in list(table):
                if size >= _ENTRIES_PER_STEP:
                    size = 0
                    yield
                queues = table.get(key)
                if queues is None:
                    continue  # Removed meanwhile.
                size += 1 + len(queues)
                copy[key] = dict(queues)
                if copy is committed:
                    topic, group = _split(key)
                    topics.setdefault(group, []).append(topic)
        return ConsumerOffsetTable(
            committed,
            self._version,
            {group: tuple(names) for group, names in topics.items()},
            pulled,
        )

    def dump(self) -> bytes:
        """The content of ``consumerOffset.json``."""
        table = self.table()
        self._drop_flushed()
        for _, key, queue_id, before in reversed(self._unflushed):
            queues = table.offset_table.get(key, {})
            if before is None:
                queues.pop(queue_id, None)
            else:
                queues[queue_id] = before
        flushed = self._flushed_position()
        return encode_state(
            dataclasses.replace(
                table, penstock_pop=flushed, penstock_resets=self._void_after(flushed) or None
            )
        )

    def _void_after(self, flushed: int) -> dict[str, dict[int, int]]:
        """The positions that matter: the file takes into account what is flushed."""
        self._moved_at = {
            key: left
            for key, queues in self._moved_at.items()
            if (left := {number: at for number, at in queues.items() if at > flushed})
        }
        return self._moved_at

    def load(self, data: bytes) -> None:
        """Load the content of a file that ``dump`` or Apache RocketMQ wrote."""
        table = decode_body(ConsumerOffsetTable, data)
        self._committed = {}
        for key, queues in table.offset_table.items():
            if all(_split(key)):
                self._committed[key] = dict(queues)
            else:
                log.warning("offsets without topic or group are left out key=%r", key)
        self._version = table.data_version or self._version
        self.journal_position = table.penstock_pop
        self._moved_at = {
            key: dict(queues) for key, queues in (table.penstock_resets or {}).items()
        }

    def _note_commit(self) -> None:
        self._changed()
        self._commits += 1
        if self._commits % _COMMITS_PER_VERSION == 0:
            self._version = self._version.following(self._now_ms())

    def _remove(self, matches: Callable[[str, str], bool]) -> None:
        for table in (self._committed, self._pulled, self._resets, self._moved_at):
            for key in [key for key in table if matches(*_split(key))]:
                del table[key]
        # Else the next save would bring one back, for a topic or group that is made anew.
        self._unflushed = deque(one for one in self._unflushed if not matches(*_split(one.key)))
        self._changed()


def _key(topic: str, group: str) -> str:
    return f"{topic}{_SEPARATOR}{group}"


def _split(key: str) -> tuple[str, str]:
    # Names of topics and groups cannot contain the separator.
    topic, _, group = key.partition(_SEPARATOR)
    return topic, group
