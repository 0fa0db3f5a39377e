"""The blocking classes, on real threads and sockets."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.scripted import ThreadedCluster

import penstock
from penstock import (
    Message,
    MessageQueue,
    PenstockError,
    Producer,
    PullConsumer,
    PushConsumer,
    StoredMessage,
)
from penstock.client.consuming.assignment import Average, MachineRoomNearby
from penstock.client.consuming.outcomes import RetryLater
from penstock.client.session import session_registry
from penstock.errors import (
    ConfigError,
    IllegalName,
    InvalidArgument,
    LifecycleError,
    SubscriptionIllegal,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command

SEND = RequestCode.SEND_MESSAGE_V2


def wait_for(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def test_the_public_names_load_lazily_and_are_all_there() -> None:
    code = "import sys, penstock; print('penstock.client' in sys.modules, 'asyncio' in sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert loaded.stdout.split() == ["False", "False"]
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    assert set(penstock.__all__) <= set(dir(penstock))
    with pytest.raises(AttributeError, match="no attribute 'Consumer'"):
        _ = penstock.Consumer


def test_a_message_goes_from_a_producer_to_a_consumer(cluster: ThreadedCluster) -> None:
    seen: list[StoredMessage] = []
    consumer = PushConsumer(group="billing", namesrv=cluster.namesrv, start_from="first")

    @consumer.on("T", tags="*")
    def bill(message: StoredMessage) -> None:
        seen.append(message)

    with Producer(group="shop", namesrv=cluster.namesrv) as producer, consumer:
        receipt = producer.send(Message("T", b"hello", keys=["o-1"]))
        wait_for(lambda: seen)
        assert receipt.queue in consumer.assignment()
        assert len(producer.queues("T")) == 4
    assert seen[0].body == b"hello"
    assert cluster.broker.asked(RequestCode.UNREGISTER_CLIENT, consumerGroup="billing")
    assert cluster.broker.asked(RequestCode.UNREGISTER_CLIENT, producerGroup="shop")


def test_submitted_messages_all_get_receipts(cluster: ThreadedCluster) -> None:
    with Producer(group="shop", namesrv=cluster.namesrv, max_in_flight=50) as producer:
        futures = [producer.submit(Message("T", b"%d" % number)) for number in range(500)]
        receipts = [future.result(10) for future in futures]
    assert len({receipt.msg_id for receipt in receipts}) == 500
    assert len(cluster.broker.sent) == 500


def test_lingering_packs_submitted_messages(cluster: ThreadedCluster) -> None:
    with Producer(group="shop", namesrv=cluster.namesrv, linger="20ms") as producer:
        futures = [producer.submit(Message("T", b"%d" % number)) for number in range(500)]
        assert len({future.result(10).msg_id for future in futures}) == 500
    assert len(cluster.broker.asked(RequestCode.SEND_BATCH_MESSAGE)) < 100


def test_a_message_that_cannot_be_looked_at_fails_alone(cluster: ThreadedCluster) -> None:
    def keys() -> Iterator[str]:
        yield "k"
        raise ZeroDivisionError

    with Producer(group="shop", namesrv=cluster.namesrv) as producer:
        bad = producer.submit(Message("T", b"bad", keys=keys()))
        good = producer.submit(Message("T", b"good"))
        with pytest.raises(PenstockError, match="not sent: ZeroDivisionError"):
            bad.result(10)
        assert good.result(10).msg_id
    assert [body for _, body in cluster.broker.sent] == [b"good"]


def test_batches_one_way_and_chosen_queues(cluster: ThreadedCluster) -> None:
    threads: list[int] = []

    def last(queues: object, message: Message) -> MessageQueue:
        threads.append(threading.get_ident())
        assert isinstance(queues, tuple)
        chosen: MessageQueue = queues[-1]
        return chosen

    with Producer(group="shop", namesrv=cluster.namesrv) as producer:
        # A user's function runs where the user is.
        assert producer.send(Message("T", b"x"), queue=last).queue.queue_id == 3
        assert threads == [threading.get_ident()]
        queue = MessageQueue("T", "broker-a", 1)
        assert producer.send(Message("T", b"x"), queue=queue, timeout="2s").queue == queue
        assert "," in producer.send_batch([Message("T", b"1"), Message("T", b"2")]).msg_id
        producer.send_oneway(Message("T", b"y"))
        wait_for(lambda: cluster.broker.asked(SEND)[-1].is_oneway)


def test_errors_come_out_of_blocking_calls(cluster: ThreadedCluster) -> None:
    cluster.broker.script[SEND] = lambda peer, request: Command(
        ResponseCode.MESSAGE_ILLEGAL, remark="bad"
    )
    with Producer(group="shop", namesrv=cluster.namesrv) as producer:
        with pytest.raises(PenstockError, match="bad"):
            producer.send(Message("T", b"x"))
        with pytest.raises(ValueError, match="empty"):
            producer.send(Message("T", b""))
        with pytest.raises(PenstockError, match="bad"):
            producer.submit(Message("T", b"x")).result(5)


def test_a_client_is_used_between_start_and_stop(cluster: ThreadedCluster) -> None:
    producer = Producer(group="shop", namesrv=cluster.namesrv)
    with pytest.raises(LifecycleError, match="producer 'shop' is not running"):
        producer.send(Message("T", b"x"))
    producer.stop()  # harmless
    producer.start()
    with pytest.raises(LifecycleError, match="started twice"):
        producer.start()
    producer.stop()
    producer.stop()
    with pytest.raises(LifecycleError, match="started twice"):
        producer.start()


@pytest.mark.spec("S8")
def test_clients_of_one_instance_share_a_session(cluster: ThreadedCluster) -> None:
    before = threading.active_count()
    with (
        Producer(group="shop", namesrv=cluster.namesrv, instance="one") as producer,
        Producer(group="stall", namesrv=cluster.namesrv, instance="one") as second,
    ):
        assert producer.client_id == second.client_id
        producer.send(Message("T", b"x"))
        second.send(Message("T", b"x"))
        assert len(cluster.broker.peers) == 1
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("keyword", "options"),
    [
        ("access_key", {"access_key": "else", "secret_key": "s3cret"}),
        ("secret_key", {"access_key": "key", "secret_key": "other"}),
        ("access_key", {}),
        ("tls", {"access_key": "key", "secret_key": "s3cret", "tls": True}),
        ("profile", {"access_key": "key", "secret_key": "s3cret", "profile": "documents"}),
        (
            "heartbeat_interval",
            {"access_key": "key", "secret_key": "s3cret", "heartbeat_interval": 7},
        ),
    ],
)
def test_a_client_that_would_share_a_session_of_other_settings_is_refused(
    cluster: ThreadedCluster, keyword: str, options: dict[str, Any]
) -> None:
    with Producer(
        group="shop",
        namesrv=cluster.namesrv,
        instance="one",
        access_key="key",
        secret_key="s3cret",
    ) as producer:
        other = Producer(group="stall", namesrv=cluster.namesrv, instance="one", **options)
        with pytest.raises(
            ConfigError, match=f"{keyword} differs from that of other clients"
        ) as refused:
            other.start()
        assert "instance=" in str(refused.value)
        assert "s3cret" not in str(refused.value)
        # It leaves no trace: the first one goes on, and so does one of its own instance.
        producer.send(Message("T", b"x"))
        own = Producer(group="stall", namesrv=cluster.namesrv, instance="two", **options)
        assert own.client_id != producer.client_id
    assert len(session_registry._registry) == 0


def test_broadcasting_consumers_share_a_session_of_equal_settings(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    def make(group: str, **options: Any) -> PushConsumer:
        consumer = PushConsumer(
            group=group,
            namesrv=cluster.namesrv,
            model="broadcasting",
            offsets_dir=tmp_path,
            **options,
        )
        consumer.on("T")(lambda message: None)
        return consumer

    with make("billing") as first, make("printing", threads=3) as second:
        assert first.client_id == second.client_id
        with pytest.raises(ConfigError, match="tls differs from that of other clients"):
            make("shipping", tls=True).start()


@pytest.mark.spec("S7")
def test_unnamed_clients_get_names_of_their_own(cluster: ThreadedCluster) -> None:
    one = Producer(group="shop", namesrv=cluster.namesrv)
    two = Producer(group="shop", namesrv=cluster.namesrv)
    assert one.client_id != two.client_id
    ip, _, instance = one.client_id.partition("@")
    assert ip == "127.0.0.1"
    assert instance.startswith(f"{os.getpid()}#")
    unit = Producer(group="s", namesrv=cluster.namesrv, instance="i", unit="u", client_ip="1.2.3.4")
    assert unit.client_id == "1.2.3.4@i@u"
    old = PushConsumer(group="b", namesrv=cluster.namesrv, profile="documents")
    assert old.client_id == f"127.0.0.1@{os.getpid()}"
    everyone = PushConsumer(group="b", namesrv=cluster.namesrv, model="broadcasting")
    assert everyone.client_id == "127.0.0.1@DEFAULT"


def test_handlers_run_on_threads_of_the_pool(cluster: ThreadedCluster) -> None:
    names: set[str] = set()
    barrier = threading.Barrier(4, timeout=10)
    consumer = PushConsumer(group="billing", namesrv=cluster.namesrv, start_from="first", threads=4)

    @consumer.on("T")
    def handler(message: StoredMessage) -> None:
        names.add(threading.current_thread().name)
        barrier.wait()

    cluster.put("T", 0, *[b"x"] * 4)
    with consumer:
        wait_for(lambda: len(names) == 4)
    assert all(name.startswith("billing handler") for name in names)


def test_coroutine_handlers_run_on_a_loop_of_their_own(cluster: ThreadedCluster) -> None:
    seen: list[tuple[int, bytes]] = []
    consumer = PushConsumer(group="billing", namesrv=cluster.namesrv, start_from="first")

    @consumer.on("T")
    async def handler(message: StoredMessage) -> None:
        await asyncio.sleep(0.001)
        seen.append((threading.get_ident(), message.body))

    cluster.put("T", 0, b"1", b"2", b"3")
    with consumer:
        wait_for(lambda: len(seen) == 3)
    assert len({thread for thread, _ in seen}) == 1
    assert threading.get_ident() not in {thread for thread, _ in seen}


def test_a_handler_that_blocks_everything_does_not_stop_heartbeats(
    cluster: ThreadedCluster,
) -> None:
    release = threading.Event()
    started = threading.Event()
    consumer = PushConsumer(
        group="billing",
        namesrv=cluster.namesrv,
        start_from="first",
        threads=1,
        heartbeat_interval=0.05,
    )

    @consumer.on("T")
    async def handler(message: StoredMessage) -> None:
        started.set()
        release.wait(10)  # a blocking call where none should be

    cluster.put("T", 0, b"x")
    with consumer:
        assert started.wait(10)
        cluster.broker.forget()
        wait_for(lambda: len(cluster.broker.asked(RequestCode.HEART_BEAT)) >= 3)
        release.set()


class Undecided:
    """A resolver of machine rooms that is slow."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.answer = threading.Event()

    def room_of_queue(self, queue: MessageQueue) -> str:
        self.asked.set()
        self.answer.wait(60)
        return "here"

    def room_of_member(self, client_id: str) -> str:
        return "here"


