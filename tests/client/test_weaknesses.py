"""What goes wrong in RocketMQ's Java client and is avoided here, where no other file shows it."""

from __future__ import annotations

import asyncio

from tests.support.loop_clients import Bench, on_bench
from tests.support.scripted import Recorded

from penstock.client.settings import StartFrom
from penstock.model import StoredMessage
from penstock.protocol.codes import RequestCode

GROUP = "billing"
PULL = RequestCode.PULL_MESSAGE
FIRST = StartFrom("first")


def asked_from(requests: list[Recorded]) -> list[int]:
    return [int(request.ext["queueOffset"]) for request in requests]


@on_bench(topics={"T": 1})
async def test_messages_that_only_the_client_drops_are_passed_for_good(bench: Bench) -> None:
    def handler(message: StoredMessage) -> None:
        raise AssertionError(f"{message.tag} is not wanted")

    # The broker compares hashes, and these two tags have the same one.
    bench.broker.put("T", 0, *[b"other"] * 40, properties={"TAGS": "BB"})
    await bench.consumer(handler, start_from=FIRST, tags="Aa")
    await asyncio.sleep(12)
    # The last pull is still held; messages dropped before are counted all the same.
    pulls = bench.broker.asked(PULL, topic="T", queueId=0)
    assert asked_from(pulls) == [0, 32, 40]
    assert [int(pull.ext["commitOffset"]) for pull in pulls] == [0, 32, 40]
    assert bench.broker.offsets[GROUP, "T", 0] == 40


@on_bench(topics={"T": 1})
async def test_messages_that_the_client_drops_do_not_pass_one_that_is_unfinished(
    bench: Bench,
) -> None:
    running = asyncio.Event()

    async def handler(message: StoredMessage) -> None:
        running.set()
        await asyncio.sleep(1000)

    bench.broker.put("T", 0, b"wanted", properties={"TAGS": "Aa"})
    bench.broker.put("T", 0, *[b"other"] * 70, properties={"TAGS": "BB"})
    consumer = await bench.consumer(handler, start_from=FIRST, tags="Aa")
    await running.wait()
    await asyncio.sleep(12)
    assert asked_from(bench.broker.asked(PULL, topic="T", queueId=0)) == [0, 32, 64, 71]
    assert bench.broker.offsets.get((GROUP, "T", 0), 0) == 0
    consumer.hurry()
