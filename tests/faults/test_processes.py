"""Processes that get no time, and processes that are killed at the worst moments."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path

import pytest
from tests.faults import shrinker
from tests.faults.cluster import IS_LONG, held, running
from tests.faults.traffic import BROKER, PLAIN, QUEUES, Traffic

from penstock import MessageQueue, aio
from penstock.protocol.records.codec import decode_record
from penstock.runtime.child_process import ChildProcess, ProcessFailed
from penstock.store import MessageStore
from penstock.testing.eventually import eventually

pytestmark = pytest.mark.crash

ROUNDS = 10 if IS_LONG else 2
SEED = random.randrange(1 << 32) if IS_LONG else 3
LONGEST_HOLD = 15.0 if IS_LONG else 2.0
SHRINKER = Path(shrinker.__file__)

CONSUMER = """
import sys
from penstock import PushConsumer
consumer = PushConsumer("readers", namesrv=sys.argv[1], start_from="first")
@consumer.on("plain")
def handle(message):
    sys.stdout.write(f"handled {message.queue.queue_id} {message.queue_offset}\\n")
    sys.stdout.flush()
consumer.run()
"""
PRODUCER = """
import sys
from penstock import Message, Producer
with Producer("others", namesrv=sys.argv[1], retries=0) as producer:
    for number in range(1 << 30):
        producer.send(Message("other", b"%d" % number))
        sys.stdout.write(f"confirmed {number}\\n")
        sys.stdout.flush()
