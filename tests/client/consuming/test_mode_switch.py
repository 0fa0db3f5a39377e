"""A group that changes from popping to pulling and back, with retries under way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Message, Producer, PushConsumer, RetryLater, SimpleConsumer, embedded
from penstock.client.consuming.subscriptions import Subscriptions, restored_topic
from penstock.model import MessageQueue, StoredMessage

BODIES = [b"%d" % i for i in range(8)]


@pytest.fixture
def mq() -> Iterator[Any]:
    with embedded(clock="virtual") as mq:
        mq.admin.create_topic("jobs", queues=2)
        yield mq


def send(mq: Any, *bodies: bytes) -> None:
    with Producer("p", namesrv=mq.namesrv) as producer:
        for body in bodies:
            producer.send(Message("jobs", body))


def simple(mq: Any, **more: Any) -> SimpleConsumer:
    consumer = SimpleConsumer("workers", namesrv=mq.namesrv, start_from="first", **more)
    consumer.subscribe("jobs")
    return consumer


def push(mq: Any, handle: Any, mode: Any) -> Any:
    consumer = PushConsumer(
        "workers", namesrv=mq.namesrv, mode=mode, start_from="first", instance=mode
    )
    consumer.on("jobs")(handle)
    return consumer


def leave_retries(mq: Any) -> None:
    """Two messages are done, two in the pop retry topic, and four with a member that stops."""
    send(mq, *BODIES[:4])
    with simple(mq) as consumer:
        first = [one for _ in range(4) for one in consumer.receive(wait=0)]
        assert sorted(one.body for one in first) == BODIES[:4]
        consumer.ack_all([one for one in first if one.body in BODIES[:2]])
        mq.clock.advance("31s")
        send(mq, *BODIES[4:])
        held = [one for _ in range(6) for one in consumer.receive(4, wait=0)]
        assert len(held) >= 4


@pytest.mark.parametrize("mode", ["pull", "auto"])
@pytest.mark.parametrize("spelling", ["_", "+"])
def test_members_that_pull_get_what_members_that_popped_have_left(
    mq: Any, mode: str, spelling: str
) -> None:
    is_second = "true" if spelling == "+" else "false"
    mq.admin.update_broker_config("broker-a", {"enableRetryTopicV2": is_second})
    leave_retries(mq)
    got: list[tuple[str, bytes]] = []
    failed: set[bytes] = set()

    def handle(message: StoredMessage) -> None:
        got.append((message.topic, message.body))
        if message.body == BODIES[2] and message.body not in failed:
            # Fails once more, where it is pulled now: goes to the plain retry topic.
            failed.add(message.body)
            raise RetryLater("1s")

    with push(mq, handle, mode) as consumer:
        mq.clock.advance("3m")
        assert {queue.topic for queue in consumer.assignment()} == {"jobs"}
    assert {topic for topic, _ in got} == {"jobs"}
    assert sorted(set(body for _, body in got)) == BODIES[2:]
    assert failed == {BODIES[2]}
    # Each came once, and the failed one once more.
    assert len(got) == len(BODIES[2:]) + 1
    assert sum(row.lag for row in mq.admin.group_lag("workers")) == 0
    retry = f"%RETRY%workers{spelling}jobs"
    assert {row.topic for row in mq.admin.group_lag("workers")} >= {"jobs", retry}


@pytest.mark.parametrize("mode", ["simple", "pop"])
def test_members_that_pop_get_what_members_that_pulled_have_left(mq: Any, mode: str) -> None:
    attempts: list[bytes] = []

    def fail(message: StoredMessage) -> None:
        attempts.append(message.body)
        if message.body in BODIES[:4]:
            raise RetryLater("30s")

    send(mq, *BODIES)
    with push(mq, fail, "pull"):
        mq.clock.advance("10s")
    assert sorted(attempts) == BODIES
    got: list[tuple[str, bytes, int]] = []

    def handle(message: StoredMessage) -> None:
        got.append((message.topic, message.body, message.reconsume_times))

    if mode == "pop":
        with push(mq, handle, "pop"):
            mq.clock.advance("3m")
    else:
        with simple(mq) as consumer:
            mq.clock.advance("40s")
            for round_ in range(12):
                for message in consumer.receive(wait="1s"):
                    handle(message)
                    if message.body != BODIES[0] or round_:
                        consumer.ack(message)
                mq.clock.advance("6s")
    wanted = [("jobs", body, 1) for body in BODIES[:4]]
    assert set(wanted) <= set(got)
    again = [one for one in got if one not in wanted]
    assert again == ([] if mode == "pop" else [("jobs", BODIES[0], 2)])
    assert sum(row.lag for row in mq.admin.group_lag("workers")) == 0


def test_a_group_that_switches_while_messages_fail_handles_each_one(mq: Any) -> None:
    """The broker's setting changes under a running member, with failures all the time."""
    done: set[bytes] = set()
    sent: list[bytes] = []

    def handle(message: StoredMessage) -> None:
        if message.reconsume_times == 0:
            raise RetryLater("10s")
        done.add(message.body)

    with push(mq, handle, "auto"):
        for round_, mode in enumerate(["pop", "pull", "pop", "pull"]):
            mq.admin.set_group_mode("workers", "jobs", mode)
            for i in range(4):
                sent.append(b"%d-%d" % (round_, i))
                send(mq, sent[-1])
                mq.clock.advance("7s")
        mq.clock.advance("3m")
    assert done == set(sent)


# Names


def retry(topic: str, **properties: str) -> StoredMessage:
    text = "".join(f"{key}\x01{value}\x02" for key, value in properties.items())
    return StoredMessage(
        topic, b"", queue=MessageQueue(topic, "b", 0), queue_offset=0, properties=text.encode()
    )


@pytest.mark.parametrize("topic", ["%RETRY%g_T", "%RETRY%g+T"])
def test_both_spellings_name_the_topic(topic: str) -> None:
    assert restored_topic(retry(topic), "%RETRY%g", None) == "T"
    # Apache's broker keeps the name of the pop retry topic when a member sends its message back.
    assert restored_topic(retry("%RETRY%g", RETRY_TOPIC=topic), "%RETRY%g", None) == "T"


@pytest.mark.spec("P42")
def test_retries_of_a_group_with_the_same_retry_topic_are_passed() -> None:
    wanted = Subscriptions("G", with_retry=True, now_ms=lambda: 0)
    assert wanted.is_of_group(retry("%RETRY%G_a_T", ORIGIN_GROUP="G"))
    assert wanted.is_of_group(retry("%RETRY%G_a_T"))
    assert not wanted.is_of_group(retry("%RETRY%G_a_T", ORIGIN_GROUP="G_a"))
    # Elsewhere the property may be of another group's retry: a message that was redriven has it.
    assert wanted.is_of_group(retry("%RETRY%G", ORIGIN_GROUP="other"))