class Slow(Average):
    """A strategy of a user's own, though it inherits one of ours."""

    rooms = Undecided()

    def assign(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        self.rooms.room_of_queue(queues[0])
        return super().assign(group, client_id, queues, members)


@pytest.mark.parametrize("kind", ["strategy", "resolver"])
def test_a_strategy_that_takes_its_time_does_not_stop_heartbeats(
    cluster: ThreadedCluster, kind: str
) -> None:
    rooms = Undecided()
    Slow.rooms = rooms
    allocation = Slow() if kind == "strategy" else MachineRoomNearby(Average(), rooms)
    consumer = PushConsumer(
        group="billing", namesrv=cluster.namesrv, allocation=allocation, heartbeat_interval=0.05
    )
    consumer.on("T")(lambda message: None)
    with consumer:
        try:
            assert rooms.asked.wait(10)
            cluster.broker.forget()
            wait_for(lambda: len(cluster.broker.asked(RequestCode.HEART_BEAT)) >= 3)
            assert consumer.assignment() == set()
        finally:
            rooms.answer.set()
        wait_for(lambda: len(consumer.assignment()) == 4)


def test_failures_travel_back_with_their_reason(cluster: ThreadedCluster) -> None:
    consumer = PushConsumer(group="billing", namesrv=cluster.namesrv, start_from="first")

    @consumer.on("T")
    def handler(message: StoredMessage) -> None:
        raise RetryLater("30s", "later")

    cluster.put("T", 0, b"x")
    with consumer:
        wait_for(lambda: cluster.broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK))
        stats = consumer.stats()
    (back,) = cluster.broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert back.ext["delayLevel"] == "4"
    assert stats.returns == {"FAILED": 1}
    assert stats.topics["T"].failed == 1
    assert MessageQueue("T", "broker-a", 0) in stats.queues


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_messages_that_handlers_are_at_are_counted(cluster: ThreadedCluster, orderly: bool) -> None:
    queue = MessageQueue("T", "broker-a", 0)
    consumer = PushConsumer(
        group="billing",
        namesrv=cluster.namesrv,
        start_from="first",
        orderly=orderly,
        batch_size=2,
        threads=3,
    )
    began: list[int] = []
    go_on = threading.Event()

    @consumer.on("T")
    def handler(messages: list[StoredMessage]) -> None:
        began.append(len(messages))
        assert go_on.wait(30)

    cluster.put("T", 0, *[b"x"] * 9)
    with consumer:
        # Three threads are at two messages each; in order it is one thread.
        wait_for(lambda: len(began) == (1 if orderly else 3))
        held = consumer.stats().queues[queue]
        assert (held.in_handlers, held.cached) == (2 if orderly else 6, 9)
        go_on.set()
        wait_for(lambda: sum(began) == 9)
        wait_for(lambda: consumer.stats().queues[queue].cached == 0)
        assert consumer.stats().queues[queue].in_handlers == 0


