"""Recalling timer messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.asking import all_records, ext, put_topic
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.broker.timers.admission import parked
from penstock.model.names import TIMER_TOPIC
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.send import RecallMessage
from penstock.protocol.recall_handles import decode_handle, encode_handle
from penstock.store import Draft
from penstock.testing.clock import VirtualClock
from penstock.testing.eventually import eventually
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual

OK = ResponseCode.SUCCESS
NOT_EXIST = ResponseCode.TOPIC_NOT_EXIST
ILLEGAL = ResponseCode.ILLEGAL_OPERATION


async def timed(wire: Wire, unique_id: str, seconds: int = 5, topic: str = "T", **more: str) -> str:
    """Send a timer message; return its recall handle."""
    keys = {"TIMER_DELAY_SEC": str(seconds), "UNIQ_KEY": unique_id, **more}
    answer = await wire.send(topic, unique_id.encode(), properties=keys)
    assert answer.code == OK, answer.remark
    return ext(answer)["recallHandle"]


async def recall(wire: Wire, handle: str, topic: str = "T") -> tuple[int, str]:
    answer = await wire.request(RequestCode.RECALL_MESSAGE, RecallMessage(topic, handle, "g"))
    return answer.code, answer.remark or ext(answer).get("msgId", "")


async def arrived(wire: Wire, topic: str = "T") -> list[bytes]:
    return [record.body for record in await all_records(wire, topic)]


def marks(broker: Broker) -> int:
    return broker.state.storage.max_offset(TIMER_TOPIC, 0)


@pytest.mark.spec("Y33")
@pytest.mark.spec("Y36")
@in_virtual_time
async def test_a_recalled_message_never_arrives(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(recall_message_enable=True)
        wire = await stage.connect(broker)
        handle = await timed(wire, "ONE")
        await timed(wire, "TWO")
        assert await recall(wire, handle) == (OK, "ONE")
        # Once more does no harm.
        assert await recall(wire, handle) == (OK, "ONE")
        await stage.clock.sleep(2)
        assert broker.state.timers.pending == 1
        assert marks(broker) == 3
        await stage.clock.sleep(10)
        assert await arrived(wire) == [b"TWO"]
        assert broker.state.timers.pending == 0
        assert broker.state.timers.metrics.table().timing_count["T"].count == 0


@pytest.mark.spec("Y33")
@in_virtual_time
async def test_recall_is_forbidden_unless_it_is_enabled(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        code, remark = await recall(wire, await timed(wire, "ONE"))
        assert code == ResponseCode.NO_PERMISSION
        assert remark.startswith("recall failed, operation is forbidden")


@pytest.mark.spec("Y31")
@in_virtual_time
async def test_a_handle_names_topic_broker_time_and_message(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker("broker-x")
        wire = await stage.connect(broker)
        handle = decode_handle(await timed(wire, "ONE"))
        [record] = await all_records(wire, TIMER_TOPIC)
        slot = dict(
            pair.split("\x01") for pair in record.properties.decode().split("\x02") if pair
        )["TIMER_OUT_MS"]
        assert handle == ("T", "broker-x", str(int(slot) + 1), "ONE")


@pytest.mark.spec("Y32")
@in_virtual_time
async def test_other_sends_have_no_handle(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        plain: dict[str, str] = {}
        for topic, properties in (
            ("T", plain),
            ("T", {"DELAY": "3"}),
            ("T", {"TIMER_DELIVER_MS": "1"}),
            ("%RETRY%g", {"TIMER_DELAY_SEC": "5"}),
        ):
            if topic.startswith("%"):
                await put_topic(wire, topic, 1)
            answer = await wire.send(topic, properties=properties)
            assert answer.code == OK, answer.remark
            assert "recallHandle" not in ext(answer)


@pytest.mark.spec("Y34")
@in_virtual_time
async def test_recalls_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(recall_message_enable=True)
        wire = await stage.connect(broker)
        await put_topic(wire, "U", 1)
        handle = await timed(wire, "ONE", 60)
        now = stage.clock.time_ms()
        for given, topic, code, remark in (
            (handle, "nowhere", NOT_EXIST, "recall failed, the topic[nowhere] not exist"),
            ("x", "T", ILLEGAL, "recall handle is invalid"),
            ("", "T", ILLEGAL, "recall handle is invalid"),
            (handle, "U", ILLEGAL, "recall failed, topic not match"),
            (
                encode_handle("T", "broker-z", now + 5000, "ONE"),
                "T",
                ILLEGAL,
                "recall failed, broker service not available",
            ),
            (encode_handle("T", "broker-a", now, "ONE"), "T", ILLEGAL, "recall failed, timestamp"),
            (
                encode_handle("T", "broker-a", now + 259_200_000, "ONE"),
                "T",
                ILLEGAL,
                "recall failed, timestamp invalid",
            ),
        ):
            before = marks(broker)
            found, said = await recall(wire, given, topic)
            assert (found, said.startswith(remark)) == (code, True), said
            assert marks(broker) == before


@pytest.mark.spec("Y35")
@in_virtual_time
async def test_a_recall_works_at_once_for_a_rolled_message_and_after_a_restart(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"recall_message_enable": True, "timer_roll_window_slot": 60}
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(**settings)
        wire = await stage.connect(broker)
        at_once = await timed(wire, "AT-ONCE", 50)
        assert (await recall(wire, at_once))[0] == OK
        rolled = await timed(wire, "ROLLED", 75)
        also_rolled = await timed(wire, "ROLLED-TOO", 75)
        later = await timed(wire, "LATER", 90)
        await timed(wire, "KEPT", 90)
        assert (await recall(wire, also_rolled))[0] == OK
        await stage.clock.sleep(40)
        assert (await recall(wire, rolled))[0] == OK
        await broker.stop()
        broker = await stage.broker(**settings)
        wire = await stage.connect(broker)
        assert (await recall(wire, later))[0] == OK
        await eventually(lambda: broker.state.storage.max_offset("T", 0) == 1, 70)
        await stage.clock.sleep(20)
        assert await arrived(wire) == [b"KEPT"]
        assert broker.state.timers.pending == 0


@pytest.mark.spec("Y37")
@in_virtual_time
async def test_a_recall_of_what_does_not_wait_is_refused(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(recall_message_enable=True)
        wire = await stage.connect(broker)
        handle = await timed(wire, "ONE", 3)
        time = decode_handle(handle).time_ms
        assert time is not None
        unknown = encode_handle("T", "broker-a", time, "TWO")
        assert (await recall(wire, unknown))[0] == ILLEGAL
        assert (await recall(wire, unknown))[1].startswith("recall failed, no timer message TWO")
        await eventually(lambda: broker.state.storage.max_offset("T", 0) == 1, 10)
        assert (await recall(wire, handle))[0] == ILLEGAL


@pytest.mark.spec("Y38")
@pytest.mark.parametrize("slow_threads", [(0.0, 0.0), (0.1, 0.4)])
def test_a_recall_in_the_last_second_works_or_is_refused(
    tmp_path: Path, slow_threads: tuple[float, float]
) -> None:
    async def main(loop: VirtualLoop) -> None:
        loop.executor_latency = slow_threads
        await _recall_in_the_last_second(tmp_path)
        loop.executor_latency = (0.0, 0.0)

    run_virtual(main)


async def _recall_in_the_last_second(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(recall_message_enable=True)
        wire = await stage.connect(broker)
        outcomes = set()
        for number in range(40):
            handle = await timed(wire, f"ID-{number}", 2)
            await stage.clock.sleep(number * 0.06)
            code, _ = await recall(wire, handle)
            await stage.clock.sleep(4)
            is_delivered = f"ID-{number}".encode() in await arrived(wire)
            assert is_delivered == (code != OK), number
            outcomes.add(code)
        assert outcomes == {OK, ILLEGAL}


@in_virtual_time
async def test_a_recall_of_what_was_delivered_is_refused_after_the_clock_was_set_back(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(recall_message_enable=True)
        wire = await stage.connect(broker)
        handle = await timed(wire, "ONE", 2)
        await eventually(lambda: broker.state.storage.max_offset("T", 0) == 1, 10)
        assert isinstance(stage.clock, VirtualClock)
        stage.clock.jump(-60)
        code, remark = await recall(wire, handle)
        assert code == ILLEGAL
        assert "is being delivered" in remark


def mark(broker: Broker, key: str, slot_ms: int, topic: str = "T") -> None:
    """Park a delete mark with any key, as the stores of other releases have it."""
    properties = {"TIMER_DEL_UNIQKEY": key, "UNIQ_KEY": key, "TIMER_DELIVER_MS": str(slot_ms + 1)}
    broker.state.storage.append(parked(Draft(topic, 0, b"0"), properties, slot_ms))
    broker.state.timers.parked()


@pytest.mark.spec("Y39")
@pytest.mark.spec("Y40")
@in_virtual_time
async def test_both_forms_of_keys_delete_the_message_of_their_topic_alone(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        for topic in ("T", "U"):
            for unique_id in ("BARE", "WITH-TOPIC"):
                handle = decode_handle(await timed(wire, unique_id, topic=topic))
        assert handle.time_ms is not None
        mark(broker, "BARE", handle.time_ms - 1)
        mark(broker, "T+WITH-TOPIC", handle.time_ms - 1)
        await stage.clock.sleep(10)
        assert await arrived(wire, "T") == []
        assert await arrived(wire, "U") == [b"BARE", b"WITH-TOPIC"]


@pytest.mark.spec("Y41")
@in_virtual_time
async def test_a_priority_is_a_queue_unless_the_message_is_of_another_kind(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 4)
        for priority, queue_id in (("9", "3"), ("2", "2"), ("-1", "0"), ("high", "0")):
            answer = await wire.send("T", properties={"_SYS_MSG_PRIORITY_": priority})
            assert ext(answer)["queueId"] == queue_id
        answer = await wire.send(
            "T", queue_id=1, properties={"_SYS_MSG_PRIORITY_": "9", "TIMER_DELAY_SEC": "1"}
        )
        assert ext(answer)["queueId"] == "1"
        await stage.clock.sleep(4)
        [record] = await all_records(wire, "T", 1)
        assert b"PRIORITY" not in record.properties
