"""The clients of a simulated cluster: group members and producers, each on its own host."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.dying import lose_host
from tests.simulation.ledger import Broken, GroupLedger, Ledger
from tests.simulation.plan import GroupPlan, Plan
from tests.simulation.servers import NAME_SERVER
from tests.support.loop_clients import loop_consumer, loop_producer, loop_session

from penstock.client.consuming.outcomes import DeadLetter, RetryLater
from penstock.client.consuming.push_consumer import PushConsumerCore
from penstock.client.settings import StartFrom
from penstock.errors import PenstockError
from penstock.model import Message, StoredMessage
from penstock.testing.virtual_time.loop import VirtualLoop

POISON = b"poison"
LEAVE_SECONDS = 8.0


class Scene:
    """State shared by the clients of one run: random numbers, the ledger, whether faults last."""

    def __init__(
        self,
        loop: VirtualLoop,
        ledger: Ledger,
        chance: random.Random,
        locks_are_safe: Callable[[str], bool],
        note: Callable[[str], None],
    ) -> None:
        self.loop = loop
        self.ledger = ledger
        self.chance = chance
        self.locks_are_safe = locks_are_safe
        self.note = note
        self.is_rough = True
        self.broken: list[Broken] = []

    def fail(self, error: Broken) -> None:
        """Record a broken promise; if raised here, it would count as a handler failure."""
        self.note(f"BROKEN {error}")
        self.broken.append(error)


class Member:
    """One consumer on its own host."""

    def __init__(self, scene: Scene, plan: GroupPlan, number: int) -> None:
        self._scene = scene
        self._plan = plan
        self._ledger: GroupLedger = scene.ledger.groups[plan.name]
        self.name = f"{plan.name}#{number}"
        self.host = f"10.0.{2 + number // 250}.{1 + number % 250}"
        self.is_dead = False
        self.calls = 0
        with scene.loop.network.host(self.host):
            self.session = loop_session(
                NAME_SERVER, scene.loop.clock, f"c{number}", seed=scene.loop.seed
            )
            handler = self._handle if plan.is_async else self._handle_at_once
            self.consumer: PushConsumerCore = loop_consumer(
                self.session,
                plan.name,
                {topic: handler for topic in plan.topics},
                start_from=StartFrom("first"),
                orderly=plan.orderly,
                threads=plan.threads,
                batch_size=plan.batch_size,
                queue_limit=plan.queue_limit,
                max_span=plan.max_span,
                pull_batch_size=plan.pull_batch_size,
                max_retries=plan.max_retries,
                suspend_time=0.2,
            )

    @property
    def group(self) -> str:
        return self._plan.name

    async def start(self) -> bool:
        """Join the group; return false if the cluster could not be reached."""
        try:
            with self._scene.loop.network.host(self.host):
                await self.consumer.start()
        except PenstockError as error:
            self._scene.note(f"{self.name} could not start: {error}")
            await self.session.stop()
            return False
        return True

    async def leave(self) -> None:
        with self._scene.loop.network.host(self.host):
            await self.consumer.stop(LEAVE_SECONDS)
            await self.session.stop()

    async def die(self, *, silent: bool) -> None:
        """Die like a killed process: none of its code runs on, and it sends no farewell."""
        self.is_dead = True
        lose_host(self._scene.loop.network, self.host, silent=silent)
        for held in self.consumer.state.queues.values():
            held.is_dropped = True
        for executor in self.consumer._executors.values():
            await executor.close()
        await self.consumer.state.tasks.close()
        await self.session.tasks.close()
        await self.consumer.state.statistics.stop()
        await self.session.pool.close()

    def check_bounds(self) -> None:
        """Check flow control. A limit is checked before a pull, so one answer may exceed it."""
        plan = self._plan
        for queue, held in self.consumer.state.queues.items():
            if held.count > plan.queue_limit + plan.pull_batch_size:
                raise Broken(f"{self.name} caches {held.count} messages of {queue}")
            if not plan.orderly and held.reach > plan.max_span + plan.pull_batch_size:
                raise Broken(f"{self.name} caches a span of {held.reach} in {queue}")
        if self.calls > plan.threads:
            raise Broken(f"{self.name} runs {self.calls} calls at once")

    # ------------------------------------------------------------------------------- handlers

    async def _handle(self, given: StoredMessage | list[StoredMessage]) -> None:
        messages = given if isinstance(given, list) else [given]
        call = self._begin(messages)
        try:
            if self._plan.slowest and self._scene.chance.random() < 0.7:
                await asyncio.sleep(self._scene.chance.uniform(0, self._plan.slowest))
        finally:
            self._end(call, messages)
        self._conclude(messages)

    def _handle_at_once(self, given: StoredMessage | list[StoredMessage]) -> None:
        messages = given if isinstance(given, list) else [given]
        self._end(self._begin(messages), messages)
        self._conclude(messages)

    def _begin(self, messages: list[StoredMessage]) -> int:
        scene = self._scene
        queue = messages[0].queue
        self.calls += 1
        scene.note(f"{self.name} handles {queue} {[message.queue_offset for message in messages]}")
        try:
            for message in messages:
                scene.ledger.check_known(message)
            return self._ledger.begin(
                self.name, messages, locks_are_safe=scene.locks_are_safe(queue.broker_name)
            )
        except Broken as error:
            scene.fail(error)
            return 0

    def _end(self, call: int, messages: list[StoredMessage]) -> None:
        self.calls -= 1
        self._ledger.end(call, messages[0].queue)

    def _conclude(self, messages: list[StoredMessage]) -> None:
        if self.is_dead:
            return
        error = self._choose_failure(messages)
        if error is None:
            self._ledger.succeed(messages)
            return
        self._scene.note(f"{self.name} fails with {error!r}")
        self._ledger.fail(messages, is_given_up=isinstance(error, DeadLetter))
        raise error

    def _choose_failure(self, messages: list[StoredMessage]) -> Exception | None:
        chance = self._scene.chance
        if any(message.body.startswith(POISON) for message in messages):
            return ValueError("cannot read this")
        if not self._scene.is_rough or chance.random() >= self._plan.failing:
            return None
        kind = chance.randrange(4)
        if kind == 0:
            return DeadLetter("by chance")
        if kind == 1:
            return RetryLater(chance.randint(1, 3), "by chance")
        return ConnectionError("by chance")


class SimulatedProducer:
    """A producer on its own host; sends its share of the messages, then leaves."""

    def __init__(self, scene: Scene, plan: Plan, number: int) -> None:
        self._scene = scene
        self._plan = plan
        self._number = number
        self.host = f"10.1.0.{number + 1}"

    async def run(self) -> None:
        scene, plan = self._scene, self._plan
        with scene.loop.network.host(self.host):
            session = loop_session(
                NAME_SERVER, scene.loop.clock, f"p{self._number}", seed=scene.loop.seed
            )
            producer = loop_producer(
                session,
                "shop",
                retries=scene.chance.choice([0, 2, 5]),
                linger=plan.linger,
                default_topic_queues=plan.queues,
                avoid_slow_brokers=scene.chance.random() < 0.3,
            )
            count = plan.messages // plan.producers
            left = [self._message(number) for number in range(count)]
            pause = 2 * plan.rush * plan.busy_seconds / count
            while left:
                size = min(scene.chance.choice([1, 1, 1, 1, 3, 10]), len(left))
                parcel, left = left[:size], left[size:]
                if size == 1:
                    await self._send(parcel, producer.deliver(parcel[0]))
                elif len({message.topic for message in parcel}) == 1:
                    await self._send(parcel, producer.send_batch(parcel))
                else:
                    await asyncio.gather(
                        *(self._send([message], producer.deliver(message)) for message in parcel)
                    )
                await asyncio.sleep(scene.chance.uniform(0, pause * size))
            await producer.stop()
            await session.stop()

    def _message(self, number: int) -> Message:
        chance = self._scene.chance
        word = POISON if chance.random() < self._plan.poisoned else b"order"
        topic = chance.choice(self._plan.topics)
        body = b"%s %d-%d" % (word, self._number, number)
        key = chance.choice([None, f"customer-{chance.randrange(5)}"])
        return Message(topic, body, sharding_key=key)

    async def _send(self, messages: list[Message], send: Coroutine[Any, Any, object]) -> None:
        ledger = self._scene.ledger
        for message in messages:
            ledger.sent[message.topic].add(bytes(message.body))
        try:
            await send
        except PenstockError as error:
            self._scene.note(f"{self.host} could not send {len(messages)}: {error}")
            return
        for message in messages:
            ledger.acknowledged[message.topic].add(bytes(message.body))
