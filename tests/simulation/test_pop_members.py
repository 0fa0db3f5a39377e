"""Members that pop, join, die and freeze, and a broker that restarts: seeds in virtual time.

A model knows who has which message until when. No message may be lost, none may come before its
time is up, none may come after it was acknowledged in time. A frozen member acknowledges when the
time of its messages is up. In an orderly group each queue gives one batch at a time, in order.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.asking import put_group, put_topic
from tests.support.popping import Got, ack, change, changed, pop
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker.broker import Broker
from penstock.protocol.bodies.groups import SubscriptionGroupConfig

SEEDS = range(200 if os.environ.get("PENSTOCK_LONG") else 2)
STEPS = 160
QUEUES = 3
TOLERANCE = 0.002
"""Times are whole milliseconds on the wire."""


@dataclass
class Model:
    """What a group may get."""

    sent: dict[bytes, int] = field(default_factory=dict)
    """By body: the queue."""
    done: set[bytes] = field(default_factory=set)
    unsure: set[bytes] = field(default_factory=set)
    """Acknowledged in the moment their time was up."""
    visible_at: dict[bytes, float] = field(default_factory=dict)
    deliveries: int = 0

    def delivered(self, got: Got, now: float, invisible: float) -> None:
        assert got.body not in self.done, f"{got.body!r} came after its acknowledgement"
        early = self.visible_at.get(got.body, 0.0) - now
        assert early <= TOLERANCE, f"{got.body!r} came {early:.3f} s too early"
        self.visible_at[got.body] = now + invisible
        self.deliveries += 1

    def acknowledged(self, got: Got) -> None:
        self.done.add(got.body)

    @property
    def left(self) -> set[bytes]:
        return self.sent.keys() - self.done - self.unsure


class Member:
    """A member with the messages it has not finished."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.has: list[tuple[Got, float]] = []
        """With the time each one becomes visible again."""


async def run(tmp_path: Path, seed: int) -> int:
    chance = random.Random(seed)
    model = Model()
    steps = STEPS
    while steps > 0:
        # Each round is one life of the broker.
        async with Stage(tmp_path) as stage:
            broker = await stage.broker()
            steps -= await live(stage, broker, model, chance, min(steps, chance.randint(30, 80)))
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        for _ in range(200):
            if not model.left:
                break
            wire = await stage.connect(broker)
            for got in await pop(wire, invisible=5):
                model.delivered(got, stage.clock.time(), 5)
                assert (await ack(wire, got)).code == 0
                model.acknowledged(got)
            await wire.close()
            await stage.clock.sleep(5)
        assert model.left == set()
        assert broker.state.pop.points.count == 0
    return model.deliveries


async def live(
    stage: Stage, broker: Broker, model: Model, chance: random.Random, steps: int
) -> int:
    wire = await stage.connect(broker)
    await put_topic(wire, "T", QUEUES)
    members = [Member(await stage.connect(broker)) for _ in range(2)]
    for _ in range(steps):
        now = stage.clock.time()
        member = chance.choice(members)
        action = chance.random()
        if action < 0.25:
            for _ in range(chance.randint(1, 4)):
                body = b"%d" % len(model.sent)
                model.sent[body] = chance.randrange(QUEUES)
                await wire.send("T", body, queue_id=model.sent[body])
        elif action < 0.55:
            invisible = chance.choice([1, 3, 8, 30])
            for got in await pop(member.wire, count=chance.randint(1, 8), invisible=invisible):
                model.delivered(got, stage.clock.time(), invisible)
                member.has.append((got, stage.clock.time() + invisible))
        elif action < 0.75 and member.has:
            got, until = member.has.pop(chance.randrange(len(member.has)))
            assert (await ack(member.wire, got)).code == 0
            if until > now + 0.05:
                model.acknowledged(got)
            elif until > now - 0.05:
                model.unsure.add(got.body)
        elif action < 0.83 and member.has:
            place = chance.randrange(len(member.has))
            got, until = member.has[place]
            seconds = chance.choice([0.5, 2, 20])
            answer = await change(member.wire, got, seconds)
            if answer.code == 0:
                model.visible_at[got.body] = stage.clock.time() + seconds
                member.has[place] = (changed(got, answer), stage.clock.time() + seconds)
            else:
                assert answer.code == 208
                assert until <= now + 0.05
                del member.has[place]
        elif action < 0.9:
            # Dies; its messages come again when their time is up. Another one joins.
            await member.wire.close()
            members.remove(member)
            members.append(Member(await stage.connect(broker)))
        await stage.clock.sleep(chance.choice([0.01, 0.2, 1.0, 3.0]))
        await wire.send("other", b"keeps the connection")
        for one in members:
            await pop(one.wire, group="nobody", topic="other", count=0)
    return steps