def test_two_handlers_for_a_topic_and_bad_filters_are_refused_where_they_are_written() -> None:
    consumer = PushConsumer(group="billing", namesrv="127.0.0.1:1")

    @consumer.on("T")
    def first(message: StoredMessage) -> None: ...

    with pytest.raises(InvalidArgument, match="topic 'T' has two handlers"):
        consumer.on("T")(first)
    with pytest.raises(SubscriptionIllegal):
        consumer.on("U", sql="a >")(first)
    with pytest.raises(SubscriptionIllegal, match="one of them"):
        consumer.on("U", tags="a", sql="a > 5")(first)
    with pytest.raises(IllegalName):
        consumer.on("has blank")(first)
    with pytest.raises(InvalidArgument, match=r'as in @consumer.on\("topic"\)'):
        consumer.on(first)  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match="retry topic"):
        consumer.on("%RETRY%billing")(first)


def test_unknown_and_wrong_keywords_are_errors_that_name_them() -> None:
    with pytest.raises(ConfigError, match="unknown keyword: 'colour'"):
        PushConsumer(group="billing", colour="blue")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="unknown keyword: 'colour'"):
        Producer(group="shop", colour="blue")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"did you mean namesrv\?"):
        Producer(group="shop", nameserv="127.0.0.1:9876")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"did you mean start_from\?"):
        PushConsumer(group="billing", start_form="first")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="batch_size is 0"):
        PushConsumer(group="billing", batch_size=0)
    with pytest.raises(ValueError, match="is not a duration"):
        PushConsumer(group="billing", consume_timeout="soon")
    with pytest.raises(ConfigError, match="allocation is 'best'"):
        PushConsumer(group="billing", allocation="best")
    with pytest.raises(ConfigError, match="unknown keyword: 'pull_batch_bytes'"):
        PushConsumer(group="billing", pull_batch_bytes=5)  # type: ignore[call-overload]


