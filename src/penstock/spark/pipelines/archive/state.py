"""The content and progress of an archive. Plain data: no files, no Spark.

    DIR/day=2026-11-16/part-000000000007-000.parquet     the rows, for any reader of Parquet
    DIR/_penstock/state-000000000007.json                this module's `State`, one file a commit
    DIR/_penstock/staging/...                            rows that no state names yet

A state is committed by creating its file. It names the files to move into place and those to
delete; both are done after the commit, and repeated harmlessly when the archive is opened next. So
a run may be killed at any point: before the commit nothing of it counts, after it everything does.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.admin.reports import QueueRange
from penstock.errors import InvalidArgument, NotFound, StoreDamaged
from penstock.spark.pipelines.spans import Queue, Span

FORMAT = 1
PRIVATE = "_penstock"
STAGING = f"{PRIVATE}/staging"
STATES_KEPT = 3
_LAST_EPOCH = (1 << 63) - 1
_STATE_NAME = re.compile(r"state-(\d{12})\.json")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file in place; times are store times of its rows, in ms."""

    path: str
    day: str
    rows: int
    bytes: int
    from_ms: int
    to_ms: int
    spans: tuple[Span, ...] = ()
    """The first and last offset of each queue; empty in states that earlier programs wrote."""


@dataclass(frozen=True, slots=True)
class State:
    """An archive after ``version`` commits."""

    topic: str
    version: int = 0
    next_offsets: Mapping[Queue, int] = dataclasses.field(default_factory=dict)
    gaps: tuple[Span, ...] = ()
    """Messages that were gone before they could be archived."""
    files: tuple[DataFile, ...] = ()
    moves: tuple[tuple[str, str], ...] = ()
    """The file moves of the last commit: from, to."""
    deletes: tuple[str, ...] = ()
    """The files that the last commit replaced."""
    epochs: Mapping[Queue, int] = dataclasses.field(default_factory=dict)
    """When the topic was last deleted before it was archived, by queue: a log position
    (`protocol.extensions.TOPIC_EPOCH`). Queues that earlier programs archived have none."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def with_epochs(self, found: Mapping[Queue, int]) -> State:
        """The same, with the epochs that the archived offsets are of; the next commit keeps it."""
        largest = {queue: max(epoch, self.epochs.get(queue, 0)) for queue, epoch in found.items()}
        return dataclasses.replace(self, epochs={**self.epochs, **largest})

    def after_chunk(
        self,
        spans: Iterable[Span],
        files: Sequence[DataFile],
        moves: Sequence[tuple[str, str]],
        gaps: Iterable[Span] = (),
    ) -> State:
        """The next state: some more messages of each queue."""
        reached = dict(self.next_offsets)
        for span in spans:
            reached[span.queue] = span.end
        return dataclasses.replace(
            self,
            version=self.version + 1,
            next_offsets=reached,
            gaps=(*self.gaps, *gaps),
            files=(*self.files, *files),
            moves=tuple(moves),
            deletes=(),
        )

    def after_compaction(
        self, old: Sequence[DataFile], new: Sequence[DataFile], moves: Sequence[tuple[str, str]]
    ) -> State:
        """The next state: the same rows in fewer files."""
        gone = {file.path for file in old}
        kept = tuple(file for file in self.files if file.path not in gone)
        return dataclasses.replace(
            self,
            version=self.version + 1,
            files=(*kept, *new),
            moves=tuple(moves),
            deletes=tuple(sorted(gone)),
        )


def state_name(version: int) -> str:
    """The path of a state's file."""
    return f"{PRIVATE}/state-{version:012d}.json"


def state_versions(names: Iterable[str]) -> list[int]:
    """The versions among the names of a directory, oldest first."""
    return sorted(int(found[1]) for name in names if (found := _STATE_NAME.fullmatch(name)))


