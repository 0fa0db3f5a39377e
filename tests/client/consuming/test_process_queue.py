"""The process queue: each operation of the reference, then all of them against a plain dict."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.client.consuming.message_batches import MessageBatch, batches_of, packed_batches
from penstock.client.consuming.process_queue import (
    EXPIRED_A_ROUND,
    NOTHING_REMOVED,
    ProcessQueue,
)
from penstock.model import MessageQueue, StoredMessage
from penstock.model.hosts import pack_host
from penstock.protocol.records.codec import encode_record
from penstock.protocol.records.pulled import AlikeRecords, alike_records

QUEUE = MessageQueue("orders", "broker-a", 0)
HOST = pack_host("127.0.0.1", 10911)


def message(
    offset: int, body: bytes = b"x", properties: dict[str, str] | None = None
) -> StoredMessage:
    return StoredMessage(
        topic=QUEUE.topic,
        body=body,
        properties={} if properties is None else properties,
        msg_id=f"id-{offset}",
        offset_msg_id=f"offset-id-{offset}",
        queue=QUEUE,
        queue_offset=offset,
        log_position=offset * 100,
        born_timestamp=0,
        store_timestamp=0,
        born_host="127.0.0.1:1",
        store_host="127.0.0.1:2",
        reconsume_times=0,
        sys_flag=0,
    )


def messages(*offsets: int) -> list[StoredMessage]:
    return [message(offset) for offset in offsets]


def batches(*offsets: int) -> list[MessageBatch]:
    return batches_of(messages(*offsets), 1)


def offsets(batch: list[StoredMessage]) -> list[int]:
    return [m.queue_offset for m in batch]


def records_from(offset: int) -> AlikeRecords:
    """As many as make a table."""
    records = [
        encode_record(b"orders", b"packed", b"", 0, offset + n, n, 0, 0, HOST, HOST)
        for n in range(64)
    ]
    alike = alike_records(b"".join(records), "broker-a")
    assert alike is not None
    return alike


@pytest.fixture
def queue() -> ProcessQueue:
    return ProcessQueue(QUEUE, now=0.0)


@pytest.mark.spec("S85")
def test_removing_returns_the_lowest_offset_that_is_left(queue: ProcessQueue) -> None:
    queue.put(batches(3, 4, 5, 6))
    assert queue.remove(batches(5)) == 3
    assert queue.remove(batches(3)) == 4
    assert queue.remove(batches(4)) == 6


@pytest.mark.spec("S85")
def test_removing_the_last_one_returns_the_offset_after_the_largest(queue: ProcessQueue) -> None:
    queue.put(batches(3, 9))
    assert queue.remove(batches(9)) == 3
    assert queue.remove(batches(3)) == 10


@pytest.mark.spec("S85")
def test_removing_from_an_empty_queue_commits_nothing(queue: ProcessQueue) -> None:
    assert queue.remove(batches(3)) == NOTHING_REMOVED
    queue.put(batches(3))
    queue.remove(batches(3))
    assert queue.remove(batches(3)) == NOTHING_REMOVED


@pytest.mark.spec("S86")
def test_a_finished_message_never_commits_past_an_unfinished_one_before_it(
    queue: ProcessQueue,
) -> None:
    queue.put(batches(4, 5))
    assert queue.remove(batches(5)) == 4
    assert queue.remove(batches(4)) == 6


def test_a_message_that_is_not_there_is_ignored(queue: ProcessQueue) -> None:
    queue.put(batches(4, 5))
    assert queue.remove(batches(99)) == 4
    assert (queue.count, queue.body_bytes) == (2, 2)


def test_a_repeated_offset_is_replaced_and_not_counted_again(queue: ProcessQueue) -> None:
    queue.put(batches_of([message(1, b"old")], 1))
    queue.put(batches_of([message(1, b"newer"), message(2, b"..")], 1))
    assert (queue.count, queue.body_bytes) == (2, 7)
    assert [m.body for m in queue] == [b"newer", b".."]
    queue.remove(batches(1, 2))
    assert (queue.count, queue.body_bytes) == (0, 0)


def test_put_says_true_once_until_the_queue_has_run_dry(queue: ProcessQueue) -> None:
    assert queue.put([]) is False
    assert queue.put(batches(1)) is True
    assert queue.put(batches(2)) is False
    assert offsets(queue.take(5)) == [1, 2]
    assert queue.put(batches(3)) is False  # a take that finds nothing is what ends it
    assert offsets(queue.take(5)) == [3]
    assert queue.take(5) == []
    assert queue.put(batches(4)) is True


@pytest.mark.spec("S64", "S138")
def test_taking_gives_the_lowest_messages_in_order(queue: ProcessQueue) -> None:
    queue.put(batches(7, 8))
    queue.put(batches(5, 6))
    assert offsets(queue.take(3)) == [5, 6, 7]
    assert offsets(queue.take(3)) == [8]
    assert queue.take(3) == []


@pytest.mark.spec("S141")
def test_committing_ends_all_that_was_taken(queue: ProcessQueue) -> None:
    queue.put(batches(5, 6, 7))
    queue.take(2)
    assert queue.count == 3
    assert queue.commit() == 7
    assert (queue.count, queue.body_bytes) == (1, 1)
    assert queue.commit() == NOTHING_REMOVED


@pytest.mark.spec("S141")
def test_committing_up_to_an_offset_leaves_the_rest_taken(queue: ProcessQueue) -> None:
    queue.put(batches(5, 6, 7, 8))
    queue.take(3)
    assert queue.commit(up_to=4) == NOTHING_REMOVED
    assert queue.commit(up_to=6) == 7
    assert (queue.count, queue.taken_range) == (2, (7, 7, 1))
    assert queue.commit() == 8


@pytest.mark.spec("S144")
def test_rolling_back_returns_all_that_was_taken(queue: ProcessQueue) -> None:
    queue.put(batches(5, 6, 7))
    queue.take(1)
    queue.take(1)
    queue.roll_back()
    assert queue.taken_range == (0, 0, 0)
    assert offsets(queue.take(9)) == [5, 6, 7]


@pytest.mark.spec("S142")
def test_a_suspended_batch_comes_first_again(queue: ProcessQueue) -> None:
    queue.put(batches(5, 6, 7))
    batch = queue.take(2)
    queue.consume_again(batch)
    assert queue.count == 3
    assert offsets(queue.take(1)) == [5]


def test_only_the_named_messages_are_consumed_again(queue: ProcessQueue) -> None:
    queue.put(batches(5, 6, 7))
    queue.take(3)
    queue.consume_again(messages(6, 99))
    assert queue.taken_range == (5, 7, 2)
    assert offsets(queue.take(9)) == [6]


def test_a_message_pulled_again_while_it_was_taken_is_counted_once_after_the_return(
    queue: ProcessQueue,
) -> None:
    queue.put(batches(5))
    batch = queue.take(1)
    queue.put(batches(5))
    assert queue.count == 2
    queue.consume_again(batch)
    assert (queue.count, queue.body_bytes) == (1, 1)


@pytest.mark.spec("S39")
def test_the_span_is_the_distance_of_the_ends(queue: ProcessQueue) -> None:
    assert queue.span == 0
    queue.put(batches(10))
    assert queue.span == 0
    queue.put(batches(11, 25))
    assert queue.span == 15
    queue.remove(batches(25))
    assert queue.span == 1
    queue.remove(batches(10))
    assert queue.span == 0


@pytest.mark.spec("S39")
def test_the_reach_stays_while_the_lowest_message_is_stuck(queue: ProcessQueue) -> None:
    assert queue.reach == 0
    queue.put(batches(10, 11, 25))
    queue.remove(batches(25, 11))
    assert (queue.span, queue.reach) == (0, 15)
    queue.remove(batches(10))
    assert queue.reach == 0


def test_taken_messages_count_but_do_not_span(queue: ProcessQueue) -> None:
    queue.put(batches(1, 2, 3000))
    queue.take(2)
    assert (queue.span, queue.count) == (0, 3)
    assert 1 in queue
    assert 3000 in queue
    assert 4 not in queue


def test_ranges_name_both_ends_and_the_number(queue: ProcessQueue) -> None:
    assert queue.cached_range == queue.taken_range == (0, 0, 0)
    queue.put(batches(1, 2, 8, 9))
    queue.take(2)
    assert queue.taken_range == (1, 2, 2)
    assert queue.cached_range == (8, 9, 2)


def test_clearing_forgets_messages_and_keeps_ownership(queue: ProcessQueue) -> None:
    queue.is_dropped = queue.is_locked = True
    queue.put(batches(1, 2))
    queue.take(1)
    queue.clear()
    assert (queue.count, queue.body_bytes, queue.is_consuming) == (0, 0, False)
    assert 1 not in queue
    assert 2 not in queue
    assert queue.lowest is None
    assert queue.is_dropped
    assert queue.is_locked


def test_the_backlog_is_how_far_the_broker_is_ahead(queue: ProcessQueue) -> None:
    queue.put(batches(6, 7), max_offset=100)
    assert queue.accumulated == 93
    queue.put(batches(8), max_offset=8)
    assert queue.accumulated == 93  # nothing ahead leaves the last figure, as in RocketMQ


def test_locks_and_pulls_expire_only_after_their_life(queue: ProcessQueue) -> None:
    assert not queue.is_lock_expired(30.0)
    assert queue.is_lock_expired(30.001)
    assert not queue.is_pull_expired(120.0)
    assert queue.is_pull_expired(120.001)


def started(offset: int, at_ms: int | None) -> StoredMessage:
    return message(offset, properties={} if at_ms is None else {"CONSUME_START_TIME": str(at_ms)})


@pytest.mark.spec("S94")
def test_expired_messages_are_found_from_the_lowest_up(queue: ProcessQueue) -> None:
    queue.put(
        batches_of(
            [started(1, 0), started(2, 0), started(3, 950), started(4, 0), started(5, None)], 1
        )
    )
    late = queue.expired(1001, 1000, scan_all=False)
    assert offsets(late) == [1, 2]


@pytest.mark.spec("S94")
def test_a_message_at_its_timeout_is_not_late_yet(queue: ProcessQueue) -> None:
    queue.put(batches_of([started(1, 0)], 1))
    assert queue.expired(1000, 1000, scan_all=False) == []


@pytest.mark.spec("S94")
def test_a_scan_of_all_sees_a_stuck_message_behind_a_waiting_one(queue: ProcessQueue) -> None:
    queue.put(batches_of([started(1, None), started(2, 0)], 1))
    assert queue.expired(5000, 1000, scan_all=False) == []
    assert offsets(queue.expired(5000, 1000, scan_all=True)) == [2]


@pytest.mark.spec("S94")
def test_one_round_finds_sixteen_at_most(queue: ProcessQueue) -> None:
    queue.put(batches_of([started(offset, 0) for offset in range(40)], 1))
    for scan_all in (False, True):
        late = queue.expired(9999, 1, scan_all=scan_all)
        assert offsets(late) == list(range(EXPIRED_A_ROUND))


class ProcessQueueMachine(RuleBasedStateMachine):
    """A process queue beside two dicts that say what it must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue(QUEUE, now=0.0)
        self.cached: dict[int, bytes] = {}
        self.taken: dict[int, bytes] = {}
        self.largest = 0
        self.highest = 0
        self.consuming = False
        self.next_offset = 0
        self.batches: list[MessageBatch] = []

    @rule(
        gaps=st.lists(st.integers(1, 4), max_size=6),
        back=st.integers(0, 12),
        body=st.binary(max_size=3),
        size=st.integers(1, 4),
    )
    def put(self, gaps: list[int], back: int, body: bytes, size: int) -> None:
        start = max(0, self.next_offset - back)
        batch = []
        for gap in gaps:
            start += gap
            if start in self.taken:
                continue
            batch.append(message(start, body))
            if start not in self.cached:
                self.largest = start
            self.cached[start] = body
            self.highest = max(self.highest, start)
        self.next_offset = max(self.next_offset, start)
        announced = bool(self.cached) and not self.consuming
        assert self.queue.put(batches_of(batch, size)) is announced
        self.consuming = self.consuming or announced

    @rule(gap=st.integers(1, 3), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3))
    def put_packed(self, gap: int, sizes: list[int]) -> None:
        put: list[MessageBatch] = []
        for size in sizes:
            start = (put[-1].last_offset if put else self.next_offset + gap - 1) + 1
            put.append(packed_batches(records_from(start), b"", size)[0])
            self.cached.update(dict.fromkeys(range(start, start + size), b"packed"))
        self.batches += put
        self.next_offset = self.largest = self.highest = put[-1].last_offset
        announced = not self.consuming
        assert self.queue.put(put) is announced
        self.consuming = True

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def remove_packed(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.batches), unique_by=id, max_size=3))
        was_empty = not self.cached
        for batch in chosen:
            self.batches.remove(batch)
            for offset in range(batch.first_offset, batch.last_offset + 1):
                self.cached.pop(offset, None)
        expected = NOTHING_REMOVED if was_empty else min(self.cached, default=self.largest + 1)
        assert self.queue.remove(chosen) == expected

    @rule(chosen=st.sets(st.integers(0, 40)), low_first=st.booleans())
    def remove(self, chosen: set[int], low_first: bool) -> None:
        gone = sorted(chosen, reverse=not low_first)
        was_empty = not self.cached
        for offset in gone:
            self.cached.pop(offset, None)
        expected = NOTHING_REMOVED if was_empty else min(self.cached, default=self.largest + 1)
        assert self.queue.remove(batches(*gone)) == expected

    @rule(limit=st.integers(1, 5))
    def take(self, limit: int) -> None:
        lowest = sorted(self.cached)[:limit]
        assert offsets(self.queue.take(limit)) == lowest
        for offset in lowest:
            self.taken[offset] = self.cached.pop(offset)
        if not lowest:
            self.consuming = False

    @rule(up_to=st.none() | st.integers(0, 40))
    def commit(self, up_to: int | None) -> None:
        done = [offset for offset in self.taken if up_to is None or offset <= up_to]
        expected = max(done) + 1 if done else NOTHING_REMOVED
        assert self.queue.commit(up_to) == expected
        for offset in done:
            del self.taken[offset]

    @rule()
    def roll_back(self) -> None:
        self.queue.roll_back()
        self.cached.update(self.taken)
        self.taken.clear()

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def consume_again(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sets(st.sampled_from(sorted(self.taken))))
        self.queue.consume_again(messages(*sorted(chosen)))
        for offset in chosen:
            self.cached[offset] = self.taken.pop(offset)

    @rule()
    def clear(self) -> None:
        self.queue.clear()
        self.cached.clear()
        self.taken.clear()
        self.largest = self.highest = 0
        self.consuming = False
        self.batches.clear()

    @invariant()
    def counts_agree(self) -> None:
        bodies = [*self.cached.values(), *self.taken.values()]
        assert self.queue.count == len(bodies)
        assert self.queue.body_bytes == sum(map(len, bodies))

    @invariant()
    def ends_agree(self) -> None:
        low, high = min(self.cached, default=0), max(self.cached, default=0)
        assert self.queue.span == high - low
        assert self.queue.reach == (self.highest - low if self.cached else 0)
        assert self.queue.cached_range == (low, high, len(self.cached))
        assert self.queue.is_empty is not bool(self.cached)

    @rule()
    def look_at_the_order(self) -> None:
        lowest = self.queue.lowest
        assert (lowest.queue_offset if lowest else None) == min(self.cached, default=None)
        assert offsets(list(self.queue)) == sorted(self.cached)

    @invariant()
    def what_is_taken_agrees(self) -> None:
        taken = sorted(self.taken)
        assert self.queue.taken_range == ((taken[0], taken[-1], len(taken)) if taken else (0, 0, 0))