def test_where_to_start_is_a_word_or_a_time() -> None:
    moment = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    for given in (moment, int(moment.timestamp() * 1000), moment.isoformat()):
        consumer = PushConsumer(group="billing", start_from=given)
        assert consumer._settings.start_from.timestamp_ms == int(moment.timestamp() * 1000)
    local = PushConsumer(group="billing", start_from="20240506070809")._settings.start_from
    assert local.where == "time"
    assert PushConsumer(group="b", start_from="first")._settings.start_from.where == "first"
    for wrong in ("yesterday", -1, True):
        with pytest.raises(InvalidArgument, match="is not a time"):
            PushConsumer(group="billing", start_from=wrong)


def test_durations_are_numbers_texts_and_timedeltas() -> None:
    for given in (90, "90s", "1m30s", timedelta(seconds=90)):
        consumer = PushConsumer(group="billing", consume_timeout=given)
        assert consumer._settings.consume_timeout == 90.0


def test_pausing_resuming_and_seeking(cluster: ThreadedCluster) -> None:
    seen: list[int] = []
    consumer = PushConsumer(group="billing", namesrv=cluster.namesrv, start_from="first")

    @consumer.on("T")
    def handler(message: StoredMessage) -> None:
        seen.append(message.queue_offset)

    cluster.put("T", 0, *[b"x"] * 5)
    with consumer:
        wait_for(lambda: len(seen) == 5)
        consumer.seek(MessageQueue("T", "broker-a", 0), 3)
        wait_for(lambda: len(seen) == 7)
        consumer.seek(MessageQueue("T", "broker-a", 0), datetime(2020, 1, 1, tzinfo=UTC))
        wait_for(lambda: len(seen) == 12)
        consumer.pause()
        consumer.resume()
        with pytest.raises(InvalidArgument, match="does not hold"):
            consumer.seek(MessageQueue("U", "broker-a", 0), 3)
        with pytest.raises(InvalidArgument, match="offset -1"):
            consumer.seek(MessageQueue("T", "broker-a", 0), -1)
    assert sorted(seen[:5]) == sorted(seen[7:]) == [0, 1, 2, 3, 4]
    assert sorted(seen[5:7]) == [3, 4]


