"""A broker process that is killed in the middle of transactions, again and again.

After the last start every transaction gets its decision: what was committed is visible once, what
was rolled back never, and no transaction stays open.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from tests.crash.test_broker_kill import IS_LONG, Up, running

from penstock import Message, MessageQueue, StoredMessage, aio
from penstock.errors import PenstockError
from penstock.testing.eventually import eventually

pytestmark = pytest.mark.crash

KILLS = 12 if IS_LONG else 2
WORKERS = 8
TOPIC = "payments"
GROUP = "bank"
BROKER = "broker-a"
SOON = "transactionTimeOut=300\ntransactionCheckInterval=300\n"


class Table:
    """The results of local transactions: what a database would keep."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.states: dict[bytes, bool | None] = {}
        """True: committed, False: rolled back, None: running."""
        self.asked: Counter[bytes] = Counter()

    def check(self, message: StoredMessage) -> bool | None:
        self.asked[message.body] += 1
        # A half whose send failed is unknown here, and rolled back.
        return self.states.get(message.body, False)

    async def transact(self, producer: aio.Producer, body: bytes) -> None:
        """One transaction; some decisions are left to the check."""
        is_committed = self.chance.random() < 0.6
        is_told = self.chance.random() < 0.7
        self.states[body] = None

        async def execute(message: Message) -> bool | None:
            await asyncio.sleep(self.chance.choice([0.0, 0.0, 0.01]))
            self.states[body] = is_committed
            return is_committed if is_told else None

        try:
            await producer.send_in_transaction(Message(TOPIC, body), execute)
        except PenstockError:
            if self.states[body] is None:
                self.states[body] = False
            raise


def new_producer(up: Up, table: Table) -> aio.Producer:
    return aio.Producer(
        GROUP,
        namesrv=f"127.0.0.1:{up.names_port}",
        check_transaction=table.check,
        topics=[TOPIC],
        retries=0,
        send_timeout=2,
    )


async def work(producer: aio.Producer, table: Table, name: str) -> None:
    """One transaction after the other, until the broker is gone."""
    number = 0
    while True:
        try:
            await table.transact(producer, f"{name}-{number}".encode())
        except PenstockError:
            return
        number += 1


async def work_and_kill(up: Up, table: Table, life: int) -> None:
    wanted = len(table.states) + table.chance.randint(50, 200)
    async with new_producer(up, table) as producer, asyncio.TaskGroup() as tasks:
        for number in range(WORKERS):
            tasks.create_task(work(producer, table, f"{life}-{number}"))
        await eventually(lambda: len(table.states) >= wanted, 60, interval=0.001)
        await asyncio.to_thread(up.process.kill)
    await asyncio.to_thread(up.start)


async def settled(admin: aio.Admin) -> None:
    """Return when no transaction is open."""
    left = await admin.transactions()
    for _ in range(600):
        if not left:
            return
        await asyncio.sleep(0.1)
        left = await admin.transactions()
    pytest.fail(f"{len(left)} transactions are open, first {left[0]}")


async def visible(admin: aio.Admin) -> Counter[bytes]:
    counts: Counter[bytes] = Counter()
    for queue_id in range(4):
        queue = MessageQueue(TOPIC, BROKER, queue_id)
        part = await admin.messages(queue, 0, count=1 << 20)
        counts.update(message.body for message in part.messages)
    return counts


@pytest.mark.spec("X20", "X38")
async def test_transactions_survive_kills(tmp_path: Path) -> None:
    table = Table(random.randrange(1 << 32) if IS_LONG else 7)
    with running(tmp_path / "data", settings=SOON) as up:
        async with aio.Admin(namesrv=f"127.0.0.1:{up.names_port}") as admin:
            await admin.create_topic(TOPIC, queues=4)
        for life in range(KILLS):
            await work_and_kill(up, table, life)
        async with (
            new_producer(up, table),
            aio.Admin(namesrv=f"127.0.0.1:{up.names_port}") as admin,
        ):
            await settled(admin)
            # Two more rounds would ask about what is still open.
            before = table.asked.total()
            await asyncio.sleep(1)
            assert table.asked.total() == before
            counts = await visible(admin)
    committed = {body for body, state in table.states.items() if state}
    assert set(counts) == committed
    assert max(counts.values()) == 1
    assert table.asked, "no question was asked"
