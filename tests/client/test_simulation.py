"""Whole clusters under faults, from a seed: members come and die, networks split, handlers fail.

What must hold whatever happens:

- every message whose send was answered is handled with success at least once;
- a queue consumed in order has one handler call at a time over all members, and its messages
  succeed for the first time in their order;
- a committed offset never passes a message that no handler has dealt with;
- no queue holds more than its limit and one pull.

``PENSTOCK_SIMULATION_SEEDS=1000-2000`` runs other seeds, and as many as wanted. A failure names its
seed.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from pathlib import Path

import pytest
from tests.support.loop_clients import loop_consumer, loop_producer, loop_session

from penstock.client.consuming.outcomes import RetryLater
from penstock.client.consuming.push_consumer import PushConsumerCore
from penstock.client.settings import StartFrom
from penstock.errors import PenstockError
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.testing.hosts.cluster import EmbeddedCluster
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual
from penstock.testing.virtual_time.network import LAN

TOPIC = "orders"
GROUP = "billing"
MESSAGES = 120
QUEUE_LIMIT = 20
BUSY_SECONDS = 90.0
PATIENCE_SECONDS = 900.0


class Member:
    """One consumer on a host of its own."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.host = f"10.0.2.{number}"
        self.is_dead = False
        with world.loop.network.host(self.host):
            self.session = loop_session(
                world.cluster.nameserver_address,
                world.loop.clock,
                f"c{number}",
                seed=world.loop.seed,
            )
            self.consumer: PushConsumerCore = loop_consumer(
                self.session,
                GROUP,
                {TOPIC: self.handle},
                start_from=StartFrom("first"),
                orderly=world.orderly,
                threads=world.chance.choice([1, 4, 20]),
                batch_size=1,
                queue_limit=QUEUE_LIMIT,
                suspend_time=0.2,
            )

    async def start(self) -> None:
        with self.world.loop.network.host(self.host):
            await self.consumer.start()

    async def handle(self, message: StoredMessage) -> None:
        world = self.world
        world.begin(self, message)
        try:
            await asyncio.sleep(world.chance.choice([0, 0, 0.01, 0.2, 1.0]))
            failed = world.is_rough and world.chance.random() < 0.08
        finally:
            if not self.is_dead:
                world.end(self, message)
        if self.is_dead:
            return
        world.dealt_with.add((message.queue, message.queue_offset))
        if failed:
            raise RetryLater(1, "by chance")
        world.succeed(message)

    async def leave(self) -> None:
        await self.consumer.stop(5.0)
        await self.session.stop()

    async def die(self, *, silent: bool) -> None:
        """As a process that is killed: nothing of it runs on, nobody is told."""
        self.is_dead = True
        self.world.loop.network.crash(self.host, silent=silent)
        for held in self.consumer.state.queues.values():
            held.is_dropped = True
        for executor in self.consumer._executors.values():
            await executor.close()
        await self.consumer.state.tasks.close()
        await self.session.tasks.close()
        await self.consumer.state.statistics.stop()
        self.world.forget(self)