def test_a_second_start_of_a_group_in_one_instance_fails_and_leaves_the_first(
    cluster: ThreadedCluster,
) -> None:
    def make() -> PushConsumer:
        consumer = PushConsumer(group="billing", namesrv=cluster.namesrv, instance="one")
        consumer.on("T")(lambda message: None)
        return consumer

    with make() as first:
        with pytest.raises(LifecycleError, match="already running"):
            make().start()
        assert first.stats().group == "billing"


def test_namespaces_prefix_names_on_the_wire_only(cluster: ThreadedCluster) -> None:
    cluster.cluster.add_topic("eu%T", 1)
    seen: list[str] = []
    consumer = PushConsumer(
        group="billing", namesrv=cluster.namesrv, start_from="first", namespace="eu"
    )

    @consumer.on("T")
    def handler(message: StoredMessage) -> None:
        seen.append(message.topic)

    with consumer, Producer(group="shop", namesrv=cluster.namesrv, namespace="eu") as producer:
        producer.send(Message("T", b"x"))
        wait_for(lambda: seen)
        assert producer.queues("T") == [MessageQueue("eu%T", "broker-a", 0)]
    assert seen == ["T"]
    ((header, _),) = cluster.broker.sent
    assert (header.topic, header.producer_group) == ("eu%T", "eu%shop")
    assert "INSTANCE_ID\x01eu\x02" in (header.properties or "")
    assert cluster.broker.asked(RequestCode.PULL_MESSAGE)[0].ext["consumerGroup"] == "eu%billing"


def test_a_reader_polls_commits_and_iterates(cluster: ThreadedCluster) -> None:
    cluster.put("T", 0, *[b"%d" % number for number in range(30)])
    queue = MessageQueue("T", "broker-a", 0)
    with PullConsumer(group="readers", namesrv=cluster.namesrv, start_from="first") as reader:
        reader.assign([queue])
        assert [m.body for m in reader.poll("5s")] == [b"%d" % n for n in range(10)]
        reader.commit()
        assert cluster.broker.offsets["readers", "T", 0] == 10
        reader.seek(queue, 25)
        taken = [message.body for message in itertools.islice(reader, 5)]
        assert taken == [b"25", b"26", b"27", b"28", b"29"]
        assert reader.assignment() == {queue}
        with pytest.raises(InvalidArgument, match="both subscribes"):
            reader.subscribe("T")


def test_a_failed_block_commits_nothing_that_was_not_done(cluster: ThreadedCluster) -> None:
    cluster.put("T", 0, *[b"%d" % number for number in range(30)])
    seen: list[bytes] = []

    def read() -> None:
        with PullConsumer(group="readers", namesrv=cluster.namesrv, start_from="first") as reader:
            reader.assign([MessageQueue("T", "broker-a", 0)])
            for message in reader:
                seen.append(message.body)
                if len(seen) == 14:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read()
    assert seen[-1] == b"13"
    assert cluster.broker.offsets["readers", "T", 0] == 10


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_reader_that_is_stopped_by_hand_leaves_its_last_poll_to_the_next(
    cluster: ThreadedCluster, ends_well: bool
) -> None:
    cluster.put("T", 0, *[b"x"] * 30)
    reader = PullConsumer(group="readers", namesrv=cluster.namesrv, start_from="first")
    reader.assign([MessageQueue("T", "broker-a", 0)])
    reader.start()
    assert len(reader.poll()) == 10
    assert len(reader.poll()) == 10
    if ends_well:
        reader.commit()
    reader.stop()
    assert cluster.broker.offsets["readers", "T", 0] == (20 if ends_well else 10)


