"""Members that behave as Java's push consumer in pop mode: the same requests, times and answers.

The real client runs in ``make interop`` (``pop_*``).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.asking import put_topic
from tests.support.popping import Got, ack, change, changed, messages, pop, start_pop
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.pop import AckMessage
from penstock.store import Draft

MESSAGES = 10_000
LATER = (10, 30, 60)
"""Seconds after which a message that failed comes again, by the number of its failures."""


@pytest.mark.spec("P77")
@in_virtual_time
async def test_four_members_share_one_queue(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store={"mapped_file_size_commit_log": 16 << 20})
        wires = [await stage.connect(broker) for _ in range(4)]
        await put_topic(wires[0], "T", 1)
        got: list[list[bytes]] = [[] for _ in wires]

        async def member(wire: Wire, into: list[bytes]) -> None:
            """Pops 32, acknowledges each message alone, pops again."""
            while sum(map(len, got)) < MESSAGES:
                popped = messages(await start_pop(wire, wait=1))
                into += [one.body for one in popped]
                answers = [
                    wire.start(
                        RequestCode.ACK_MESSAGE,
                        AckMessage("g", one.topic, one.queue_id, one.handle, one.offset),
                    )
                    for one in popped
                ]
                for answer in answers:
                    assert (await answer).code == 0

        async def produce() -> None:
            store = broker.state.storage.store
            for first in range(0, MESSAGES, 500):
                for number in range(first, first + 500):
                    store.append(Draft("T", 0, b"%05d" % number, b""))
                await stage.clock.sleep(0.05)

        await asyncio.gather(produce(), *map(member, wires, got))
        assert sorted(body for of_member in got for body in of_member) == [
            b"%05d" % number for number in range(MESSAGES)
        ]
        assert min(map(len, got)) > MESSAGES / 100
        await stage.clock.sleep(70)
        assert await pop(wires[0]) == []
        assert broker.state.pop.points.count == 0


@pytest.mark.spec("P78")
@in_virtual_time
async def test_a_failed_message_comes_again_after_ten_thirty_and_sixty_seconds(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await wire.send("T", b"one")
        (got,) = await pop(wire)
        for times, seconds in enumerate(LATER):
            assert got.times == times
            assert (await change(wire, got, seconds)).code == 0
            begun = stage.clock.monotonic()
            found: list[Got] = []
            while not found:
                # As long as Java waits, again and again.
                found = messages(await start_pop(wire, wait=15))
            (got,) = found
            assert seconds <= stage.clock.monotonic() - begun <= seconds + 0.5
        assert got.times == 3
        assert (await ack(wire, got)).code == 0


@pytest.mark.spec("P79")
@in_virtual_time
async def test_the_late_result_of_a_slow_listener_is_ignored(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T", 1)
        await wire.send("T", b"one")
        (first,) = await pop(wire, invisible=5)
        (second,) = messages(await start_pop(wire, wait=15, invisible=5))
        assert (first.body, second.body) == (b"one", b"one")
        # Java drops the late result; a client that sends it achieves nothing either.
        assert (await ack(wire, first)).code == 0
        assert (await change(wire, first, 10)).code == 208
        assert broker.state.pop.points.count == 1
        moved = changed(second, await change(wire, second, 20))
        assert (await ack(wire, moved)).code == 0
        await stage.clock.sleep(60)
        assert await pop(wire) == []
