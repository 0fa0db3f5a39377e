"""A group that was moved stays where it is, also if the broker is killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.asking import committed, put_topic
from tests.support.popping import ack, bodies, change, changed, pop
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker.broker import Broker
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.offsets import ConsumerOffsetTable
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.admin import DeleteTopic
from penstock.protocol.headers.clients import ResetOffset
from penstock.protocol.headers.offsets import UpdateConsumerOffset

SAVED_EVERY = 10.0
"""Longer than offsets wait for their next save."""


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%04d" % i for i in range(first, end)]


async def reset(wire: Wire, offset: int) -> None:
    ask = ResetOffset("T", "g", 0, True)
    ask.queue_id, ask.offset = 0, offset
    await wire.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ask)


async def prepare(stage: Stage, *, messages: int = 100) -> tuple[Broker, Wire]:
    broker = await stage.broker()
    wire = await stage.connect(broker)
    await put_topic(wire, "T", 1)
    for body in numbered(0, messages):
        await wire.send("T", body)
    return broker, wire


def kill(tmp_path: Path) -> Path:
    """The directory of a broker as it would be if the process was killed now."""
    root = tmp_path / "killed"
    shutil.copytree(tmp_path / "broker-a", root)
    return root


@pytest.mark.spec("P51", "P54")
@in_virtual_time
async def test_a_renewed_message_does_not_undo_a_reset(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        _, wire = await prepare(stage)
        got = [one for _ in range(3) for one in await pop(wire, invisible=600)]
        renewed = changed(got[90], await change(wire, got[90], 600))
        await stage.clock.sleep(SAVED_EVERY)
        await reset(wire, 0)
        again = await pop(wire, count=30, invisible=600)
        assert bodies(again) == numbered(0, 30)
        await stage.clock.sleep(0.01)
        assert (await change(wire, renewed, 600)).code == 0
        root = kill(tmp_path)
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(root=root))
        assert await committed(wire, "g", "T") == 30
        left = [one for _ in range(4) for one in await pop(wire, invisible=600)]
        assert bodies(left) == numbered(30, 100)


@pytest.mark.spec("P51", "P54", "P55")
@pytest.mark.parametrize("to", [5, 60])
@pytest.mark.parametrize("is_popped", [False, True])
@in_virtual_time
async def test_pops_of_before_a_reset_say_nothing_after_a_kill(
    tmp_path: Path, to: int, is_popped: bool
) -> None:
    async with Stage(tmp_path) as stage:
        broker, wire = await prepare(stage)
        await stage.clock.sleep(SAVED_EVERY)
        await pop(wire, invisible=600)
        await reset(wire, to)
        if is_popped:
            assert bodies(await pop(wire, count=3, invisible=600)) == numbered(to, to + 3)
        # Saved before the log is flushed.
        saved = broker.state.offsets.dump()
        position = decode_body(ConsumerOffsetTable, saved).penstock_pop
        assert position is not None
        assert position < broker.state.pop.journal.end
        root = kill(tmp_path)
    file = root / "config/consumerOffset.json"
    file.write_bytes(saved)
    file.with_name(file.name + ".sum").unlink(missing_ok=True)
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(root=root)
        wire = await stage.connect(broker)
        following = to + 3 if is_popped else to
        assert await committed(wire, "g", "T") == following
        got = await pop(wire, count=4, invisible=600)
        assert bodies(got) == numbered(following, following + 4)
        # Later saves need no such note.
        await stage.clock.sleep(SAVED_EVERY)
        assert decode_body(ConsumerOffsetTable, broker.state.offsets.dump()).penstock_resets is None


@pytest.mark.spec("P54")
@in_virtual_time
async def test_a_client_that_goes_back_is_not_moved_forward_by_a_kill(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker, wire = await prepare(stage)
        await stage.clock.sleep(SAVED_EVERY)
        await pop(wire, invisible=600)
        await wire.ok(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("g", "T", 0, 7))
        saved = decode_body(ConsumerOffsetTable, broker.state.offsets.dump())
        assert saved.offset_table["T@g"] == {0: 7}
        assert saved.penstock_resets == {"T@g": {0: broker.state.pop.journal.end}}


@in_virtual_time
async def test_offsets_of_a_deleted_topic_do_not_come_back(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker, wire = await prepare(stage)
        await pop(wire, count=10, invisible=600)
        await stage.clock.sleep(SAVED_EVERY)
        await pop(wire, count=10, invisible=600)
        await reset(wire, 3)
        await pop(wire, count=10, invisible=600)
        await wire.ok(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("T"))
        await put_topic(wire, "T", 1)
        await wire.send("T", b"new")
        assert bodies(await pop(wire)) == [b"new"]
        saved = decode_body(ConsumerOffsetTable, broker.state.offsets.dump())
        assert saved.offset_table["T@g"] in ({}, {0: 0})
        assert saved.penstock_resets is None


@pytest.mark.spec("P51")
@pytest.mark.parametrize("moment", range(6))
@in_virtual_time
async def test_after_a_kill_unacknowledged_messages_return_once(
    tmp_path: Path, moment: int
) -> None:
    acked: set[bytes] = set()
    handed_out: set[bytes] = set()
    async with Stage(tmp_path) as stage:
        _, wire = await prepare(stage, messages=60)
        for round_ in range(moment + 1):
            got = await pop(wire, count=9, invisible=20)
            handed_out |= {one.body for one in got}
            for one in got[::2]:
                assert (await ack(wire, one)).code == 0
                acked.add(one.body)
            if round_ % 2:
                # Renewed, and not acknowledged either.
                assert (await change(wire, got[1], 25)).code == 0
            await stage.clock.sleep(0.7 * moment)
        root = kill(tmp_path)
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(root=root))
        rest = [one for _ in range(8) for one in await pop(wire, invisible=600)]
        # Some may be back already, if their time was up while the broker was down.
        again = [one.body for one in rest if one.times]
        assert bodies([one for one in rest if not one.times]) == sorted(
            set(numbered(0, 60)) - handed_out
        )
        await stage.clock.sleep(30)
        again += [one.body for _ in range(8) for one in await pop(wire, invisible=600)]
        assert sorted(again) == sorted(handed_out - acked)
        await stage.clock.sleep(30)
        assert await pop(wire) == []