def test_a_loop_that_is_left_early_takes_nothing_with_it(cluster: ThreadedCluster) -> None:
    cluster.put("T", 0, *[b"%d" % number for number in range(30)])
    queue = MessageQueue("T", "broker-a", 0)
    with PullConsumer(group="readers", namesrv=cluster.namesrv, start_from="first") as reader:
        reader.assign([queue])
        assert [m.body for m in itertools.islice(reader, 3)] == [b"0", b"1", b"2"]
        reader.commit()
        assert cluster.broker.offsets["readers", "T", 0] == 3
        assert [m.body for m in itertools.islice(reader, 2)] == [b"3", b"4"]
        assert [m.body for m in reader.poll()] == [b"5", b"6", b"7", b"8", b"9"]
        assert next(iter(reader)).body == b"10"
        # What it was left with is gone with what it was about.
        reader.seek(queue, 20)
        assert next(iter(reader)).body == b"20"
        reader.assign([])
        assert reader.poll(0.01) == []


def test_a_loop_ends_with_the_message_at_which_the_reader_was_stopped(
    cluster: ThreadedCluster,
) -> None:
    cluster.put("T", 0, *[b"x"] * 30)
    reader = PullConsumer(group="readers", namesrv=cluster.namesrv, start_from="first")
    reader.assign([MessageQueue("T", "broker-a", 0)])
    reader.start()
    seen = 0
    for _ in reader:
        seen += 1
        if seen == 3:
            reader.stop()
    assert seen == 3


def test_a_reader_that_was_never_started_says_so_in_a_loop_as_in_a_poll() -> None:
    reader = PullConsumer("readers")
    reader.subscribe("T")
    for ask in (reader.poll, iter(reader).__next__):
        with pytest.raises(LifecycleError, match=r"'readers' is not running; try: start\(\)"):
            ask()


def test_a_reader_is_assigned_one_queue_or_several_and_nothing_else(
    cluster: ThreadedCluster,
) -> None:
    queue = MessageQueue("T", "broker-a", 0)
    cluster.put("T", 0, b"x")
    with PullConsumer(group="readers", namesrv=cluster.namesrv, start_from="first") as reader:
        reader.assign(queue)
        assert reader.assignment() == {queue}
        assert [message.body for message in reader.poll()] == [b"x"]
        wrong: Any
        for wrong in ("T", [("T", "broker-a", 0)], 5, [queue, None]):
            with pytest.raises(InvalidArgument, match="is not a queue; expected a MessageQueue"):
                reader.assign(wrong)
            with pytest.raises(InvalidArgument, match="is not a queue; expected a MessageQueue"):
                reader.pause(wrong)
        assert reader.assignment() == {queue}


def test_a_subscribed_reader_gets_its_share(cluster: ThreadedCluster) -> None:
    cluster.put("T", 2, b"x")
    reader = PullConsumer(group="readers", namesrv=cluster.namesrv, start_from="first")
    reader.subscribe("T", "a || b")
    with pytest.raises(InvalidArgument, match="both subscribes"):
        reader.assign([])
    with reader:
        assert reader.poll(0.01) == []
        wait_for(lambda: len(reader.assignment()) == 4)


def test_transactions_run_in_the_callers_thread(cluster: ThreadedCluster) -> None:
    threads: list[int] = []

    def execute(message: Message) -> bool:
        threads.append(threading.get_ident())
        return True

    def fails(message: Message) -> bool:
        raise ValueError("unknown")

    with Producer(
        group="shop", namesrv=cluster.namesrv, check_transaction=lambda message: True
    ) as producer:
        producer.send_in_transaction(Message("T", b"x"), execute)
        producer.send_in_transaction(Message("T", b"x"), fails)
        wait_for(lambda: len(cluster.broker.asked(RequestCode.END_TRANSACTION)) == 2)
    ends = [e.ext["commitOrRollback"] for e in cluster.broker.asked(RequestCode.END_TRANSACTION)]
    assert ends == ["8", "0"]
    assert threads == [threading.get_ident()]