TestProcessQueueAgainstADict = ProcessQueueMachine.TestCase
TestProcessQueueAgainstADict.settings = settings(max_examples=150, stateful_step_count=40)


def test_putting_and_removing_keeps_its_pace_as_the_queue_fills() -> None:
    """A queue at the flow-control limit must cost what a short one costs: no scan hides inside."""

    def seconds_per_message(held: int, total: int = 20_000) -> float:
        queue = ProcessQueue(QUEUE, now=0.0)
        pulled = batches(*range(total))
        shuffled = random.Random(7)
        begin = time.perf_counter()
        waiting: list[MessageBatch] = []
        for start in range(0, total, 32):
            queue.put(pulled[start : start + 32])
            waiting += pulled[start : start + 32]
            while len(waiting) > held:
                queue.remove([waiting.pop(shuffled.randrange(min(20, len(waiting))))])
        return (time.perf_counter() - begin) / total

    assert seconds_per_message(held=1000) < 10 * seconds_per_message(held=32)


def test_who_waits_for_room_is_called_once_when_enough_has_gone(queue: ProcessQueue) -> None:
    ten = batches(*range(10))
    queue.put(ten)
    calls: list[int] = []
    queue.when_down_to(5, lambda: calls.append(queue.count))
    queue.remove(ten[:4])
    assert calls == []
    queue.remove(ten[4:5])
    queue.remove(ten[5:])
    assert calls == [5]
