"""What an answer about popped messages promises, and what clients cannot make grow."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path

import pytest
from tests.support.asking import commit, committed, put_topic
from tests.support.faulty_files import FaultyFiles, SimulatedDisk
from tests.support.popping import Got, ack, bodies, change, messages, pop, start_pop
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker.pop.acknowledging import Receipt, acknowledge
from penstock.errors import StoreError
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.admin import DeleteTopic
from penstock.protocol.headers.pop import AckMessage, Notification
from penstock.protocol.headers.receipts import ReceiptHandle
from penstock.protocol.records.batches import BatchItem, encode_batch
from penstock.remoting import Promise
from penstock.store import Draft
from penstock.testing.eventually import eventually


def numbered(count: int) -> list[bytes]:
    return [b"%04d" % i for i in range(count)]


async def prepared(stage: Stage, *bodies: bytes, **settings: object) -> Wire:
    wire = await stage.connect(await stage.broker(**settings))  # type: ignore[arg-type]
    await put_topic(wire, "T", 1)
    for body in bodies:
        await wire.send("T", body)
    return wire


def receipt_of(got: Got) -> Receipt:
    handle = ReceiptHandle.parse(got.handle)
    return Receipt(
        "g", got.topic, 0, got.offset, handle.pop_time, handle.invisible_time,
        handle.revive_queue_id,
    )  # fmt: skip


# Names that clients invent


@pytest.mark.parametrize("order", [False, True])
@in_virtual_time
async def test_nothing_is_kept_for_groups_that_do_not_exist(tmp_path: Path, order: bool) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await wire.send("T", b"one")
        (one,) = await pop(wire, invisible=2, order=order)
        await stage.clock.sleep(3)
        # As after a move from an Apache broker.
        broker.state.pop.journal.early.expected_until = 1 << 62
        end = broker.state.storage.store.max_position
        long = str(ReceiptHandle.parse(one.handle)._replace(invisible_time=1 << 40))
        for number in range(20):
            for handle in (one.handle, long):
                invented = one._replace(handle=handle)
                assert (await ack(wire, invented, group=f"no-{number}")).code == 0
                answer = await change(wire, invented, 10, group=f"no-{number}")
                assert answer.code == ResponseCode.NO_MESSAGE
        assert broker.state.stats.late_acks == {}
        assert not [key for key in broker.state.stats.acks if key[1].startswith("no-")]
        assert broker.state.storage.store.max_position - end < 1000


@pytest.mark.spec("P57")
@in_virtual_time
async def test_a_repeated_orderly_acknowledgement_counts_once(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        for body in numbered(2):
            await wire.send("T", body)
        first, second = await pop(wire, order=True)
        for one in (second, second, second, first, first):
            assert (await ack(wire, one)).code == 0
        assert broker.state.stats.acks["T", "g"].count == 2


@in_virtual_time
async def test_long_attempt_ids_are_refused(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await prepared(stage, b"one")
        answer = await start_pop(wire, order=True, attempt="a" * 257)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert bodies(await pop(wire, order=True, attempt="a" * 256)) == [b"one"]


@in_virtual_time
async def test_a_request_has_a_bounded_number_of_acknowledgements(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await prepared(stage, b"one")
        (one,) = await pop(wire)
        handle = ReceiptHandle.parse(one.handle)
        entry = {
            **{"c": "g", "t": "T", "r": "0", "so": 0, "q": 0, "rq": handle.revive_queue_id},
            **{"pt": handle.pop_time, "it": handle.invisible_time, "b": "/" * 5460},
        }
        for count, code in ((2, 0), (40, ResponseCode.SYSTEM_ERROR)):
            body = json.dumps({"acks": [entry] * count, "brokerName": "broker-a"}).encode()
            answer = await wire.request(RequestCode.BATCH_ACK_MESSAGE, body=body)
            assert answer.code == code, answer.remark


# Records that cannot be stored


@pytest.mark.spec("P26")
@in_virtual_time
async def test_an_answer_is_withheld_if_the_reviver_writes_its_record_in_vain(
    tmp_path: Path,
) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await wire.send("T", b"one")
        (one,) = await pop(wire)
        state = broker.state
        acknowledge(state, receipt_of(one))
        promise = Promise()
        state.storage.when_written(promise, Command(0))
        files.failing_syncs = 1
        with contextlib.suppress(StoreError):
            state.storage.store.flush()
        # In the same turn: the reviver looks at the journal before the answers leave.
        with pytest.raises(StoreError):
            state.pop.journal.keep_up()
        with pytest.raises(StoreError):
            state.storage.write()
        assert state.pop.points.count == 1


@pytest.mark.spec("P26")
@in_virtual_time
async def test_a_change_whose_second_record_is_refused_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await wire.send("T", b"one")
        (one,) = await pop(wire, invisible=60)
        store = broker.state.storage.store
        append, left = store.append, [1]

        def refuse_second(draft: Draft) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise StoreError("refused")
            return append(draft)

        monkeypatch.setattr(broker.state.storage, "append", refuse_second)
        assert (await change(wire, one, 300)).code != 0
        monkeypatch.undo()
        assert broker.state.pop.points.count == 1
        assert (await ack(wire, one)).code == 0
        assert broker.state.pop.points.count == 0


class HeldFiles(FaultyFiles):
    """A disk whose syncs take as long as a test wants."""

    def __init__(self) -> None:
        super().__init__(SimulatedDisk())
        self.may_sync = threading.Event()
        self.may_sync.set()

    def sync(self, descriptor: int) -> None:
        self.may_sync.wait(20)
        super().sync(descriptor)


@pytest.mark.spec("P26")
async def test_repeated_acknowledgements_wait_for_the_disk_and_say_if_it_takes_long(
    tmp_path: Path,
) -> None:
    files = HeldFiles()
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(
            files=files, store={"flush_disk_type": "SYNC_FLUSH"}, sync_flush_timeout_ms=300
        )
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        for body in numbered(3):
            await wire.send("T", body)
        one, two = await pop(wire, count=2)
        files.may_sync.clear()
        try:
            header = AckMessage("g", "T", 0, one.handle, one.offset)
            answers = [wire.start(RequestCode.ACK_MESSAGE, header) for _ in range(3)]
            changes = wire.start(
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
                {**_fields(two), "invisibleTime": "30000"},
            )
            popped = start_pop(wire, count=1)
            for answer in (*answers, changes):
                assert (await answer).code == ResponseCode.FLUSH_DISK_TIMEOUT
            # If its record is lost the message is handed out again: nothing to say.
            assert bodies(messages(await popped)) == [b"0002"]
        finally:
            files.may_sync.set()
        await eventually(lambda: not broker.state.offsets.has_unflushed)
        assert (await ack(wire, one)).code == 0


def _fields(got: Got) -> dict[str, str]:
    return {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "extraInfo": got.handle,
        "offset": str(got.offset),
    }  # fmt: skip


# After a move from an Apache broker


@in_virtual_time
async def test_repeated_acknowledgements_do_not_hold_the_journal(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        journal, now = broker.state.pop.journal, broker.state.clock.time_ms()
        journal.early.expected_until = now + 3 * 24 * 3_600_000
        # One that a client was given before this life.
        old = Receipt("g", "T", 0, 0, now - 10_000, 30_000, 3)
        await wire.send("T", b"first")
        await wire.heartbeat("me@1", consumer="g", topics=["T"])
        acknowledge(broker.state, old)
        assert journal.early.has_open(broker.state.clock.time_ms())
        for round_ in range(40):
            await wire.send("T", b"%d" % round_)
            for one in await pop(wire, invisible=60):
                for _ in range(2):
                    assert (await ack(wire, one)).code == 0
            await stage.clock.sleep(1)
            # Finished check-points are forgotten, also while an early one is open.
            places = broker.state.pop.points._by_place
            assert sum(map(len, places)) <= 2
        assert not journal.early.has_open(broker.state.clock.time_ms())
        done = [journal.committed(queue_id) for queue_id in range(7)]
        ends = [broker.state.storage.max_offset(journal.topic, queue) for queue in range(7)]
        assert [-1 if one is None else one for one in done] == [end - 1 for end in ends]


# Offsets and held requests


@pytest.mark.spec("P57")
@in_virtual_time
async def test_a_pull_of_before_says_nothing_about_the_lag(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        for body in numbered(10):
            await wire.send("T", body)
        await wire.heartbeat("me@1", consumer="g", topics=["T"])

        def pulled() -> int:
            return broker.state.offsets.pulled("g", "T", 0) or 0

        await wire.pull("g", "T", 0)
        assert pulled() == 10
        broker.state.offsets.reset("g", "T", 0, 2)
        assert pulled() == 0
        for _ in range(2):
            # The first one takes the reset.
            await wire.pull("g", "T", 2)
        await commit(wire, "g", "T", 2)
        assert pulled() == 10
        assert len(await pop(wire, count=3)) == 3
        assert pulled() == 0
        assert await committed(wire, "g", "T") == 5


@in_virtual_time
async def test_a_held_pop_goes_on_when_a_full_queue_has_room(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await prepared(stage, *numbered(6), pop_inflight_message_threshold=4)
        got = await pop(wire, count=4, invisible=300)
        waiting = start_pop(wire, count=1, wait=15)
        await stage.clock.sleep(1)
        assert not waiting.done()
        begun = stage.clock.monotonic()
        await ack(wire, got[0])
        assert bodies(messages(await waiting)) == [b"0004"]
        assert stage.clock.monotonic() - begun < 1


@in_virtual_time
async def test_a_held_notification_ends_with_its_topic(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await prepared(stage)
        watch = Notification("g", "T", -1, 10_000)
        noticed = wire.start(RequestCode.NOTIFICATION, watch)
        await stage.clock.sleep(1)
        await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("T"))
        await stage.clock.sleep(1)
        assert noticed.done()
        assert (await noticed).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.spec("P42")
@in_virtual_time
async def test_deleting_a_topic_leaves_retries_of_others_in_a_shared_retry_topic(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        wire = await prepared(stage, b"mine")
        await put_topic(wire, "a_T", 1)
        await wire.send("a_T", b"theirs")
        await pop(wire, group="G_a", invisible=5)
        await pop(wire, group="G", topic="a_T", invisible=5)
        await stage.clock.sleep(5.5)
        await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("a_T"))
        await put_topic(wire, "a_T", 1)
        assert bodies(await pop(wire, group="G_a")) == [b"mine"]
        # What was deleted does not come back with a topic of the same name.
        assert await pop(wire, group="G", topic="a_T") == []


@in_virtual_time
async def test_a_queue_that_became_shorter_is_taken_back_to_where_it_was_read(
    tmp_path: Path,
) -> None:
    """A group whose offset was beyond the end begins anew, also if that pop is not stored."""
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files, store={"overflow_returns_to_min": True})
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        for body in numbered(4):
            await wire.send("T", body)
        await wire.ok(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=SubscriptionGroupConfig("g")
        )
        await commit(wire, "g", "T", 900)
        files.disk.free_bytes = 0
        answer = start_pop(wire)
        await stage.clock.sleep(1)
        with contextlib.suppress(Exception):
            await answer
        assert broker.state.offsets.committed("g", "T", 0) == 0


@in_virtual_time
async def test_a_receipt_inside_a_batch_is_not_stored(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await prepared(stage)
        items = [
            BatchItem(b"one", b"a\x01b\x02POP_CK\x010 1 2 3 0 b 0 0\x02c\x01d\x02"),
            BatchItem(b"two", b"NOT_POP_CK\x01kept\x02"),
        ]
        answer = await wire.send(
            "T", encode_batch(items), code=RequestCode.SEND_BATCH_MESSAGE, batch=True
        )
        assert answer.code == 0
        one, two = await pop(wire)
        assert (one.properties.get("a"), one.properties.get("c")) == ("b", "d")
        assert "POP_CK" not in one.properties
        assert two.properties["NOT_POP_CK"] == "kept"
