"""Transactions in a simulated cluster, and what must hold for them.

A local transaction writes its result into a table that no fault reaches, as a database would be.
Any member of the group answers a broker's question from that table.

At the end of a run:

- a committed transaction is visible, and once on each broker that stored its half: a producer that
  got no answer may have stored the half on another broker, too;
- one that was rolled back, or whose half was refused, is visible nowhere;
- no transaction is open, and none was given up: members answered all questions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from enum import Enum

from tests.simulation.clients import Scene
from tests.simulation.ledger import Broken
from tests.simulation.servers import NAME_SERVER, BrokerSlot
from tests.support.loop_clients import loop_session

from penstock.client.producing.producer import ProducerCore
from penstock.client.producing.transactions import (
    NOT_RUN,
    LocalResult,
    end_transaction,
    send_half,
)
from penstock.client.session.members import TransactionAnswer
from penstock.client.settings import ProducerSettings
from penstock.errors import PenstockError
from penstock.model import Message, StoredMessage
from penstock.model.names import TRANSACTION_GIVEN_UP_TOPIC
from penstock.protocol.headers.transactions import TransactionDecision

TOPIC = "payments"
GROUP = "bank"
SLOWEST = 12.0
"""Longer than a broker waits before it asks."""


class State(Enum):
    """What the table says about a transaction."""

    RUNNING = "running"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


_DECISIONS = {
    State.RUNNING: TransactionDecision.UNKNOWN,
    State.COMMITTED: TransactionDecision.COMMIT,
    State.ROLLED_BACK: TransactionDecision.ROLLBACK,
}


class Table:
    """The results of all local transactions, by the body of their message."""

    def __init__(self) -> None:
        self.states: dict[bytes, State] = {}
        self.asked: Counter[bytes] = Counter()

    def decision(self, body: bytes) -> int:
        """The answer to a question; a half that its producer never heard of is rolled back."""
        self.asked[body] += 1
        return _DECISIONS[self.states.get(body, State.ROLLED_BACK)]

    def unfinished(self, slots: Iterable[BrokerSlot]) -> str:
        """The reason why the transactions are not settled yet; empty when they are."""
        for slot in slots:
            assert slot.broker is not None, "the faults are over"
            left = len(slot.broker.state.transactions.open)
            if left:
                return f"{left} transactions are open on {slot.name}"
        return ""

    def check_end(self, slots: list[BrokerSlot]) -> None:
        """Compare what is visible with the table."""
        anywhere: set[bytes] = set()
        for slot in slots:
            counts = Counter(message.body for message in slot.read_all(TOPIC))
            for body, count in counts.items():
                if self.states.get(body) is not State.COMMITTED:
                    raise Broken(f"{body!r} is visible on {slot.name}: {self.states.get(body)}")
                if count > 1:
                    raise Broken(f"{body!r} is visible {count} times on {slot.name}")
            anywhere |= counts.keys()
            parked = slot.read_all(TRANSACTION_GIVEN_UP_TOPIC)
            if parked:
                raise Broken(f"{parked[0].body!r} was given up on {slot.name}")
        for body, state in self.states.items():
            if state is State.COMMITTED and body not in anywhere:
                raise Broken(f"{body!r} was committed and is not visible; asked {self.asked[body]}")


class SimulatedBank:
    """A member of the producer group: runs its transactions, and answers until the end."""

    def __init__(self, scene: Scene, table: Table, count: int, busy: float, number: int) -> None:
        self._scene = scene
        self._table = table
        self._count = count
        self._busy = busy
        self._number = number
        self.host = f"10.2.0.{number + 1}"
        with scene.loop.network.host(self.host):
            self._session = loop_session(
                NAME_SERVER, scene.loop.clock, f"b{number}", seed=scene.loop.seed
            )
            self._core = ProducerCore(
                self._session, ProducerSettings(group=GROUP), check=self._check, topics=[TOPIC]
            )

    async def run(self) -> None:
        """Begin the transactions, one after the other or side by side."""
        chance = self._scene.chance
        with self._scene.loop.network.host(self.host):
            self._core.start()
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._count):
                    body = b"payment %d-%d" % (self._number, number)
                    tasks.create_task(self._transact(body))
                    await asyncio.sleep(chance.uniform(0, 2 * self._busy / self._count))

    async def stop(self) -> None:
        with self._scene.loop.network.host(self.host):
            await self._core.stop()
            await self._session.stop()

    def _check(self, message: StoredMessage, answer: TransactionAnswer) -> None:
        decision = self._table.decision(message.body)
        self._scene.note(f"{self.host} is asked about {message.body!r}: {decision}")
        answer(decision)

    async def _transact(self, body: bytes) -> None:
        chance, states = self._scene.chance, self._table.states
        states[body] = State.RUNNING
        try:
            half = await send_half(self._core, Message(TOPIC, body))
        except PenstockError as error:
            # Perhaps stored all the same: then a broker will ask.
            self._scene.note(f"{self.host} could not prepare {body!r}: {error}")
            states[body] = State.ROLLED_BACK
            return
        result = NOT_RUN
        if half.is_safe:
            await asyncio.sleep(chance.choice([0.0, 0.1, SLOWEST]))
            states[body] = chance.choice([State.COMMITTED, State.COMMITTED, State.ROLLED_BACK])
            is_silent = chance.random() < 0.3
            decision = TransactionDecision.UNKNOWN if is_silent else _DECISIONS[states[body]]
            result = LocalResult(decision)
        else:
            states[body] = State.ROLLED_BACK
        self._scene.note(f"{self.host} ends {body!r}: {states[body].value}, {result.decision}")
        await end_transaction(self._core, half, result)
