"""Which task reads which messages, and how far a micro-batch goes. Pure.

A task gets a list of ranges, each of one queue. By default a local session gets as many tasks as it
has cores: long ranges are cut so that a queue with all the lag keeps every core busy, short ones
are joined so that a few messages do not cost eight tasks. On a cluster, where the cores are not
known here, a queue is a task. ``minPartitions`` sets a minimum, as in Kafka's connector. With
``ordered`` a queue is never cut.

The queues of a store share one commit log. A read from files cuts every long queue in the same way
(``striped``), so that a task touches its share of the log and not all of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from pyspark.sql.datasource import InputPartition

from penstock.model import MessageQueue
from penstock.spark.source.ranges import Range

MIN_TASK_MESSAGES = 1_000
"""Fewer messages get no second task, if the number of tasks is not given."""
MAX_TASK_MESSAGES = 8_000_000
"""The maximum of one task, if queues may be cut: a retried task starts again."""
MIN_STRIPE_MESSAGES = 8_192
"""Queues with fewer for each task are not striped: a record batch has messages of one queue."""


class TaskRanges(InputPartition):
    """What one task reads, in this order."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        shown = ", ".join(f"{part.queue}[{part.low}:{part.high}]" for part in self.ranges)
        return f"TaskRanges({shown})"


def tasks(
    ranges: Sequence[Range],
    *,
    cores: int | None = None,
    min_partitions: int | None = None,
    ordered: bool = False,
    striped: bool = False,
) -> list[TaskRanges]:
    """The tasks for these ranges; empty ranges need none."""
    ranges = sorted((part for part in ranges if part.count > 0), key=lambda part: part.queue)
    if not ranges:
        return []
    total = sum(part.count for part in ranges)
    if min_partitions is None and cores is not None:
        if ordered:
            return _packed(ranges, cores)
        rounds = math.ceil(total / (MAX_TASK_MESSAGES * cores))
        count = min(cores * rounds, math.ceil(total / MIN_TASK_MESSAGES))
        return _striped(ranges, count) if striped else _shared(ranges, count)
    if ordered:
        return [TaskRanges([part]) for part in ranges]
    wanted = max(len(ranges), min_partitions or 1)
    return [
        TaskRanges([piece])
        for part in ranges
        for piece in _cut(part, _pieces(part, total, wanted, alone=wanted == len(ranges)))
    ]


def _pieces(part: Range, total: int, wanted: int, *, alone: bool) -> int:
    """In how many a range is cut, by its share of all messages."""
    by_size = math.ceil(part.count / MAX_TASK_MESSAGES)
    by_share = 1 if alone else math.ceil(part.count / total * wanted)
    return min(part.count, max(1, by_size, by_share))


def _cut(part: Range, pieces: int) -> list[Range]:
    edges = [part.low + part.count * i // pieces for i in range(pieces + 1)]
    return [Range(part.queue, low, high) for low, high in itertools.pairwise(edges)]


def _shared(ranges: Sequence[Range], count: int) -> list[TaskRanges]:
    """Exactly ``count`` tasks of the same size: the ranges laid end to end and cut evenly."""
    total = sum(part.count for part in ranges)
    edges = [total * i // count for i in range(1, count + 1)]
    made: list[list[Range]] = [[]]
    done = 0
    for part in ranges:
        low = part.low
        while low < part.high:
            room = edges[len(made) - 1] - done
            if room == 0:
                made.append([])
                continue
            taken = min(room, part.high - low)
            made[-1].append(Range(part.queue, low, low + taken))
            low += taken
            done += taken
    return [TaskRanges(pieces) for pieces in made]


def _striped(ranges: Sequence[Range], count: int) -> list[TaskRanges]:
    """``count`` tasks, each with the same part of every long queue; short ones fill them up."""
    long = [part for part in ranges if part.count >= count * MIN_STRIPE_MESSAGES]
    if not long:
        return _shared(ranges, count)
    made = [list(pieces) for pieces in zip(*(_cut(part, count) for part in long), strict=True)]
    for part in ranges:
        if part not in long:
            min(made, key=lambda task: sum(taken.count for taken in task)).append(part)
    return [TaskRanges(task) for task in made]


def _packed(ranges: Sequence[Range], count: int) -> list[TaskRanges]:
    """Whole ranges in at most ``count`` tasks: the longest first, each where least is so far."""
    made: list[list[Range]] = [[] for _ in range(min(count, len(ranges)))]
    for part in sorted(ranges, key=lambda part: -part.count):
        min(made, key=lambda task: sum(taken.count for taken in task)).append(part)
    return [TaskRanges(sorted(task, key=lambda part: part.queue)) for task in made]


def capped(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], limit: int
) -> dict[MessageQueue, int]:
    """How far to read when at most ``limit`` messages may be: shared by how many wait.

    Every queue that has some gets at least one, as long as there are enough to go round.
    """
    waiting = {queue: end[queue] - start.get(queue, 0) for queue in sorted(end)}
    behind = {queue: count for queue, count in waiting.items() if count > 0}
    total = sum(behind.values())
    if total <= limit:
        return dict(end)
    share = {queue: max(1, count * limit // total) for queue, count in behind.items()}
    over = sum(share.values()) - limit
    # The rounding is settled with the queues that have most: they feel it least.
    for queue in sorted(share, key=lambda queue: (-share[queue], queue)):
        change = (
            min(share[queue] - 1, over) if over > 0 else max(over, share[queue] - behind[queue])
        )
        share[queue] -= change
        over -= change
        if over == 0:
            break
    for queue in sorted(share, key=lambda queue: (behind[queue], queue)):
        # More queues than messages: those with the fewest wait for another batch, and grow.
        if over > 0:
            share[queue] -= 1
            over -= 1
    return {
        queue: start.get(queue, 0) + share[queue] if queue in share else end[queue] for queue in end
    }
