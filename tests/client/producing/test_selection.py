"""Which queue a message goes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.producing.selection import (
    COUNTER_LIMIT,
    CURRENT_LATENCIES,
    FaultLatency,
    RoundRobin,
    by_hash,
    chosen,
    select,
)
from penstock.errors import InvalidArgument
from penstock.model import Message, MessageQueue

A = [MessageQueue("orders", "broker-a", n) for n in range(4)]
B = [MessageQueue("orders", "broker-b", n) for n in range(4)]


@given(start=st.integers(0, 2**40), count=st.integers(1, 9), rounds=st.integers(1, 4))
def test_turns_reach_every_queue_equally_often(start: int, count: int, rounds: int) -> None:
    turns = RoundRobin(start)
    queues = [MessageQueue("t", "b", n) for n in range(count)]
    if start % COUNTER_LIMIT + count * rounds < COUNTER_LIMIT:
        seen = Counter(turns.next(queues) for _ in range(count * rounds))
        assert set(seen.values()) == {rounds}


def test_the_first_turn_depends_on_the_start() -> None:
    assert {RoundRobin(start).next(A) for start in range(4)} == set(A)


def test_the_counter_survives_its_limit() -> None:
    turns = RoundRobin(COUNTER_LIMIT - 1)
    assert turns.next(A) == A[0]


def test_a_retry_skips_the_broker_that_failed() -> None:
    turns = RoundRobin(0)
    assert {turns.next(A + B, avoid="broker-a").broker_name for _ in range(20)} == {"broker-b"}


def test_a_retry_stays_on_the_only_broker_there_is() -> None:
    assert RoundRobin(0).next(A, avoid="broker-a") in A


@pytest.mark.parametrize(
    ("latency", "pause"),
    [
        (0.0, 0.0),
        (0.3, 0.0),
        (0.549, 0.0),
        (0.55, 2.0),
        (1.799, 2.0),
        (1.8, 5.0),
        (3.0, 6.0),
        (5.0, 10.0),
        (14.0, 10.0),
        (15.0, 30.0),
        (99.0, 30.0),
    ],
)
def test_a_slow_broker_is_left_alone_by_the_table(latency: float, pause: float) -> None:
    assert CURRENT_LATENCIES.pause(latency) == pause


def test_a_failure_counts_as_a_send_of_its_latency() -> None:
    assert CURRENT_LATENCIES.pause(CURRENT_LATENCIES.failure_latency) == 10.0


def test_a_slow_broker_is_avoided_until_its_pause_is_over() -> None:
    faults = FaultLatency()
    faults.sent("broker-a", 0.6, now=100.0)
    turns = RoundRobin(0)
    during = {select(turns, A + B, faults=faults, now=101.9) for _ in range(20)}
    assert during == set(B)
    after = {select(turns, A + B, faults=faults, now=102.0) for _ in range(20)}
    assert after == set(A + B)


def test_a_quick_answer_ends_the_pause() -> None:
    faults = FaultLatency()
    faults.failed("broker-a", now=0.0, is_reachable=False)
    assert not faults.is_available("broker-a", 5.0)
    faults.sent("broker-a", 0.01, now=5.0)
    assert faults.is_available("broker-a", 5.0)
    assert faults.is_reachable("broker-a")


def test_with_none_available_a_reachable_broker_is_chosen() -> None:
    faults = FaultLatency()
    faults.failed("broker-a", now=0.0, is_reachable=False)
    faults.failed("broker-b", now=0.0, is_reachable=True)
    turns = RoundRobin(0)
    assert {select(turns, A + B, faults=faults, now=1.0) for _ in range(20)} == set(B)
    assert faults.suspects() == ["broker-a"]
    faults.probed("broker-a", is_reachable=True)
    assert faults.suspects() == []
    assert {select(turns, A + B, faults=faults, now=1.0) for _ in range(20)} == set(A + B)


def test_with_nothing_reachable_any_queue_is_better_than_none() -> None:
    faults = FaultLatency()
    faults.failed("broker-a", now=0.0, is_reachable=False)
    assert select(RoundRobin(0), A, avoid="broker-a", faults=faults, now=0.0) in A


def test_the_broker_of_the_failed_attempt_is_avoided_with_fault_latency_too() -> None:
    turns = RoundRobin(0)
    picked = {
        select(turns, A + B, avoid="broker-b", faults=FaultLatency(), now=0.0) for _ in range(20)
    }
    assert picked == set(A)


def test_brokers_that_left_the_routes_are_forgotten() -> None:
    faults = FaultLatency()
    faults.failed("broker-a", now=0.0, is_reachable=False)
    faults.probed("broker-z", is_reachable=False)  # never heard of: nothing to note
    faults.forget({"broker-b"})
    assert faults.suspects() == []
    assert faults.is_available("broker-a", 0.0)


@pytest.mark.parametrize(
    ("key", "hashed"),
    # Java's String.hashCode; the last one has the value whose Math.abs stays negative.
    [("TagA", 2598919), ("order-created", -392709271), ("polygenelubricants", -(2**31))],
)
def test_a_sharding_key_picks_the_queue_a_java_producer_picks(key: str, hashed: int) -> None:
    for count in range(1, 9):
        queues = [MessageQueue("t", "b", n) for n in range(count)]
        # SelectMessageQueueByHash: abs of the truncated remainder.
        assert by_hash(queues, key).queue_id == abs(hashed) % count


def test_a_message_without_a_wish_takes_any_queue() -> None:
    assert chosen(None, A, Message("orders", b"x")) is None


def test_a_sharding_key_chooses_by_itself() -> None:
    message = Message("orders", b"x", sharding_key="o-1")
    assert chosen(None, A, message) == by_hash(A, "o-1")


def test_an_explicit_queue_overrules_the_sharding_key() -> None:
    assert chosen(A[3], A, Message("orders", b"x", sharding_key="o-1")) == A[3]


def test_a_queue_of_another_topic_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="orders@broker-a:0 for a message of topic 'bills'"):
        chosen(A[0], A, Message("bills", b"x"))


def test_a_function_chooses_among_the_queues() -> None:
    def last(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        assert message.body == b"x"
        return queues[-1]

    assert chosen(last, A, Message("orders", b"x")) == A[-1]


def test_a_selector_that_returns_no_queue_is_refused() -> None:
    def broken(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return 3  # type: ignore[return-value]  # what a user's function may do

    with pytest.raises(InvalidArgument, match="selector returned 3"):
        chosen(broken, A, Message("orders", b"x"))
