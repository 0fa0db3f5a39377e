"""When a queue is not pulled: the three limits, at their edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.consuming.flow_control import MIB, FlowLimits, Stop
from penstock.client.consuming.message_batches import batches_of
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.model import MessageQueue, StoredMessage

QUEUE = MessageQueue("orders", "broker-a", 0)


def holding(*offsets: int, body: bytes = b"") -> ProcessQueue:
    queue = ProcessQueue(QUEUE, now=0.0)
    queue.put(
        batches_of([StoredMessage("orders", body, b"", QUEUE, offset) for offset in offsets], 1)
    )
    return queue


@pytest.mark.spec("S37")
def test_a_queue_at_its_count_is_pulled_and_one_above_it_is_not() -> None:
    limits = FlowLimits(span=10**6)
    assert limits.verdict(holding(*range(1000)), orderly=False) is None
    assert limits.verdict(holding(*range(1001)), orderly=False) is Stop.COUNT


@pytest.mark.spec("S37")
def test_a_queue_that_was_drained_is_pulled_again() -> None:
    queue = holding(*range(1001))
    queue.remove(batches_of(list(queue)[:1], 1))
    assert FlowLimits().verdict(queue, orderly=False) is None


@pytest.mark.spec("S38")
def test_size_counts_whole_mebibytes_of_bodies() -> None:
    two_mib = bytes(2 * MIB)
    assert FlowLimits().verdict(holding(*range(50), body=two_mib), orderly=False) is None
    # 101 MiB and a byte less than the next whole one: 100 is passed only at 101.
    queue = holding(*range(50), body=two_mib)
    queue.put(batches_of([StoredMessage("orders", bytes(MIB - 1), b"", QUEUE, 50)], 1))
    assert FlowLimits().verdict(queue, orderly=False) is None
    queue.put(batches_of([StoredMessage("orders", b"x", b"", QUEUE, 51)], 1))
    assert FlowLimits().verdict(queue, orderly=False) is Stop.SIZE


@pytest.mark.spec("S38")
def test_properties_do_not_count_as_size() -> None:
    queue = ProcessQueue(QUEUE, now=0.0)
    queue.put(batches_of([StoredMessage("orders", b"", b"K\x01" + bytes(2 * MIB), QUEUE, 1)], 1))
    assert FlowLimits(size_mib=1).verdict(queue, orderly=False) is None


@pytest.mark.spec("S39", "S41")
def test_a_wide_span_stops_pulling_however_few_messages_make_it() -> None:
    assert FlowLimits().verdict(holding(5, 2005), orderly=False) is None
    assert FlowLimits().verdict(holding(5, 2006), orderly=False) is Stop.SPAN


@pytest.mark.spec("S40")
def test_the_span_is_not_asked_in_orderly_mode() -> None:
    assert FlowLimits().verdict(holding(0, 50_000), orderly=True) is None
    assert FlowLimits(count=1).verdict(holding(0, 50_000), orderly=True) is Stop.COUNT


@pytest.mark.spec("S42", "S43")
def test_limits_of_a_topic_are_shared_by_all_held_queues() -> None:
    assert FlowLimits().shared(100, None, 5) == FlowLimits(count=20)
    assert FlowLimits().shared(None, 50, 5) == FlowLimits(size_mib=10)
    assert FlowLimits().shared(100, 50, 5) == FlowLimits(count=20, size_mib=10)
    assert FlowLimits().shared(None, None, 5) == FlowLimits()


@pytest.mark.spec("S42", "S43")
@given(count=st.integers(1, 6_553_500), mib=st.integers(1, 102_400), held=st.integers(1, 10_000))
def test_a_share_is_never_less_than_one(count: int, mib: int, held: int) -> None:
    limits = FlowLimits().shared(count, mib, held)
    assert limits.count == max(1, count // held)
    assert limits.size_mib == max(1, mib // held)


def test_without_queues_the_limits_stay_as_they_were() -> None:
    assert FlowLimits(count=7).shared(100, 100, 0) == FlowLimits(count=7)
