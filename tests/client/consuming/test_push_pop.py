"""`PushConsumer(mode="pop")`: the same handlers and outcomes, acknowledged message by message."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import (
    DeadLetter,
    Message,
    Producer,
    PushConsumer,
    RetryLater,
    SimpleConsumer,
    embedded,
)
from penstock.errors import ConfigError

POP: dict[str, Any] = {"mode": "pop", "start_from": "first"}


@pytest.fixture
def mq() -> Iterator[Any]:
    with embedded(clock="virtual") as mq:
        mq.admin.create_topic("jobs", queues=1)
        yield mq


def send(mq: Any, *bodies: bytes) -> None:
    with Producer("p", namesrv=mq.namesrv) as producer:
        for body in bodies:
            producer.send(Message("jobs", body))


def member(mq: Any, handle: Any, **more: Any) -> Any:
    consumer = PushConsumer("workers", namesrv=mq.namesrv, **{**POP, **more})
    consumer.on("jobs")(handle)
    return consumer


def test_members_share_one_queue(mq: Any) -> None:
    got: list[list[bytes]] = [[], []]
    members = [
        member(mq, lambda m, i=i: got[i].append(m.body), instance=f"i{i}", pop_batch_size=4)
        for i in range(2)
    ]
    with members[0], members[1]:
        mq.clock.advance("3s")
        assert members[0].assignment() == members[1].assignment() != set()
        for round_ in range(10):
            send(mq, *(b"%d-%d" % (round_, i) for i in range(20)))
            mq.clock.advance("1s")
        assert sorted(got[0] + got[1]) == sorted(
            b"%d-%d" % (round_, i) for round_ in range(10) for i in range(20)
        )
        assert got[0]
        assert got[1]
        mq.clock.advance("10m")
    assert len(got[0] + got[1]) == 200


@pytest.mark.spec("P40")
def test_a_failed_message_comes_again_after_growing_delays(mq: Any) -> None:
    seen: list[tuple[str, int, float]] = []

    def handle(message: Any) -> None:
        seen.append((message.topic, message.reconsume_times, mq.clock.monotonic()))
        raise RuntimeError("again")

    with member(mq, handle):
        send(mq, b"one")
        mq.clock.advance("110s")
    assert [(topic, times) for topic, times, _ in seen] == [("jobs", i) for i in range(4)]
    times = [at for _, _, at in seen]
    delays = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert delays == pytest.approx([10, 30, 60], abs=1)


def test_retry_later_and_dead_letter_choose(mq: Any) -> None:
    seen: list[float] = []

    def handle(message: Any) -> None:
        seen.append(mq.clock.monotonic())
        if len(seen) == 1:
            raise RetryLater("1m")
        raise DeadLetter("bad data")

    with member(mq, handle):
        send(mq, b"one")
        mq.clock.advance("80s")
        assert seen[1] - seen[0] == pytest.approx(60, abs=1)
        mq.clock.advance("10m")
        assert len(seen) == 2
    (letter,) = mq.admin.dead_letters("workers")
    assert letter.message.body == b"one"


@pytest.mark.spec("P82")
def test_the_invisible_time_is_renewed_while_a_handler_runs() -> None:
    calls: list[int] = []
    is_called, may_end = threading.Event(), threading.Event()
    # In real time: virtual time stands still while a handler runs.
    with embedded() as mq:
        mq.admin.create_topic("jobs", queues=1)
        consumer = PushConsumer("workers", namesrv=mq.namesrv, invisible=1, **POP)

        @consumer.on("jobs")
        def work(message: Any) -> None:
            calls.append(message.reconsume_times)
            is_called.set()
            may_end.wait(30)

        with consumer, SimpleConsumer("workers", namesrv=mq.namesrv) as other:
            send(mq, b"slow")
            assert is_called.wait(30)
            other.subscribe("jobs")
            assert other.receive(wait=2) == []
            may_end.set()
            assert other.receive(wait=1.5) == []
    assert calls == [0]


def test_modes_that_make_no_sense_are_refused(mq: Any) -> None:
    with pytest.raises(ConfigError, match="mode"):
        PushConsumer("g", namesrv=mq.namesrv, **{**POP, "mode": "push"})
    with pytest.raises(ConfigError, match="orderly"):
        PushConsumer("g", namesrv=mq.namesrv, mode="pop", orderly=True)


@pytest.mark.spec("P80")
def test_a_group_switches_modes_while_it_runs_and_loses_nothing(mq: Any) -> None:
    got: list[bytes] = []
    sent: list[bytes] = []
    consumer = member(mq, lambda message: got.append(message.body), mode="auto")
    with consumer:
        mq.clock.advance("2s")
        for round_, mode in enumerate(["pull", "pop", "pull", "pop"]):
            mq.admin.set_group_mode("workers", "jobs", mode)
            for i in range(6):
                sent.append(b"%d-%d" % (round_, i))
                send(mq, sent[-1])
                mq.clock.advance("5s")
            queues = {queue.queue_id for queue in consumer.assignment()}
            assert queues == ({-1} if mode == "pop" else {0})
        mq.clock.advance("2m")
    # Where one mode ends and the other begins, a message may come twice.
    assert set(got) == set(sent)
    assert len(got) <= len(sent) + 6


def test_pop_after_pull_begins_where_the_group_stands(mq: Any) -> None:
    got: list[bytes] = []
    for mode in ("pull", "pop", "pull"):
        with member(mq, lambda message: got.append(message.body), mode=mode, instance=mode):
            send(mq, *(mode.encode() + b"%d" % i for i in range(5)))
            mq.clock.advance("40s")
    assert sorted(got) == sorted(
        mode + b"%d" % i for mode in (b"pull", b"pop", b"pull") for i in range(5)
    )


def test_unwanted_messages_leave_the_limit_as_it_is(mq: Any) -> None:
    got: list[bytes] = []
    consumer = PushConsumer("workers", namesrv=mq.namesrv, **POP)
    # Two tags with one hash: the broker brings both.
    consumer.on("jobs", tags="Aa")(lambda message: got.append(message.body))
    with consumer:
        mq.clock.advance("3s")
        with Producer("p", namesrv=mq.namesrv) as producer:
            for tag in ("Aa", "BB", "Aa"):
                producer.send(Message("jobs", tag.encode(), tag=tag))
        mq.clock.advance("5s")
        assert consumer._core.pop_runner.counts == {}
    assert got == [b"Aa", b"Aa"]
    assert sum(row.lag for row in mq.admin.group_lag("workers", topic="jobs")) == 0


@pytest.mark.spec("P81")
def test_unfinished_messages_above_the_limit_stop_popping() -> None:
    may_end = threading.Event()
    # In real time: virtual time stands still while a handler runs.
    with embedded() as mq:
        mq.admin.create_topic("jobs", queues=1)
        send(mq, *(b"%d" % i for i in range(60)))
        got: list[bytes] = []

        def work(message: Any) -> None:
            may_end.wait(30)
            got.append(message.body)

        def in_flight() -> int:
            return sum(row.in_flight for row in mq.admin.group_lag("workers", topic="jobs"))

        with member(mq, work, threads=1, pop_limit=8, pop_batch_size=4):
            deadline = time.monotonic() + 30
            while in_flight() < 12 and time.monotonic() < deadline:
                time.sleep(0.02)
            # Two more looks: nothing is popped any more.
            for _ in range(2):
                time.sleep(0.06)
                assert in_flight() == 12
            may_end.set()
            while len(got) < 60 and time.monotonic() < deadline:
                time.sleep(0.02)
    assert sorted(got) == sorted(b"%d" % i for i in range(60))
