"""Timer messages in a simulated cluster, and what must hold for them.

At the end of a run:

- every acknowledged message has arrived: its broker may have been down when it was due;
- none was early, by the time at which a broker stored it for its consumers;
- one that was recalled with success has not arrived from the broker that recalled it;
- no broker keeps one back whose time has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tests.simulation.clients import Scene
from tests.simulation.ledger import Broken
from tests.simulation.servers import NAME_SERVER, BrokerSlot
from tests.support.loop_clients import loop_producer, loop_session

from penstock.errors import PenstockError
from penstock.model import Message
from penstock.model.names import Property

TOPIC = "reminders"
LONGEST = 40.0


class Reminders:
    """What was sent to be delivered later."""

    def __init__(self) -> None:
        self.acknowledged: set[bytes] = set()
        self.recalled: dict[bytes, str] = {}
        """Body to the name of the broker that recalled it."""

    def unfinished(self, slots: Iterable[BrokerSlot]) -> str:
        """The reason why the timers are not settled yet; empty when they are."""
        for slot in slots:
            assert slot.broker is not None, "the faults are over"
            if slot.broker.state.timers.pending:
                return f"{slot.broker.state.timers.pending} timers wait on {slot.name}"
        return ""

    def check_end(self, slots: list[BrokerSlot]) -> None:
        """Compare what arrived with what was sent."""
        arrived: set[bytes] = set()
        for slot in slots:
            for message in slot.read_all(TOPIC):
                due = int(message.properties[Property.TIMER_DELIVER_MS])
                if message.store_timestamp < due - slot.set_back_ms:
                    raise Broken(f"{message.body!r} is {due - message.store_timestamp} ms early")
                if self.recalled.get(message.body) == slot.name:
                    raise Broken(f"{message.body!r} was recalled and arrived on {slot.name}")
                arrived.add(message.body)
        lost = self.acknowledged - arrived - self.recalled.keys()
        if lost:
            raise Broken(f"{len(lost)} acknowledged timers never arrived: {sorted(lost)[:5]}")


class SimulatedReminder:
    """A producer of timer messages, some of which it recalls."""

    host = "10.3.0.1"

    def __init__(self, scene: Scene, reminders: Reminders, count: int, busy: float) -> None:
        self._scene = scene
        self._reminders = reminders
        self._count = count
        self._busy = busy
        with scene.loop.network.host(self.host):
            self._session = loop_session(
                NAME_SERVER, scene.loop.clock, "reminder", seed=scene.loop.seed
            )
            self._core = loop_producer(self._session, "reminder")

    async def run(self) -> None:
        """Send the messages."""
        chance = self._scene.chance
        with self._scene.loop.network.host(self.host):
            for number in range(self._count):
                await self._remind(b"reminder %d" % number)
                await asyncio.sleep(chance.uniform(0, self._busy / self._count))

    async def _remind(self, body: bytes) -> None:
        chance, clock = self._scene.chance, self._scene.loop.clock
        due = clock.time() + chance.uniform(0.1, LONGEST)
        try:
            receipt = await self._core.deliver(Message(TOPIC, body, deliver_at=due))
        except PenstockError as error:
            self._scene.note(f"{self.host} could not send {body!r}: {error}")
            return
        self._reminders.acknowledged.add(body)
        if receipt.recall_handle is None or chance.random() > 0.2:
            return
        try:
            await self._core.recall(TOPIC, receipt.recall_handle)
        except PenstockError as error:
            self._scene.note(f"{self.host} could not recall {body!r}: {error}")
        else:
            self._reminders.recalled[body] = receipt.queue.broker_name

    async def stop(self) -> None:
        with self._scene.loop.network.host(self.host):
            await self._core.stop()
            await self._session.stop()
