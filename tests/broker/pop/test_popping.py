"""Popping, acknowledging and coming again, over a socket of the in-memory network."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.asking import committed, ext, put_topic
from tests.support.popping import ack, bodies, messages, pop, start_pop
from tests.support.stage import Stage, in_virtual_time

from penstock.protocol.codes import ResponseCode


@pytest.mark.spec("P6")
@in_virtual_time
async def test_a_popped_message_is_invisible_to_its_group_only(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 2)
        await wire.send("T", b"one")
        assert bodies(await pop(wire)) == [b"one"]
        assert await pop(wire) == []
        assert bodies(await pop(wire, group="other")) == [b"one"]


@pytest.mark.spec("P22", "P37", "P38")
@in_virtual_time
async def test_what_is_not_acknowledged_comes_again(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await wire.send("T", b"one", properties={"KEYS": "k"})
        await wire.send("T", b"two")
        _, two = await pop(wire, invisible=10)
        assert (await ack(wire, two)).code == 0
        await stage.clock.sleep(9.9)
        assert await pop(wire) == []
        await stage.clock.sleep(0.6)
        (again,) = await pop(wire, invisible=10)
        assert (again.body, again.topic, again.times) == (b"one", "%RETRY%g_T", 1)
        assert again.properties["KEYS"] == "k"
        assert again.properties["ORIGIN_GROUP"] == "g"
        assert "1ST_POP_TIME" in again.properties
        assert (await ack(wire, again)).code == 0
        await stage.clock.sleep(30)
        assert await pop(wire) == []
        assert await committed(wire, "g", "%RETRY%g_T") == 1


@in_virtual_time
async def test_a_held_pop_gets_the_next_message(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire, producer = await stage.connect(broker), await stage.connect(broker)
        await put_topic(wire, "T", 4)
        answer = start_pop(wire, wait=10)
        await stage.clock.sleep(1)
        assert not answer.done()
        await producer.send("T", b"one", queue_id=3)
        assert bodies(messages(await answer)) == [b"one"]


@pytest.mark.spec("P11", "P12")
@in_virtual_time
async def test_a_held_pop_ends_with_a_time_out(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 4)
        at_once = await start_pop(wire, wait=0)
        assert at_once.code == ResponseCode.POLLING_TIMEOUT
        assert at_once.remark == "NO_MESSAGE_IN_QUEUE"
        assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= ext(at_once).keys()
        begun = stage.clock.monotonic()
        late = await start_pop(wire, wait=5)
        assert late.code == ResponseCode.POLLING_TIMEOUT
        assert stage.clock.monotonic() - begun == pytest.approx(4.95, abs=0.1)