"""


async def test_a_broker_that_gets_no_time_loses_nothing(tmp_path: Path) -> None:
    traffic, chance = Traffic(SEED), random.Random(SEED)
    with running(tmp_path / "data") as cluster:
        await traffic.make_topics(cluster)
        async with traffic.flowing(cluster):
            for _ in range(ROUNDS):
                await traffic.flow(100)
                with held(cluster.process):
                    await asyncio.sleep(chance.uniform(0.5, LONGEST_HOLD))
            await traffic.flow(100)
        await traffic.check(cluster)


async def test_clients_that_get_no_time_go_on_where_they_were(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with running(tmp_path / "data") as cluster:
        async with aio.Admin(namesrv=cluster.namesrv) as admin:
            for topic in (PLAIN, "other"):
                await admin.create_topic(topic, queues=QUEUES)
        words = [sys.executable, "-u", "-c"]
        consumer = ChildProcess([*words, CONSUMER, cluster.namesrv])
        producer = ChildProcess([*words, PRODUCER, cluster.namesrv])
        with consumer, producer:
            async with aio.Producer("senders", namesrv=cluster.namesrv) as sender:
                sent = 0
                for party in (consumer, producer, consumer, producer)[: 2 * ROUNDS]:
                    for _ in range(50):
                        await sender.send(PLAIN, b"x")
                        sent += 1
                    with held(party):
                        await sender.send(PLAIN, b"x")
                        sent += 1
                        await asyncio.sleep(chance.uniform(0.5, LONGEST_HOLD))
            await eventually(
                lambda: len(set(_numbers(consumer.output, "handled"))) >= sent, 60, interval=0.1
            )
            numbers = _numbers(producer.output, "confirmed")
            assert await asyncio.to_thread(consumer.terminate) == 0
            producer.kill()
        async with aio.Admin(namesrv=cluster.namesrv) as admin:
            bodies: list[bytes] = []
            for queue_id in range(QUEUES):
                queue = MessageQueue("other", BROKER, queue_id)
                part = await admin.messages(queue, 0, count=1 << 20)
                bodies += [message.body for message in part.messages]
        assert {b"%d" % number for (number,) in numbers} <= set(bodies)
        assert len(set(bodies)) == len(bodies), "stored twice"


def _numbers(output: str, word: str) -> list[tuple[int, ...]]:
    return [
        tuple(map(int, line.split()[1:]))
        for line in output.splitlines()
        if line.startswith(f"{word} ")
    ]


async def test_a_name_server_that_gets_no_time_is_missed_by_none(tmp_path: Path) -> None:
    """Clients and broker go on without it, and new topics are found when it is back."""
    words: list[str | Path] = [sys.executable, "-m", "penstock"]
    names = ChildProcess(
        [*words, "nameserver", "--nameserver-port", "0", "--data", tmp_path / "names"]
    )
    with names:
        port = names.wait_for_line(r"^ready namesrv=\S+:(\d+)")[1]
        namesrv, data = f"127.0.0.1:{port}", tmp_path / "data"
        broker = ChildProcess(
            [*words, "broker", "--namesrv", namesrv, "--broker-port", "0", "--data", data]
        )
        with broker:
            broker.wait_for_line("^ready broker=")
            async with (
                aio.Admin(namesrv=namesrv) as admin,
                aio.Producer("senders", namesrv=namesrv) as producer,
            ):
                await admin.create_topic(PLAIN, queues=1)
                await producer.send(PLAIN, b"before")
                with held(names):
                    for number in range(50):
                        await producer.send(PLAIN, b"%d" % number)
                    await asyncio.sleep(1)
                await admin.create_topic("late", queues=1)
                await producer.send("late", b"after")
                queue = MessageQueue(PLAIN, BROKER, 0)
                assert len((await admin.messages(queue, 0, count=100)).messages) == 51


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_kills_while_files_roll_lose_nothing(tmp_path: Path, flush: str) -> None:
    """With everything that clients do; segments take a few dozen messages."""
    traffic, chance = Traffic(SEED), random.Random(SEED)
    with running(tmp_path / "data", settings=f"flushDiskType={flush}\n") as cluster:
        await traffic.make_topics(cluster)
        for _ in range(ROUNDS):
            async with traffic.flowing(cluster):
                await traffic.flow(chance.randrange(100, 300))
                traffic.note_death()
                await cluster.kill()
            await cluster.begin()
        await traffic.check(cluster)
        assert len(list((cluster.data / BROKER / "commitlog").iterdir())) > 1


async def test_kills_during_recovery_lose_nothing(tmp_path: Path) -> None:
    """A broker that recovers is killed again, some moments later each time."""
    traffic, chance = Traffic(SEED), random.Random(SEED)
    with running(tmp_path / "data") as cluster:
        await traffic.make_topics(cluster)
        async with traffic.flowing(cluster):
            await traffic.flow(400)
            traffic.note_death()
            await cluster.kill()
        for _ in range(4 * ROUNDS):
            cluster.process.start()
            # Importing takes most of a start; what follows is opening and recovering.
            await asyncio.sleep(chance.uniform(0.2, 1.2))
            await cluster.kill()
        await cluster.begin()
        await traffic.check(cluster)


def test_kills_during_retention_and_deletion_lose_nothing_else(tmp_path: Path) -> None:
    """The start of a log and a topic are deleted all the time; messages roll every few dozen."""
    chance = random.Random(SEED)
    kept = scratch = dead = lowest = 0
    for _ in range(8 * ROUNDS):
        words = (sys.executable, SHRINKER, tmp_path / "store", str(kept), str(scratch))
        with ChildProcess([*map(str, words)]) as child:
            child.wait_for_line("^ready$")
            time.sleep(chance.uniform(0, 0.3))
            child.kill()
            kept = max([kept, *(number for (number,) in _numbers(child.output, "kept"))])
            dead = max([dead, *(number for (number,) in _numbers(child.output, "deleted"))])
            # More may have been sent than it said.
            known = [number for (number,) in _numbers(child.output, "scratch")]
            scratch = max([scratch, *known]) + 1000
        with MessageStore(tmp_path / "store", shrinker.CONFIG) as store:
            low, high = store.min_offset("kept", 0), store.max_offset("kept", 0)
            assert high >= kept
            assert low >= lowest, "deleted messages are back"
            lowest = low
            for offset in range(low, high):
                entry = store.entry("kept", 0, offset)
                assert entry is not None
                record = store.record_at(entry.log_position)
                assert record is not None, f"message {offset} is gone"
                assert decode_record(record, check_crc=True).body == shrinker.body(offset)
            kept = high
            for offset in range(store.min_offset("scratch", 0), store.max_offset("scratch", 0)):
                entry = store.entry("scratch", 0, offset)
                record = None if entry is None else store.record_at(entry.log_position)
                if record is not None:
                    assert int(decode_record(record).body) >= dead, "a deleted topic is back"
    assert lowest, "nothing was deleted for its age"
    assert dead, "no topic was deleted"


async def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    """A data directory that is a file: no traceback, and no ready line."""
    (tmp_path / "data").write_text("")
    with pytest.raises(ProcessFailed) as failure, running(tmp_path / "data"):
        pass
    assert "Traceback" not in str(failure.value).replace("ProcessFailed", "")
