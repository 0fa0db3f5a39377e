"""Queues against the log: each record at its offset, each entry about a record.

A topic that was deleted leaves records without a queue, or with offsets that younger records took.
Our note knows all such topics as long as no other program wrote to the store. Without that, what
may be a deleted topic is no damage; only a store without any queue at all is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.model.names import SCHEDULE_TOPIC, Property
from penstock.model.properties import get_property
from penstock.protocol.filters.tags import tag_code
from penstock.store import layout
from penstock.store.consume_queue import FILLER, UNIT, UNIT_BYTES
from penstock.store.files import FileLayer
from penstock.store.log_scan import Scanned
from penstock.store.note import StoreState, load_state
from penstock.store.segments import SegmentMaps, segment_path, usual_size
from penstock.store.tools.log_walk import Damage, LogWalk, segment_files

_OPEN_FILES = 256
_MAX_CACHED_TAGS = 4096
_MAX_NAMED = 16
_NO_END = 1 << 63
_FILLER_SIZE = UNIT.unpack(FILLER)[1]
_TAGS = Property.TAGS.encode()
# At or below this a tags code is an address in an extended queue file, not a hash.
_LAST_EXTENDED_ADDRESS = -(1 << 31) - 1


class _Suspect(NamedTuple):
    """What seems wrong with a queue, unless it turns out that its topic was deleted meanwhile."""

    file_base: int | None
    """None to blame the record, whose log position follows, instead of a file of the queue."""
    position: int
    what: str


class _Missing:
    """A queue without a directory, and what the log has of it."""

    __slots__ = ("count", "first_offset", "last_offset")

    def __init__(self, offset: int) -> None:
        self.count = 0
        self.first_offset = self.last_offset = offset


class _Queue:
    """What is known of one queue while the log is walked."""

    __slots__ = (
        "bases",
        "damage",
        "directory",
        "last_offset",
        "matched",
        "misses",
        "offset_before",
        "topic",
    )

    def __init__(self, topic: str, directory: str, bases: frozenset[int]) -> None:
        self.topic = topic
        self.directory = directory
        self.bases = bases
        self.matched = 0
        self.last_offset = self.offset_before = -1
        self.misses = 0
        self.damage: _Suspect | None = None


class QueueCheck:
    """All queues of a store; ask it about each record, then ``finish`` it."""

    def __init__(self, files: FileLayer, root: str, state: StoreState | None) -> None:
        self._files = files
        self._store_root = root
        self._root = f"{root}/{layout.CONSUME_QUEUE}"
        self._maps = SegmentMaps(files, _OPEN_FILES)
        self._tag_codes: dict[bytes, int] = {}
        self._deleted = {} if state is None else state.deleted_topics
        self._knows_deleted = state is not None and state.is_all_ours
        self._missing: dict[tuple[str, int], _Missing] = {}
        self.damages: list[Damage] = []
        self.entries = 0
        self._unqueued = 0
        self._unqueued_topics: list[str] = []
        self._pending = 0
        self._replaced = 0
        self._segment_bytes = 0 if state is None else state.sizes.get("consume_queue", 0)
        self._queues = self._find_queues()

    @property
    def count(self) -> int:
        """How many queues there are."""
        return len(self._queues)

    def _find_queues(self) -> dict[tuple[str, int], _Queue]:
        found: list[tuple[str, int, str, list[tuple[int, int]]]] = []
        for topic in sorted(self._files.list_dir(self._root)):
            for queue in sorted(self._files.list_dir(f"{self._root}/{topic.name}")):
                if queue.is_dir and queue.name.isascii() and queue.name.isdigit():
                    directory = f"{self._root}/{topic.name}/{queue.name}"
                    named, _ = segment_files(self._files, directory)
                    sizes = [(base, entry.size) for base, entry in named]
                    found.append((topic.name, int(queue.name), directory, sizes))
        every_size = [size for *_, sizes in found for _, size in sizes if size]
        if not self._segment_bytes and every_size:
            self._segment_bytes = usual_size(every_size)
        return {
            (topic, queue_id): _Queue(topic, directory, self._usable(directory, sizes))
            for topic, queue_id, directory, sizes in found
        }

    def _usable(self, directory: str, sizes: list[tuple[int, int]]) -> frozenset[int]:
        wanted = self._segment_bytes
        bases: list[int] = []
        for number, (base, size) in enumerate(sizes):
            if size != wanted or base % wanted:
                if size or number < len(sizes) - 1:
                    self._report(directory, base, 0, f"{size} bytes, the others have {wanted}")
                continue
            if bases and base != bases[-1] + wanted:
                self._report(directory, base, 0, f"no file between {bases[-1] + wanted} and this")
            bases.append(base)
        return frozenset(bases)

    def _report(self, directory: str, base: int, position: int, what: str) -> None:
        self.damages.append(Damage(segment_path(directory, base), position, what))

    def check(self, record: Scanned, *, is_due: bool) -> None:
        """Look at a record's entry; ``is_due`` if it must be there."""
        if record.log_position < self._deleted.get(record.topic, 0):
            self._replaced += 1
            return
        queue = self._queues.get((record.topic, record.queue_id))
        if queue is None:
            if is_due:
                self._note_missing(record)
            else:
                self._pending += 1
            return
        offset = record.queue_offset
        if offset <= queue.last_offset and offset != queue.offset_before + 2:
            # Offsets start again, and not just because the last record's was wrong: the topic was
            # deleted, and what came before has no entries.
            self._replaced += queue.misses
            queue.misses, queue.damage = 0, None
        queue.offset_before, queue.last_offset = queue.last_offset, offset
        at = offset * UNIT_BYTES
        base = at - at % self._segment_bytes
        view = None
        if base in queue.bases:
            view = self._maps.view(segment_path(queue.directory, base), self._segment_bytes)
        position, size, code = (0, 0, 0) if view is None else UNIT.unpack_from(view, at - base)
        if position == record.log_position and size == record.size:
            queue.matched += 1
            if code != self._tags_code(record.properties) and is_due:
                self._check_code(queue, record, base, at, code)
        elif not is_due:
            self._pending += 1
        elif size and position > record.log_position and not self._knows_deleted:
            # The offset belongs to a younger record, which `finish` makes sure of.
            self._replaced += 1
        else:
            queue.misses += 1
            if queue.damage is None:
                queue.damage = self._miss(record, queue, base, at, position, size)

    def _note_missing(self, record: Scanned) -> None:
        place = (record.topic, record.queue_id)
        missing = self._missing.get(place)
        if missing is None:
            missing = self._missing[place] = _Missing(record.queue_offset)
        missing.count += 1
        missing.last_offset = record.queue_offset

    def _miss(
        self, record: Scanned, queue: _Queue, base: int, at: int, position: int, size: int
    ) -> _Suspect:
        place = f"the record at {record.log_position} has {record.size} bytes"
        if base not in queue.bases:
            what = f"queue offset {record.queue_offset}, for which {queue.directory} has no file"
            return _Suspect(None, record.log_position, what)
        has = f"points to {position}, {size} bytes" if size else "is missing"
        return _Suspect(base, at - base, f"entry {record.queue_offset} {has}; {place}")

    def _tags_code(self, properties: bytes) -> int:
        tag = get_property(properties, _TAGS) or b""
        code = self._tag_codes.get(tag)
        if code is None:
            if len(self._tag_codes) >= _MAX_CACHED_TAGS:
                self._tag_codes.clear()
            code = self._tag_codes[tag] = tag_code(tag.decode("utf-8", "replace"))
        return code

    def _check_code(self, queue: _Queue, record: Scanned, base: int, at: int, code: int) -> None:
        # A delayed message has its delivery time there.
        if queue.topic == SCHEDULE_TOPIC or code <= _LAST_EXTENDED_ADDRESS:
            return
        if queue.damage is None:
            what = (
                f"entry {record.queue_offset} has tags code {code}, its message "
                f"{self._tags_code(record.properties)}: filters miss it"
            )
            queue.damage = _Suspect(base, at - base, what)

    def finish(self, walk: LogWalk, *, is_clean: bool) -> None:
        """Look for entries about nothing: those that no record of the walk has claimed."""
        log_start = walk.start
        # A live store goes on; after a clean stop nothing points behind the end.
        log_end = _NO_END if is_clean else walk.end
        deleted_meanwhile = self._deleted_meanwhile()
        self._report_missing(deleted_meanwhile)
        for queue in self._queues.values():
            claimed = 0
            for _, view in self._views(queue):
                # Most of a queue's last file is zeros.
                used = len(bytes(view).rstrip(b"\0")) + UNIT_BYTES - 1
                for position, size, _ in UNIT.iter_unpack(view[: used - used % UNIT_BYTES]):
                    if size > 0 and size != _FILLER_SIZE:
                        self.entries += 1
                        claimed += log_start <= position < log_end
            if queue.topic in deleted_meanwhile:
                self._replaced += queue.misses
                continue
            suspect = queue.damage
            if suspect is not None and suspect.file_base is None:
                self.damages.append(Damage(*walk.place(suspect.position), suspect.what))
            elif suspect is not None and suspect.file_base is not None:
                self._report(queue.directory, suspect.file_base, suspect.position, suspect.what)
            elif claimed != queue.matched:
                self._find_stray(queue, walk, is_clean=is_clean)

    def _deleted_meanwhile(self) -> set[str]:
        """Topics of a live store that were deleted while its log was walked."""
        state = load_state(self._files, self._store_root)
        now = {} if state is None else state.deleted_topics
        return {topic for topic, end in now.items() if self._deleted.get(topic) != end}

    def _report_missing(self, deleted_meanwhile: set[str]) -> None:
        """Report missing queues by topic: ten thousand lines would not be read."""
        by_topic: dict[str, list[tuple[int, _Missing]]] = {}
        for (topic, queue_id), missing in sorted(self._missing.items()):
            by_topic.setdefault(topic, []).append((queue_id, missing))
        for topic, queues in by_topic.items():
            count = sum(missing.count for _, missing in queues)
            if topic in deleted_meanwhile:
                self._replaced += count
            elif not self._knows_deleted and self._queues:
                self._unqueued += count
                self._unqueued_topics.append(topic)
            else:
                self.damages.append(self._missing_damage(topic, queues, count))

    def _missing_damage(self, topic: str, queues: list[tuple[int, _Missing]], count: int) -> Damage:
        shown = ", ".join(
            f"{queue_id} (offsets {missing.first_offset} to {missing.last_offset})"
            for queue_id, missing in queues[:_MAX_NAMED]
        )
        more = f" and {len(queues) - _MAX_NAMED} more" if len(queues) > _MAX_NAMED else ""
        what = (
            f"topic {topic} has no directory for queue {shown}{more}: "
            f"{count} messages of the log cannot be read"
        )
        directory = f"{self._root}/{topic}"
        return Damage(f"{directory}/{queues[0][0]}" if len(queues) == 1 else directory, 0, what)

    def _views(self, queue: _Queue) -> Iterator[tuple[int, memoryview]]:
        for base in sorted(queue.bases):
            view = self._maps.view(segment_path(queue.directory, base), self._segment_bytes)
            if view is not None:
                yield base, view

    def _find_stray(self, queue: _Queue, walk: LogWalk, *, is_clean: bool) -> None:
        for base, view in self._views(queue):
            for number, (position, size, _) in enumerate(UNIT.iter_unpack(view)):
                if size <= 0 or size == _FILLER_SIZE or position < walk.start:
                    continue
                record = walk.record_at(position)
                if record is not None and len(record) == size:
                    continue
                if not is_clean:
                    self._pending += 1
                    continue
                offset = base // UNIT_BYTES + number
                self._report(
                    queue.directory, base, number * UNIT_BYTES,
                    f"entry {offset} points to {position}, {size} bytes, where no such record is",
                )  # fmt: skip
                return

    def notes(self, *, is_log_whole: bool) -> list[str]:
        """What was seen that is no damage."""
        notes: list[str] = []
        if self._pending:
            notes.append(f"queue entries to complete: {self._pending}; opening the store does it")
        if self._unqueued:
            topics = self._unqueued_topics
            named = ", ".join(topics[:_MAX_NAMED]) + (", ..." if len(topics) > _MAX_NAMED else "")
            notes.append(
                f"{self._unqueued} records belong to queues that are gone, of topics {named}: "
                "deleted by another program, or lost"
            )
        if self._replaced:
            notes.append(f"{self._replaced} records are older than their topic, which was deleted")
        if self.damages and is_log_whole:
            notes.append(
                "queues are made from the log: stop the broker, and rebuild all of them with "
                f"penstock store repair {self._store_root}"
            )
        return notes