def to_json(state: State) -> bytes:
    """A state as the bytes of its file."""
    document = {
        "format": FORMAT,
        "topic": state.topic,
        "version": state.version,
        "next_offsets": _nested(state.next_offsets),
        "epochs": _nested(state.epochs),
        "gaps": [dataclasses.asdict(gap) for gap in state.gaps],
        "files": [dataclasses.asdict(file) for file in state.files],
        "moves": state.moves,
        "deletes": state.deletes,
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def from_json(data: bytes, where: str) -> State:
    """A state from the bytes of its file; ``where`` is for the error."""
    try:
        document = orjson.loads(data)
        if document["format"] != FORMAT:
            raise InvalidArgument(
                f"the archive {where} has format {document['format']!r}",
                expected=f"format {FORMAT}",
                hint="use the release that wrote it",
            )
        return State(
            topic=str(document["topic"]),
            version=int(document["version"]),
            next_offsets=_by_queue(document["next_offsets"]),
            epochs=_by_queue(document.get("epochs", {})),
            gaps=tuple(Span(**gap) for gap in document["gaps"]),
            files=tuple(_file(file) for file in document["files"]),
            moves=tuple((source, target) for source, target in document["moves"]),
            deletes=tuple(document["deletes"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise StoreDamaged(
            f"the archive state {where} cannot be read: {error!r}",
            expected="a file that penstock wrote",
            hint="restore it, or the state before it, from a copy",
        ) from error


def _nested(numbers: Mapping[Queue, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (broker, queue_id), number in sorted(numbers.items()):
        nested.setdefault(broker, {})[str(queue_id)] = number
    return nested


def _by_queue(document: dict[str, dict[str, Any]]) -> dict[Queue, int]:
    return {
        (broker, int(queue_id)): int(number)
        for broker, queues in document.items()
        for queue_id, number in queues.items()
    }


def _file(document: dict[str, Any]) -> DataFile:
    spans = tuple(Span(**span) for span in document.pop("spans", ()))
    return DataFile(**document, spans=spans)


@dataclass(frozen=True, slots=True)
class Plan:
    """The messages to read, and those that are gone."""

    spans: tuple[Span, ...]
    gaps: tuple[Span, ...]

    @property
    def count(self) -> int:
        return sum(span.count for span in self.spans)


def plan(
    state: State,
    ranges: Iterable[QueueRange],
    *,
    epochs: Mapping[Queue, int] | None = None,
    fail_on_data_loss: bool = True,
) -> Plan:
    """The messages of the queues that are not archived yet; ``epochs`` are those of now."""
    spans, gaps = [], []
    for held in sorted(ranges, key=lambda r: (r.broker_name, r.queue_id)):
        queue = held.broker_name, held.queue_id
        reached = state.next_offsets.get(queue)
        where = f"queue {held.queue_id} of topic {state.topic!r} on broker {held.broker_name!r}"
        start = held.min_offset
        if reached is not None:
            if (epochs or {}).get(queue, 0) > state.epochs.get(queue, _LAST_EPOCH):
                raise InvalidArgument(
                    f"topic {state.topic!r} was deleted and created again since {where} was "
                    f"archived up to offset {reached}",
                    expected="the topic this archive was made from",
                    hint="archive it to a new directory",
                )
            if reached > held.max_offset:
                raise InvalidArgument(
                    f"the archive holds {where} up to offset {reached}, the queue ends at "
                    f"{held.max_offset}",
                    expected="the topic this archive was made from",
                    hint="the topic was deleted and created again: archive it to a new directory",
                )
            if reached < held.min_offset:
                if fail_on_data_loss:
                    raise NotFound(
                        f"{held.min_offset - reached} messages from offset {reached} of {where} "
                        f"were deleted before they were archived",
                        expected="every message since the last run",
                        hint="run again with fail_on_data_loss=False (--allow-gaps) to record the "
                        "gap and continue, and archive more often than the broker deletes",
                    )
                gaps.append(Span(*queue, reached, held.min_offset))
            start = max(reached, held.min_offset)
        if start < held.max_offset:
            spans.append(Span(*queue, start, held.max_offset))
    return Plan(tuple(spans), tuple(gaps))


def compactions(
    files: Iterable[DataFile], *, target_bytes: int, newest_after: int
) -> list[tuple[DataFile, ...]]:
    """The groups of files to merge, by day.

    A past day gets as few files as its size allows. The newest day still grows: it waits until
    it has ``newest_after`` small files, so that its rows are not rewritten in every run.
    """
    days: dict[str, list[DataFile]] = {}
    for file in files:
        days.setdefault(file.day, []).append(file)
    newest = max(days, default="")
    chosen = []
    for day in sorted(days):
        small = [file for file in days[day] if file.bytes < target_bytes // 2]
        if len(small) >= (newest_after if day == newest else 2):
            chosen.append(tuple(small))
    return chosen
