"""Tests of handlers with a broker as a fixture: real code in virtual time, without waiting.

Installing the package registers the fixtures: ``penstock`` has a virtual clock, ``penstock_aio`` is
the same for coroutines, ``penstock_broker`` has real sockets.

    python examples/pytest_usage.py        or: pytest examples/pytest_usage.py
"""

from __future__ import annotations

import subprocess
import sys

from penstock import Message, Producer, PushConsumer, StoredMessage
from penstock.testing.embedded import AsyncEmbedded, Embedded


class Bank:
    """The code under test: a handler that depends on an unreliable service."""

    def __init__(self, *, down_for: int) -> None:
        self.down_for = down_for
        self.charged: list[str] = []

    def charge(self, message: StoredMessage) -> None:
        if message.reconsume_times < self.down_for:
            raise ConnectionError("the bank does not answer")
        self.charged.append(message.body.decode())


def start(bank: Bank, mq: Embedded) -> PushConsumer:
    mq.admin.create_topic("orders", queues=1)
    consumer = PushConsumer("billing", namesrv=mq.namesrv, start_from="first", max_retries=5)
    consumer.on("orders")(bank.charge)
    consumer.start()
    return consumer


def send(mq: Embedded, body: bytes) -> None:
    with Producer("shop", namesrv=mq.namesrv) as producer:
        producer.send(Message("orders", body))


def test_an_order_is_charged(penstock: Embedded) -> None:
    bank = Bank(down_for=0)
    consumer = start(bank, penstock)
    send(penstock, b"flowers")
    penstock.clock.advance("1s")
    assert bank.charged == ["flowers"]
    consumer.stop()


def test_an_order_is_charged_when_the_bank_is_back(penstock: Embedded) -> None:
    bank = Bank(down_for=2)
    consumer = start(bank, penstock)
    send(penstock, b"flowers")
    penstock.clock.advance("15s")  # the first retry comes after 10 s, the second 30 s later
    assert bank.charged == []
    penstock.clock.advance("30s")
    assert bank.charged == ["flowers"]
    consumer.stop()


def test_an_order_that_cannot_be_charged_is_a_dead_letter(penstock: Embedded) -> None:
    bank = Bank(down_for=100)
    consumer = start(bank, penstock)
    send(penstock, b"flowers")
    penstock.clock.advance("10m")
    [letter] = penstock.admin.dead_letters("billing")
    assert letter.message.body == b"flowers"
    assert letter.reason == "the bank does not answer"
    consumer.stop()


async def test_coroutines_are_tested_the_same_way(penstock_aio: AsyncEmbedded) -> None:
    from penstock import aio

    async with aio.Producer("shop", namesrv=penstock_aio.namesrv) as producer:
        await producer.send(Message("orders", b"flowers", delay="10m"))
    seen: list[bytes] = []
    consumer = aio.PushConsumer("billing", namesrv=penstock_aio.namesrv, start_from="first")

    @consumer.on("orders")
    async def bill(message: StoredMessage) -> None:
        seen.append(message.body)

    async with consumer:
        await penstock_aio.clock.advance("9m")
        assert seen == []
        await penstock_aio.clock.advance("1m")
        assert seen == [b"flowers"]


if __name__ == "__main__":
    # The test that is a coroutine needs asyncio_mode, which projects usually configure.
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    sys.exit(subprocess.call([sys.executable, "-m", "pytest", *options, __file__]))