class World:
    """A cluster, its members and what is known of every message."""

    def __init__(self, loop: VirtualLoop, cluster: EmbeddedCluster) -> None:
        self.loop = loop
        self.cluster = cluster
        self.chance = random.Random(loop.seed)
        self.orderly = self.chance.random() < 0.5
        self.is_rough = True
        self.members: list[Member] = []
        self.acknowledged: set[bytes] = set()
        self.succeeded: dict[bytes, int] = defaultdict(int)
        self.dealt_with: set[tuple[MessageQueue, int]] = set()
        self.running: dict[MessageQueue, list[tuple[Member, int]]] = defaultdict(list)
        self.first_successes: dict[MessageQueue, list[int]] = defaultdict(list)
        self._numbers = 0

    # ------------------------------------------------------------------------ the handlers tell

    def begin(self, member: Member, message: StoredMessage) -> None:
        calls = self.running[message.queue]
        calls.append((member, message.queue_offset))
        if self.orderly and message.queue.topic == TOPIC:
            assert len(calls) == 1, f"{message.queue} is handled twice at once: {calls}"

    def end(self, member: Member, message: StoredMessage) -> None:
        self.running[message.queue].remove((member, message.queue_offset))

    def forget(self, member: Member) -> None:
        for queue, calls in self.running.items():
            self.running[queue] = [call for call in calls if call[0] is not member]

    def succeed(self, message: StoredMessage) -> None:
        if not self.succeeded[message.body] and message.queue.topic == TOPIC:
            self.first_successes[message.queue].append(message.queue_offset)
        self.succeeded[message.body] += 1

    # ----------------------------------------------------------------------------- what happens

    async def add(self) -> None:
        self._numbers += 1
        member = Member(self, self._numbers)
        self.members.append(member)
        try:
            await member.start()
        except PenstockError:
            self.members.remove(member)
            await member.session.stop()

    async def send(self) -> None:
        with self.loop.network.host("10.0.3.1"):
            session = loop_session(
                self.cluster.nameserver_address, self.loop.clock, "producer", seed=self.loop.seed
            )
            producer = loop_producer(session, "shop", retries=5)
        for number in range(MESSAGES):
            body = b"%d" % number
            try:
                await producer.deliver(Message(TOPIC, body))
            except PenstockError:
                continue
            self.acknowledged.add(body)
            await asyncio.sleep(self.chance.uniform(0, BUSY_SECONDS / MESSAGES))
        await producer.stop()
        await session.stop()

    async def trouble(self) -> None:
        """Faults, one after the other, until the busy time is over."""
        network = self.loop.network
        until = self.loop.time() + BUSY_SECONDS
        while self.loop.time() < until:
            await asyncio.sleep(self.chance.uniform(1, 8))
            what = self.chance.choice(["join", "join", "leave", "die", "cut", "split", "calm"])
            if what == "join" and len(self.members) < 5:
                await self.add()
            elif what == "leave" and len(self.members) > 1:
                member = self.members.pop(self.chance.randrange(len(self.members)))
                await member.leave()
            elif what == "die" and len(self.members) > 1:
                member = self.members.pop(self.chance.randrange(len(self.members)))
                await member.die(silent=self.chance.random() < 0.5)
            elif what == "cut" and network.connections:
                self.chance.choice(sorted(network.connections.items()))[1].cut()
            elif what == "split" and self.members:
                network.isolate(self.chance.choice(self.members).host)
                # Shorter than a lock lives without being renewed: longer is W5's business.
                await asyncio.sleep(self.chance.uniform(1, 10))
                network.heal()
            self.check()

    def check(self) -> None:
        for member in self.members:
            for queue, held in member.consumer.state.queues.items():
                assert held.count <= QUEUE_LIMIT + 32 + 1, f"{queue} holds {held.count}"
        for name, broker in self.cluster.brokers.items():
            for queue_id in range(8):
                queue = MessageQueue(TOPIC, name, queue_id)
                committed = broker.state.offsets.committed(GROUP, TOPIC, queue_id) or 0
                missing = [n for n in range(committed) if (queue, n) not in self.dealt_with]
                assert not missing, f"{queue} was committed at {committed} past {missing[:5]}"

    async def run(self) -> None:
        self.loop.network.conditions = LAN
        await self.add()
        await asyncio.gather(self.send(), self.trouble())
        self.is_rough = False
        self.loop.network.heal()
        if not self.members:
            await self.add()
        for _ in range(int(PATIENCE_SECONDS / 5)):
            if not self.acknowledged - self.succeeded.keys():
                break
            await asyncio.sleep(5)
        self.check()
        lost = self.acknowledged - self.succeeded.keys()
        assert not lost, f"{len(lost)} acknowledged messages never succeeded: {sorted(lost)[:5]}"
        if self.orderly:
            for queue, offsets in self.first_successes.items():
                assert offsets == sorted(offsets), f"{queue} succeeded out of order: {offsets}"
        for member in self.members:
            await member.leave()


def seeds() -> list[int]:
    first, _, last = os.environ.get("PENSTOCK_SIMULATION_SEEDS", "0-11").partition("-")
    return list(range(int(first), int(last or first) + 1))


@pytest.mark.spec("S3", "S29", "S86", "S125", "S134", "S148")
@pytest.mark.parametrize("seed", seeds())
def test_a_cluster_under_faults_keeps_its_promises(seed: int, tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        brokers = 1 + seed % 2
        cluster = EmbeddedCluster(tmp_path, brokers=brokers, clock=loop.clock, is_temporary=True)
        async with cluster:
            await World(loop, cluster).run()

    run_virtual(main, seed=seed)
