"""Compares staged rows with what was to be archived. Plain data: no files, no Spark.

A message may be missing for two reasons that must not be confused: the broker has deleted it, or
the driver does not see what the executors wrote. Only the first may be recorded as a gap, since an
archive never returns to offsets it has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.admin.reports import QueueRange
from penstock.errors import InvalidArgument, NotFound, StoreDamaged
from penstock.spark.pipelines.spans import Queue, Span


@dataclass(frozen=True, slots=True)
class Staged:
    """A staged file and its content."""

    path: str
    day: str
    bytes: int
    spans: tuple[Span, ...]
    """From the first to the last offset of each queue; there may be fewer rows."""
    queue_rows: tuple[int, ...]
    from_ms: int
    to_ms: int

    @property
    def rows(self) -> int:
        return sum(self.queue_rows)


def check_shared(directory: str, written: int, found: Sequence[Staged]) -> None:
    """Refuse a directory in which the driver does not see what executors write."""
    seen = sum(file.rows for file in found)
    if seen != written:
        raise InvalidArgument(
            f"executors wrote {written} rows to {directory}, and the driver finds {seen} there",
            expected="a directory that driver and executors share",
            hint="name one that is mounted on all machines, or a URL of a file system that Spark "
            "knows, such as hdfs://",
        )


def check_asked(topic: str, chunk: Sequence[Span], found: Sequence[Staged]) -> None:
    """Refuse rows that were not requested."""
    counted: dict[Queue, int] = {}
    first: dict[Queue, int] = {}
    last: dict[Queue, int] = {}
    for file in found:
        for span, rows in zip(file.spans, file.queue_rows, strict=True):
            counted[span.queue] = counted.get(span.queue, 0) + rows
            first[span.queue] = min(first.get(span.queue, span.start), span.start)
            last[span.queue] = max(last.get(span.queue, span.end), span.end)
    for span in chunk:
        count = counted.pop(span.queue, 0)
        begins, ends = first.get(span.queue, span.end), last.get(span.queue, span.end)
        if begins < span.start or ends > span.end or count > span.count:
            raise StoreDamaged(
                f"{count} rows from offset {begins} to {ends} came from {_where(topic, span)}",
                expected=f"{span.count} from {span.start} to {span.end}",
            )
    if counted:
        raise StoreDamaged(
            f"rows of queues {sorted(counted)} of topic {topic!r} were not requested"
        )


def holes(chunk: Iterable[Span], stretches: Iterable[Span]) -> list[Span]:
    """The parts of a chunk that are in none of the stretches."""
    of_queue: dict[Queue, list[Span]] = {}
    for stretch in sorted(stretches, key=lambda one: one.start):
        of_queue.setdefault(stretch.queue, []).append(stretch)
    found = []
    for span in chunk:
        reached = span.start
        for stretch in of_queue.get(span.queue, ()):
            if stretch.start > reached:
                found.append(Span(*span.queue, reached, min(stretch.start, span.end)))
            reached = max(reached, stretch.end)
        if reached < span.end:
            found.append(Span(*span.queue, reached, span.end))
    return found


def doubtful(topic: str, missing: Iterable[Span], ranges: Iterable[QueueRange]) -> list[Span]:
    """The missing messages that the broker has not simply deleted from the front of a queue.

    They are inside their queue, where the source skips what it found lost. Messages missing at the
    end are an error, since the next messages will get these offsets.
    """
    held = {(row.broker_name, row.queue_id): row for row in ranges}
    left = []
    for hole in missing:
        row = held.get(hole.queue)
        if row is None or row.max_offset < hole.end:
            raise NotFound(
                f"messages {hole.start} to {hole.end - 1} of {_where(topic, hole)} could not be "
                f"read, and the queue {f'ends at {row.max_offset}' if row else 'is not there'}",
                expected="a queue that is no shorter than it was",
                hint="if its broker is still starting, run it again later",
            )
        if row.min_offset < hole.end:
            left.append(hole)
    return left


def check_gone(topic: str, missing: Iterable[Span], stretches: Sequence[Span]) -> None:
    """Refuse to record messages as lost that a second read has found."""
    for hole in missing:
        if any(
            one.queue == hole.queue and one.start < hole.end and hole.start < one.end
            for one in stretches
        ):
            raise NotFound(
                f"messages {hole.start} to {hole.end - 1} of {_where(topic, hole)} were not read, "
                f"but the broker has them",
                expected="all that the broker has",
                hint="nothing is lost: run it again",
            )


def _where(topic: str, span: Span) -> str:
    return f"queue {span.queue_id} of topic {topic!r} on broker {span.broker!r}"