CHILD = """
    import sys, time
    from penstock import PushConsumer
    consumer = PushConsumer(group="billing", namesrv=sys.argv[1], start_from="first")
    @consumer.on("T")
    def handler(message):
        print("begin", flush=True)
        time.sleep(float(sys.argv[2]))
        print("end", flush=True)
    consumer.run()
    print("left", flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_run_after_the_running_handler(
    cluster: ThreadedCluster, how: signal.Signals
) -> None:
    cluster.put("T", 0, b"x")
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), cluster.namesrv, "0.5"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begin\n"
        child.send_signal(how)
        assert child.stdout.read() == "end\nleft\n"
    assert child.returncode == 0
    assert cluster.broker.offsets["billing", "T", 0] == 1


def test_a_second_interrupt_skips_the_wait(cluster: ThreadedCluster) -> None:
    cluster.put("T", 0, b"x")
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), cluster.namesrv, "1000"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begin\n"
        child.send_signal(signal.SIGINT)
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        assert child.stdout.read() == "left\n"
    assert child.returncode == 0
    assert ("billing", "T", 0) not in cluster.broker.offsets


def test_every_call_in_a_fork_says_so_and_the_parent_goes_on(cluster: ThreadedCluster) -> None:
    code = """
        import os, sys
        from penstock import Message, Producer
        from penstock.errors import LifecycleError

        def refused(call, *args):
            try:
                call(*args)
            except LifecycleError as error:
                assert "used in its fork" in str(error), error
            else:
                raise AssertionError(f"{call} came through")

        def in_child(check):
            child = os.fork()
            if child == 0:
                check()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0

        message = Message("T", b"x")
        producer = Producer(group="shop", namesrv=sys.argv[1], max_in_flight=1)
        producer.start()
        producer.send(message)
        producer.send(message)  # over a connection of its own

        def before_the_first_submit():
            for call in (producer.submit, producer.send_oneway, producer.send):
                refused(call, message)
            for _ in range(2):
                refused(producer.stop)

        in_child(before_the_first_submit)
        producer.send(message)
        producer.submit(message).result(10)

        def after_it():
            for _ in range(3):
                refused(producer.submit, message)
                refused(producer.send, message)
            refused(producer.stop)

        # In the middle of a burst, and with no room left: both are the parent's affair.
        producer._send_queue._is_due = True
        next(producer._window._submitted)
        in_child(after_it)
        producer._send_queue._is_due = False
        producer._window.answered += 1
        producer.submit(message).result(10)
        producer.stop()
    """
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), cluster.namesrv],
        check=True,
        timeout=60,
    )
    first, direct, again, *_ = [request.peer for request in cluster.broker.asked(SEND)]
    assert direct is again
    assert direct is not first


def test_a_submit_on_the_thread_of_the_session_is_refused_and_breaks_nothing(
    cluster: ThreadedCluster,
) -> None:
    refused: list[str] = []
    with Producer(group="shop", namesrv=cluster.namesrv) as producer:

        def submit() -> None:  # as a callback of a future does
            try:
                producer.submit(Message("T", b"1"))
            except LifecycleError as error:
                refused.append(str(error))

        producer._host.call_soon(submit)
        wait_for(lambda: refused)
        assert producer.submit(Message("T", b"2")).result(10)
    assert "would wait for itself" in refused[0]


def test_a_client_used_in_a_fork_says_so(cluster: ThreadedCluster) -> None:
    code = """
        import os, sys
        from penstock import Message, PenstockError, Producer
        producer = Producer(group="shop", namesrv=sys.argv[1], instance="one")
        producer.start()
        producer.send(Message("T", b"parent"))
        if os.fork() == 0:
            try:
                producer.send(Message("T", b"child"))
            except PenstockError as error:
                print(error, flush=True)
            with Producer(group="shop", namesrv=sys.argv[1], instance="one") as fresh:
                fresh.send(Message("T", b"child"))
            os._exit(0)
        os.wait()
        producer.stop()
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), cluster.namesrv],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "used in its fork" in done.stdout
    assert [body for _, body in cluster.broker.sent] == [b"parent", b"child"]