@pytest.mark.spec("P6", "P51")
@pytest.mark.parametrize("seed", SEEDS)
@in_virtual_time
async def test_no_message_is_lost_early_or_repeated(tmp_path: Path, seed: int) -> None:
    assert await run(tmp_path, seed) > 20


# Orderly


@dataclass
class Ordered:
    """One queue of an orderly group."""

    sent: int = 0
    committed: int = 0
    """The first message that is not acknowledged."""
    visible_at: dict[int, float] = field(default_factory=dict)
    """The messages of the last batch that are not acknowledged."""
    acked: set[int] = field(default_factory=set)
    last: int = -1
    """The last message of the last batch."""

    def delivered(self, offsets: list[int], now: float, invisible: float) -> None:
        early = max(self.visible_at.values(), default=0.0) - now
        assert early <= TOLERANCE, f"a blocked queue gave {offsets}, {early:.3f} s too early"
        wanted = list(range(self.committed, self.committed + len(offsets)))
        assert offsets == wanted, f"{offsets} instead of {wanted}"
        self.visible_at = dict.fromkeys(offsets, now + invisible)
        self.acked.clear()
        self.last = offsets[-1]

    def acknowledged(self, offset: int) -> None:
        del self.visible_at[offset]
        self.acked.add(offset)
        self.committed = min(self.visible_at, default=self.last + 1)


async def live_in_order(
    stage: Stage, broker: Broker, queues: list[Ordered], chance: random.Random, steps: int
) -> None:
    wire = await stage.connect(broker)
    await put_topic(wire, "T", QUEUES)
    await put_group(wire, SubscriptionGroupConfig("g", retry_max_times=1_000))
    held: list[Got] = []
    stale: list[Got] = []
    for _ in range(steps):
        action = chance.random()
        if action < 0.3:
            queue_id = chance.randrange(QUEUES)
            await wire.send("T", b"%d" % queues[queue_id].sent, queue_id=queue_id)
            queues[queue_id].sent += 1
        elif action < 0.6:
            invisible = chance.choice([1, 4, 9])
            by_queue: dict[int, list[Got]] = {}
            for got in await pop(wire, count=chance.randint(1, 5), invisible=invisible, order=True):
                by_queue.setdefault(got.queue_id, []).append(got)
            for queue_id, batch in by_queue.items():
                offsets = [got.offset for got in batch]
                queues[queue_id].delivered(offsets, stage.clock.time(), invisible)
                stale += [got for got in held if got.queue_id == queue_id]
                held = [got for got in held if got.queue_id != queue_id] + batch
        elif action < 0.85 and held:
            got = held.pop(chance.randrange(len(held)))
            assert (await ack(wire, got)).code == 0
            queues[got.queue_id].acknowledged(got.offset)
        elif action < 0.9 and stale:
            # A frozen member wakes up: its batch was given to another one meanwhile.
            assert (await ack(wire, stale.pop())).code in (0, 13)
        elif action < 0.95:
            held.clear()
        await stage.clock.sleep(chance.choice([0.01, 0.3, 1.0, 3.0]))
        for queue_id, queue in enumerate(queues):
            committed = broker.state.offsets.committed("g", "T", queue_id)
            assert (committed or 0) == queue.committed


@pytest.mark.spec("P63", "P66")
@pytest.mark.parametrize("seed", SEEDS)
@in_virtual_time
async def test_an_orderly_group_gets_one_batch_of_a_queue_at_a_time(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    queues = [Ordered() for _ in range(QUEUES)]
    for _ in range(3):
        # Each round is one life of the broker.
        async with Stage(tmp_path) as stage:
            await live_in_order(stage, await stage.broker(), queues, chance, STEPS // 3)
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        for _ in range(100):
            for got in await pop(wire, invisible=1, order=True):
                assert (await ack(wire, got)).code == 0
            await stage.clock.sleep(1)
        ends = [broker.state.offsets.committed("g", "T", queue_id) or 0 for queue_id in range(3)]
        assert ends == [queue.sent for queue in queues]
