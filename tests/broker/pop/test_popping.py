"""POP_MESSAGE: what is checked, what is taken, what the answer says, how a pop waits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.asking import committed, ext, put_group, put_topic, records
from tests.support.popping import ack, bodies, change, changed, messages, pop, start_pop
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.pop import Notification, PeekMessage, PollingInfo
from penstock.store import Draft


async def send(wire: Wire, *bodies: bytes, queue_id: int = 0, tag: str | None = None) -> None:
    for body in bodies:
        await wire.send(
            "T", body, queue_id=queue_id, properties={} if tag is None else {"TAGS": tag}
        )


def numbered(count: int) -> list[bytes]:
    return [b"%04d" % i for i in range(count)]


# Checks


@pytest.mark.spec("P1", "P2")
@in_virtual_time
async def test_each_refusal_has_its_code(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(auto_create_subscription_group=False)
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 2)
        await put_group(wire, SubscriptionGroupConfig("g"))
        await put_group(wire, SubscriptionGroupConfig("off", consume_enable=False))
        await put_topic(wire, "writeonly", 1, perm=2)
        asked: list[tuple[int, dict[str, object]]] = [
            (29, {"count": 33}),
            (17, {"topic": "unknown"}),
            (16, {"topic": "writeonly"}),
            (29, {"queue_id": 2}),
            (26, {"group": "unknown"}),
            (16, {"group": "off"}),
            (23, {"sql": "a >"}),
        ]
        for code, more in asked:
            answer = await start_pop(wire, **more)  # type: ignore[arg-type]
            assert answer.code == code, more
            assert answer.remark
            assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= ext(answer).keys()
        assert len(broker.state.pop.points) == 0


@pytest.mark.spec("P1", "P3", "P4", "P5")
@in_virtual_time
async def test_a_pop_reads_every_queue_once_and_says_what_it_took(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 4)
        orders: set[str] = set()
        for queue_id in (-1, -7, -1, -1, -7, -1):
            for queue in range(4):
                await send(wire, b"a", b"b", queue_id=queue)
            before = round(stage.clock.time() * 1000)
            answer = await start_pop(wire, queue_id=queue_id, invisible=20)
            fields = ext(answer)
            assert len(messages(answer)) == 8
            starts = fields["startOffsetInfo"].split(";")
            assert sorted(one.split(" ")[1] for one in starts) == ["0", "1", "2", "3"]
            for start, offsets in zip(starts, fields["msgOffsetInfo"].split(";"), strict=True):
                flag, of_queue, first = start.split(" ")
                assert offsets == f"{flag} {of_queue} {first},{int(first) + 1}"
            assert fields["invisibleTime"] == "20000"
            assert 0 <= int(fields["popTime"]) - before < 1000
            assert 0 <= int(fields["reviveQid"]) < 8
            assert fields["restNum"] == "0"
            orders.add(" ".join(one.split(" ")[1] for one in starts))
        assert len(orders) > 1
        await send(wire, *numbered(40))
        answer = await start_pop(wire, count=32)
        assert len(messages(answer)) == 32
        assert ext(answer)["restNum"] == "8"


@in_virtual_time
async def test_topics_with_priorities_give_the_highest_queue_first(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 3)
        topic = broker.state.topics.require("T")
        broker.state.topics.put(replace(topic, attributes={"message.type": "PRIORITY"}))
        await send(wire, b"failed")
        assert len(await pop(wire, invisible=1)) == 1
        await stage.clock.sleep(1.5)
        for queue_id in range(3):
            await send(wire, *(b"%d" % queue_id for _ in range(40)), queue_id=queue_id)
        found = [one.body for _ in range(121) for one in await pop(wire, count=1, invisible=600)]
        # Retries come last.
        assert found == [b"2"] * 40 + [b"1"] * 40 + [b"0"] * 40 + [b"failed"]
        # A group that gives the others a share.
        shared = SubscriptionGroupConfig("shared", attributes={"priority.factor": "50"})
        broker.state.groups.put(shared)
        first = [
            one.body
            for _ in range(30)
            for one in await pop(wire, group="shared", count=1, invisible=600)
        ]
        assert 12 <= first.count(b"2") < 30


@pytest.mark.spec("P7")
@in_virtual_time
async def test_where_a_new_group_begins_is_committed(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, *numbered(5))
        assert len(await pop(wire, group="first", first=True)) == 5
        # On a young topic "last" means all, too.
        assert len(await pop(wire, group="young", first=False, count=2)) == 2
        assert await committed(wire, "young", "T") == 2
        await put_topic(wire, "empty", 1)
        assert await pop(wire, topic="empty", group="e", first=False) == []
        assert await committed(wire, "e", "empty") == 0
        # As if the first messages were gone from memory.
        broker.state.offsets.commit("old", "T", 0, 4, "test")
        assert bodies(await pop(wire, group="old")) == [b"0004"]


@pytest.mark.spec("P8", "P10")
@in_virtual_time
async def test_filters_pass_messages_for_good(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        for i in range(6):
            await wire.send("T", b"%d" % i, properties={"TAGS": "ab"[i % 2], "n": str(i)})
        answer = await start_pop(wire, tags="b")
        got = messages(answer)
        assert bodies(got) == [b"1", b"3", b"5"]
        assert ext(answer)["startOffsetInfo"] == "0 0 0"
        assert ext(answer)["msgOffsetInfo"] == "0 0 1,3,5"
        assert await pop(wire, tags="a") == []
        assert len(broker.state.pop.points) == 1
        assert bodies(await pop(wire, group="sql", sql="n > 3")) == [b"4", b"5"]
        for one in got:
            assert (await ack(wire, one)).code == 0
        assert broker.state.pop.points.count == 2


@pytest.mark.spec("P9")
@in_virtual_time
async def test_one_match_among_many_arrives_within_one_poll(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store={"mapped_file_size_commit_log": 8 << 20})
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        store = broker.state.storage.store
        for _ in range(10_000):
            store.append(Draft("T", 0, b"x", b"TAGS\x01no\x02"))
        store.write()
        await send(wire, b"here", tag="yes")
        assert bodies(messages(await start_pop(wire, tags="yes", wait=10))) == [b"here"]


# Waiting


@pytest.mark.spec("P11", "P12", "P13")
@in_virtual_time
async def test_a_held_pop_ends_with_its_poll_time_counted_from_its_arrival(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 4)
        at_once = await start_pop(wire, wait=0)
        assert at_once.code == ResponseCode.POLLING_TIMEOUT
        assert at_once.remark == "NO_MESSAGE_IN_QUEUE"
        assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= ext(at_once).keys()
        for born in (0, round(stage.clock.time() * 1000) - 3_600_000):
            begun = stage.clock.monotonic()
            late = await start_pop(wire, wait=5, born=born)
            assert late.code == ResponseCode.POLLING_TIMEOUT
            assert stage.clock.monotonic() - begun == pytest.approx(4.95, abs=0.1)


@pytest.mark.spec("P14", "P16")
@in_virtual_time
async def test_one_message_wakes_one_held_pop_of_each_group(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire, producer = await stage.connect(broker), await stage.connect(broker)
        await put_topic(wire, "T", 2)
        held = [start_pop(wire, wait=30, count=1) for _ in range(3)]
        other = start_pop(wire, wait=30, group="other")
        await stage.clock.sleep(0.1)
        await send(producer, b"one")
        await stage.clock.sleep(0.5)
        assert [answer.done() for answer in held] == [True, False, False]
        assert other.done()
        # Two messages in one batch of the broker: the first pop leaves one, which wakes the next.
        await asyncio.gather(send(producer, b"two"), send(producer, b"three", queue_id=1))
        await stage.clock.sleep(0.5)
        assert all(answer.done() for answer in held)


@pytest.mark.spec("P15")
@in_virtual_time
async def test_a_message_that_the_filter_rejects_wakes_no_pop(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire, producer = await stage.connect(broker), await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(producer, b"no", tag="no")
        held = start_pop(wire, wait=30, tags="yes")
        await stage.clock.sleep(0.1)
        await asyncio.gather(*(send(producer, b"no", tag="no") for _ in range(799)))
        # A pop that ran would have committed what it passed.
        assert await committed(wire, "g", "T") == 1
        await send(producer, b"no", tag="no")
        await stage.clock.sleep(0.1)
        assert await committed(wire, "g", "T") == 801
        await send(producer, b"yes", tag="yes")
        assert bodies(messages(await held)) == [b"yes"]


@pytest.mark.spec("P17")
@in_virtual_time
async def test_too_many_held_pops_are_refused(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(pop_polling_size=2))
        await put_topic(wire, "T", 1)
        held = [start_pop(wire, wait=5) for _ in range(2)]
        assert (await start_pop(wire, wait=5)).code == ResponseCode.POLLING_FULL
        elsewhere = start_pop(wire, wait=5, queue_id=0)
        info = PollingInfo("g", "T", -1)
        answer = await wire.ok(RequestCode.POLLING_INFO, info)
        assert ext(answer)["pollingNum"] == "2"
        assert [(await one).code for one in (*held, elsewhere)] == [210] * 3


@pytest.mark.spec("P18")
@in_virtual_time
async def test_a_closed_connection_takes_no_message(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        gone, wire = await stage.connect(broker), await stage.connect(broker)
        await put_topic(wire, "T", 1)
        held = start_pop(gone, wait=30)
        await stage.clock.sleep(0.1)
        await gone.close()
        held.cancel()
        await stage.clock.sleep(0.1)
        await send(wire, b"one")
        assert bodies(await pop(wire)) == [b"one"]


@pytest.mark.spec("P19", "P38")
@in_virtual_time
async def test_a_message_that_comes_again_wakes_a_held_pop_at_once(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire, other = await stage.connect(broker), await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await send(wire, b"one")
        begun = stage.clock.monotonic()
        assert len(await pop(wire, invisible=10)) == 1
        held = start_pop(other, wait=30)
        (again,) = messages(await held)
        assert (again.times, again.topic) == (1, "%RETRY%g_T")
        assert 10 <= stage.clock.monotonic() - begun < 10.5


@in_virtual_time
async def test_a_stopping_broker_answers_what_is_held(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        held = start_pop(wire, wait=30)
        await stage.clock.sleep(0.1)
        await broker.stop()
        assert (await held).code == ResponseCode.POLLING_TIMEOUT


# Looking


@pytest.mark.spec("P85")
@in_virtual_time
async def test_looking_changes_nothing(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 2)
        peek = PeekMessage("g", "T", -1, 10)
        watch = Notification("g", "T", -1, 5000)
        assert (await wire.request(RequestCode.PEEK_MESSAGE, peek)).code == 19
        noticed = wire.start(RequestCode.NOTIFICATION, watch)
        await stage.clock.sleep(0.1)
        await send(wire, b"one")
        assert ext(await noticed)["hasMsg"] == "true"
        for _ in range(2):
            answer = await wire.ok(RequestCode.PEEK_MESSAGE, peek)
            assert [record.body for record in records(answer)] == [b"one"]
        assert broker.state.pop.points.count == 0
        assert bodies(await pop(wire)) == [b"one"]
        begun = stage.clock.monotonic()
        assert ext(await wire.ok(RequestCode.NOTIFICATION, watch))["hasMsg"] == "false"
        assert stage.clock.monotonic() - begun == pytest.approx(4.95, abs=0.1)


@pytest.mark.spec("P36")
@in_virtual_time
async def test_handles_of_one_millisecond_differ(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await send(wire, b"one")
        (got,) = await pop(wire)
        handles = {got.handle}
        for _ in range(2):
            answer = await change(wire, got, 60)
            assert answer.code == 0
            got = changed(got, answer)
            handles.add(got.handle)
        assert len(handles) == 3
        assert (await ack(wire, got)).code == 0
