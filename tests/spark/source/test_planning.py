"""Tasks cover what is to be read, once; limits are shared by lag."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.model import MessageQueue
from penstock.spark.source.planning import (
    MAX_TASK_MESSAGES,
    MIN_STRIPE_MESSAGES,
    TaskRanges,
    capped,
    tasks,
)
from penstock.spark.source.ranges import Range


def queue(number: int) -> MessageQueue:
    return MessageQueue("orders", "broker-a", number)


lows = st.integers(0, 1000)
ranges_of_queues = st.lists(st.tuples(lows, st.integers(0, 5000)), max_size=8).map(
    lambda pairs: [Range(queue(i), low, low + count) for i, (low, count) in enumerate(pairs)]
)


def covered(planned: list[TaskRanges]) -> Counter[tuple[int, int]]:
    return Counter(
        (part.queue.queue_id, offset)
        for task in planned
        for part in task.ranges
        for offset in range(part.low, part.high)
    )


@given(
    ranges_of_queues,
    st.none() | st.integers(1, 8),
    st.none() | st.integers(1, 40),
    st.booleans(),
    st.booleans(),
)
def test_every_message_is_in_exactly_one_task(
    ranges: list[Range],
    cores: int | None,
    min_partitions: int | None,
    ordered: bool,
    striped: bool,
) -> None:
    planned = tasks(
        ranges, cores=cores, min_partitions=min_partitions, ordered=ordered, striped=striped
    )
    wanted = Counter(
        (part.queue.queue_id, offset) for part in ranges for offset in range(part.low, part.high)
    )
    assert covered(planned) == wanted
    assert all(part.count > 0 for task in planned for part in task.ranges)


@given(ranges_of_queues, st.none() | st.integers(1, 8), st.none() | st.integers(1, 40))
def test_an_ordered_queue_is_in_one_task(
    ranges: list[Range], cores: int | None, min_partitions: int | None
) -> None:
    planned = tasks(ranges, cores=cores, min_partitions=min_partitions, ordered=True)
    seen = Counter(part.queue for task in planned for part in task.ranges)
    assert all(count == 1 for count in seen.values())


@given(ranges_of_queues.filter(lambda r: sum(p.count for p in r) > 0), st.integers(1, 40))
def test_there_are_as_many_tasks_as_asked_for(ranges: list[Range], wanted: int) -> None:
    total = sum(part.count for part in ranges)
    planned = tasks(ranges, min_partitions=wanted)
    assert len(planned) >= min(wanted, total)


def test_one_queue_with_all_the_lag_keeps_every_core_busy() -> None:
    planned = tasks([Range(queue(0), 0, 100_000), Range(queue(1), 0, 0)], cores=4)
    sizes = [sum(part.count for part in task.ranges) for task in planned]
    assert sizes == [25_000] * 4


def test_a_few_messages_in_many_queues_are_one_task() -> None:
    planned = tasks([Range(queue(i), 5, 7) for i in range(16)], cores=4)
    assert len(planned) == 1


def test_striped_tasks_have_their_part_of_every_long_queue() -> None:
    high = 4 * MIN_STRIPE_MESSAGES
    ranges = [Range(queue(0), 0, high), Range(queue(1), 10, 20), Range(queue(2), 100, high + 100)]
    first, second = tasks(ranges, cores=2, striped=True)
    assert first.ranges == (
        Range(queue(0), 0, high // 2),
        Range(queue(2), 100, high // 2 + 100),
        Range(queue(1), 10, 20),
    )
    assert second.ranges == (
        Range(queue(0), high // 2, high),
        Range(queue(2), high // 2 + 100, high + 100),
    )


def test_short_queues_are_not_striped() -> None:
    ranges = [Range(queue(i), 0, 5_000) for i in range(2)]
    assert covered(tasks(ranges, cores=2, striped=True)) == covered(tasks(ranges, cores=2))
    assert [len(task.ranges) for task in tasks(ranges, cores=2, striped=True)] == [1, 1]


def test_without_known_cores_a_queue_is_a_task() -> None:
    planned = tasks([Range(queue(i), 0, 10 + i) for i in range(3)])
    assert [len(task.ranges) for task in planned] == [1, 1, 1]


def test_a_very_long_range_is_cut_so_that_a_retry_does_not_start_over() -> None:
    planned = tasks([Range(queue(0), 0, 3 * MAX_TASK_MESSAGES)], cores=1)
    assert len(planned) == 3
    planned = tasks([Range(queue(0), 0, 3 * MAX_TASK_MESSAGES)])
    assert len(planned) == 3


ends = st.dictionaries(st.integers(0, 6).map(queue), st.integers(0, 10_000), max_size=7)


@given(ends, st.data(), st.integers(1, 3000))
def test_a_limit_is_kept_and_used_up(
    end: dict[MessageQueue, int], data: st.DataObject, limit: int
) -> None:
    start = {q: data.draw(st.integers(0, e)) for q, e in end.items() if data.draw(st.booleans())}
    waiting = sum(e - start.get(q, 0) for q, e in end.items())
    cut = capped(start, end, limit)
    assert cut.keys() == end.keys()
    assert all(start.get(q, 0) <= cut[q] <= end[q] for q in end)
    assert sum(cut[q] - start.get(q, 0) for q in end) == min(limit, waiting)


def test_every_queue_moves_on_when_there_is_enough_to_go_round() -> None:
    end = {queue(0): 1_000_000, queue(1): 3, queue(2): 1}
    cut = capped({}, end, 10)
    assert cut == {queue(0): 8, queue(1): 1, queue(2): 1}


def test_a_limit_below_the_number_of_queues_starves_none_of_them() -> None:
    end = {queue(i): 5 for i in range(5)}
    start = dict.fromkeys(end, 0)
    batches = 0
    while start != end:
        start = capped(start, end, 2)
        batches += 1
    assert batches == 13


def test_a_queue_that_went_back_is_not_counted() -> None:
    assert capped({queue(0): 50}, {queue(0): 3, queue(1): 9}, 4) == {queue(0): 3, queue(1): 4}
