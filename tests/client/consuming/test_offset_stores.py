"""Where a group stands: in memory, on the broker, in a file."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loop_clients import Bench, on_bench

from penstock.client.consuming.offset_stores import (
    BAD_ARGUMENT,
    NONE_STORED,
    READ_FAILED,
    BrokerOffsetStore,
    FileOffsetStore,
    OffsetTable,
    ReadFrom,
)
from penstock.client.settings import StartFrom
from penstock.errors import PenstockError, ServiceNotAvailable, StoreDamaged
from penstock.model import MessageQueue, StoredMessage
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.remoting.peer import Peer
from penstock.remoting.promise import Promise

GROUP = "billing"
QUERY = RequestCode.QUERY_CONSUMER_OFFSET
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
Q = [MessageQueue("T", "broker-a", n) for n in range(4)]


def files_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def ignore(message: StoredMessage) -> None:
    """A handler that is always done."""


@pytest.mark.spec("S87")
@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1))
def test_an_increase_only_update_never_lowers_an_offset(updates: list[tuple[int, bool]]) -> None:
    table = OffsetTable()
    expected: int | None = None
    for offset, increase_only in updates:
        table.update(Q[0], offset, increase_only=increase_only)
        if expected is None or not increase_only or offset > expected:
            expected = offset
        assert table[Q[0]] == expected


def test_a_frozen_offset_takes_no_update_until_it_is_removed() -> None:
    table = OffsetTable()
    table.update(Q[0], 5, increase_only=True)
    table.freeze(Q[0], 3)
    table.update(Q[0], 9, increase_only=False)
    assert table[Q[0]] == 3
    table.remove(Q[0])
    assert table[Q[0]] == NONE_STORED
    table.update(Q[0], 9, increase_only=True)
    assert table[Q[0]] == 9


def test_a_snapshot_is_a_copy_of_all_or_of_one_topic() -> None:
    table = OffsetTable()
    other = MessageQueue("U", "broker-a", 0)
    table.update(Q[0], 5, increase_only=True)
    table.update(other, 6, increase_only=True)
    assert table.snapshot("U") == {other: 6}
    snapshot = table.snapshot()
    snapshot.clear()
    assert table.snapshot() == {Q[0]: 5, other: 6}


# ------------------------------------------------------------------------------ on the broker


@pytest.mark.spec("S124")
@on_bench()
async def test_a_read_answers_from_memory_store_or_both(bench: Bench) -> None:
    store = BrokerOffsetStore(bench.session(), GROUP)
    await bench.session().refresh_route("T")
    await store.load()
    assert await store.read(Q[0], ReadFrom.MEMORY) == NONE_STORED
    assert await store.read(Q[0], ReadFrom.STORE) == NONE_STORED
    bench.broker.offsets[GROUP, "T", 0] = 7
    assert await store.read(Q[0], ReadFrom.MEMORY_FIRST) == 7
    # What was fetched is the base of later commits.
    assert await store.read(Q[0], ReadFrom.MEMORY) == 7
    store.update(Q[0], 9, increase_only=True)
    bench.broker.offsets[GROUP, "T", 0] = 8
    assert await store.read(Q[0], ReadFrom.MEMORY_FIRST) == 9
    assert await store.read(Q[0], ReadFrom.STORE) == 8
    assert await store.read(Q[0], ReadFrom.MEMORY) == 8


@pytest.mark.spec("S124")
@on_bench()
async def test_a_failed_read_is_distinguished_from_a_missing_offset_and_a_bad_argument(
    bench: Bench,
) -> None:
    store = BrokerOffsetStore(bench.session(), GROUP)
    bench.broker.script[QUERY] = lambda peer, request: Command(ResponseCode.SYSTEM_ERROR)
    assert await store.read(Q[0], ReadFrom.STORE) == READ_FAILED
    assert await store.read(MessageQueue("T", "unknown", 0), ReadFrom.STORE) == READ_FAILED
    assert await store.read(None, ReadFrom.STORE) == BAD_ARGUMENT  # type: ignore[arg-type]
    assert await store.read(Q[0], "memory") == BAD_ARGUMENT  # type: ignore[arg-type]


@pytest.mark.spec("S89")
@on_bench()
async def test_persisting_writes_held_queues_and_forgets_the_others(bench: Bench) -> None:
    store = BrokerOffsetStore(bench.session(), GROUP)
    for queue in Q[:3]:
        store.update(queue, 10 + queue.queue_id, increase_only=True)
    await store.persist_all(set())
    assert len(store.snapshot()) == 3
    await store.persist_all({Q[0], Q[1]})
    await asyncio.sleep(0.1)
    assert {(c.ext["queueId"], c.ext["commitOffset"]) for c in bench.broker.asked(COMMIT)} == {
        ("0", "10"),
        ("1", "11"),
    }
    assert all(commit.is_oneway for commit in bench.broker.asked(COMMIT))
    assert store.snapshot() == {Q[0]: 10, Q[1]: 11}


@on_bench()
async def test_a_broker_that_is_away_costs_a_warning_and_not_the_others(bench: Bench) -> None:
    store = BrokerOffsetStore(bench.session(), GROUP)
    lost = MessageQueue("T", "unknown", 0)
    store.update(lost, 5, increase_only=True)
    store.update(Q[0], 6, increase_only=True)
    await store.persist_all({lost, Q[0]}, wait=True)
    assert bench.broker.offsets == {(GROUP, "T", 0): 6}
    await store.persist(lost)
    assert store.snapshot() == {lost: 5, Q[0]: 6}


@on_bench()
async def test_one_commit_of_a_topic_goes_ahead_of_the_others(bench: Bench) -> None:
    store = BrokerOffsetStore(bench.session(), GROUP)
    retries = MessageQueue("%RETRY%billing", "broker-a", 0)
    first: dict[str, Promise] = {}

    def answer(peer: Peer, request: Command) -> Command | Promise:
        assert request.ext is not None
        if request.ext["topic"] in first:
            return Command(ResponseCode.SUCCESS)
        return first.setdefault(request.ext["topic"], Promise())

    def asked() -> list[tuple[str, str]]:
        return [(c.ext["topic"], c.ext["queueId"]) for c in bench.broker.asked(COMMIT)]

    bench.cluster.add_topic(retries.topic)
    bench.broker.script[COMMIT] = answer
    for queue in (*Q, retries):
        store.update(queue, 5, increase_only=True)
    persisting = asyncio.create_task(store.persist_all({*Q, retries}, wait=True))
    await asyncio.sleep(1)
    assert sorted(asked()) == [("%RETRY%billing", "0"), ("T", "0")]
    for promise in first.values():
        promise.resolve(Command(ResponseCode.SUCCESS))
    await persisting
    assert sorted(asked()[2:]) == [("T", "1"), ("T", "2"), ("T", "3")]


@on_bench()
async def test_a_silent_broker_is_waited_for_twice_and_not_once_for_each_queue(
    bench: Bench,
) -> None:
    store = BrokerOffsetStore(bench.session(), GROUP)
    bench.broker.script[COMMIT] = lambda peer, request: Promise()
    for queue in Q:
        store.update(queue, 5, increase_only=True)
    begun = bench.clock.monotonic()
    await store.persist_all(set(Q), wait=True)
    assert len(bench.broker.asked(COMMIT)) == len(Q)
    assert bench.clock.monotonic() - begun == pytest.approx(10.0, abs=0.5)
    # And once it speaks again, one goes ahead again.
    del bench.broker.script[COMMIT]
    bench.broker.forget()
    await store.persist_all(set(Q), wait=True)
    assert bench.broker.offsets == {(GROUP, "T", queue.queue_id): 5 for queue in Q}


@pytest.mark.spec("S88")
@on_bench()
async def test_commits_on_an_open_connection_are_those_of_a_new_one(bench: Bench) -> None:
    session = bench.session()
    store = BrokerOffsetStore(session, GROUP)
    lost = MessageQueue("T", "unknown", 0)
    for number, queue in enumerate([*Q, lost]):
        store.update(queue, 5 + number, increase_only=True)
    rounds = []
    for is_open in (False, True):
        assert (session.open_master(Q[0]) is not None) == is_open
        await store.persist_all({*Q, lost})
        await asyncio.sleep(0.1)
        rounds.append([(c.ext, c.body, c.is_oneway) for c in bench.broker.asked(COMMIT)])
        bench.broker.forget()
    assert len(rounds[0]) == len(Q)
    assert rounds[0] == rounds[1]
    # A connection that is lost is no longer taken for open, and the next round makes a new one.
    for peer in list(session.pool.peers.values()):
        peer.close("lost")
    assert session.open_master(Q[0]) is None
    await store.persist_all(set(Q))
    await asyncio.sleep(0.1)
    assert [(c.ext, c.body, c.is_oneway) for c in bench.broker.asked(COMMIT)] == rounds[0]


@pytest.mark.spec("S123")
@on_bench()
async def test_an_unknown_broker_is_looked_up_once_and_is_then_an_error(bench: Bench) -> None:
    store = BrokerOffsetStore(bench.session(), GROUP)
    lost = MessageQueue("T", "unknown", 0)
    with pytest.raises(ServiceNotAvailable, match="'unknown'"):
        await store.commit_to_broker(lost, 5, oneway=False)
    assert len(bench.cluster.nameserver.asked(ROUTE, topic="T")) == 1


@pytest.mark.spec("S123")
@on_bench()
async def test_a_commit_is_one_way_or_waits_for_the_answer(bench: Bench) -> None:
    store = BrokerOffsetStore(bench.session(), GROUP)
    await store.commit_to_broker(Q[0], 5, oneway=False)
    await store.commit_to_broker(Q[1], 6, oneway=True)
    await asyncio.sleep(0.1)
    assert [commit.is_oneway for commit in bench.broker.asked(COMMIT)] == [False, True]
    bench.broker.script[COMMIT] = lambda peer, request: Command(
        ResponseCode.TOPIC_NOT_EXIST, remark="gone"
    )
    with pytest.raises(PenstockError, match="gone"):
        await store.commit_to_broker(Q[0], 7, oneway=False)


# --------------------------------------------------------------------------------- in a file


def file_store(directory: Path, *, merge: bool = True) -> FileOffsetStore:
    return FileOffsetStore(directory, "10.0.0.5@DEFAULT", GROUP, merge=merge)


@pytest.mark.spec("S120")
async def test_offsets_are_filed_under_client_id_and_group(tmp_path: Path) -> None:
    store = file_store(tmp_path)
    assert store.path == tmp_path / "10.0.0.5@DEFAULT" / GROUP / "offsets.json"
    await store.load()
    store.update(Q[0], 5, increase_only=True)
    await store.persist_all({Q[0]})
    text = store.path.read_text()
    assert text == '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5}}'
    again = file_store(tmp_path)
    await again.load()
    assert again.snapshot() == {Q[0]: 5}


@pytest.mark.spec("S121")
@pytest.mark.parametrize("damage", [b"", b"{", None])
async def test_a_damaged_or_missing_file_is_replaced_by_its_backup(
    tmp_path: Path, damage: bytes | None
) -> None:
    store = file_store(tmp_path)
    for offset in (5, 6):
        store.update(Q[0], offset, increase_only=True)
        await store.persist_all({Q[0]})
    if damage is None:
        store.path.unlink()
    else:
        store.path.write_bytes(damage)
    again = file_store(tmp_path)
    await again.load()
    assert again.snapshot() == {Q[0]: 5}


@pytest.mark.spec("S121")
async def test_without_a_readable_backup_there_is_an_error_or_a_fresh_start(
    tmp_path: Path,
) -> None:
    store = file_store(tmp_path)
    store.path.parent.mkdir(parents=True)
    store.path.write_bytes(b"{")
    await store.load()
    assert store.snapshot() == {}
    store.path.write_bytes(b"{")
    store.path.with_name("offsets.json.bak").write_bytes(b"{")
    with pytest.raises(StoreDamaged):
        await file_store(tmp_path).load()


@pytest.mark.spec("S122")
@pytest.mark.parametrize("merge", [True, False])
async def test_queues_that_are_not_held_stay_in_the_file_or_not(
    tmp_path: Path, merge: bool
) -> None:
    store = file_store(tmp_path, merge=merge)
    store.update(Q[0], 5, increase_only=True)
    store.update(Q[1], 6, increase_only=True)
    await store.persist_all({Q[0], Q[1]})
    store.update(Q[0], 7, increase_only=True)
    await store.persist_all(set())
    await store.persist_all({Q[0]})
    again = file_store(tmp_path)
    await again.load()
    assert again.snapshot() == ({Q[0]: 7, Q[1]: 6} if merge else {Q[0]: 7})


@pytest.mark.spec("S124")
async def test_a_file_answers_reads_like_a_broker(tmp_path: Path) -> None:
    store = file_store(tmp_path)
    assert await store.read(Q[0], ReadFrom.MEMORY) == NONE_STORED
    assert await store.read(Q[0], ReadFrom.STORE) == NONE_STORED
    assert await store.read(None, ReadFrom.STORE) == NONE_STORED  # type: ignore[arg-type]
    store.update(Q[0], 5, increase_only=True)
    await store.persist(Q[0])
    store.update(Q[0], 9, increase_only=True)
    assert await store.read(Q[0], ReadFrom.MEMORY_FIRST) == 9
    assert await store.read(Q[0], ReadFrom.STORE) == 5
    assert await store.read(Q[0], ReadFrom.MEMORY) == 5
    store.remove(Q[0])
    assert await store.read(Q[0], ReadFrom.MEMORY_FIRST) == 5
    await store.commit_to_broker(Q[0], 5, oneway=True)  # no broker keeps these


async def test_a_file_that_cannot_be_written_leaves_offsets_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    store = file_store(blocked)
    store.update(Q[0], 5, increase_only=True)
    for _ in range(3):
        with contextlib.suppress(PenstockError):
            await store.persist_all({Q[0]})
    assert await store.read(Q[0], ReadFrom.MEMORY) == 5
    assert len([r for r in caplog.records if "kept in memory only" in r.message]) == 1


@pytest.mark.parametrize("merge", [True, False])
async def test_what_could_not_be_written_is_read_from_memory_until_it_is(
    tmp_path: Path, merge: bool
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    store = file_store(blocked, merge=merge)
    store.freeze(Q[0], 5)
    await store.persist(Q[0])
    store.remove(Q[0])
    assert await store.read(Q[0], ReadFrom.STORE) == 5
    assert await store.read(Q[0], ReadFrom.MEMORY) == 5
    store.update(Q[1], 6, increase_only=True)
    await store.persist_all({Q[1]})
    blocked.unlink()
    await store.persist(Q[1])
    again = file_store(blocked)
    await again.load()
    assert again.snapshot() == {Q[0]: 5, Q[1]: 6}
    # From now on the file counts, also when another process writes it.
    again.update(Q[0], 7, increase_only=True)
    await again.persist(Q[0])
    assert await store.read(Q[0], ReadFrom.STORE) == 7


@on_bench(topics={"T": 1})
async def test_an_illegal_offset_is_repaired_once_though_no_file_can_be_written(
    bench: Bench, tmp_path: Path
) -> None:
    seen: list[int] = []
    bench.broker.queue("T", 0).min_offset = 3
    bench.broker.put("T", 0, b"x", b"y")
    await bench.consumer(
        lambda message: seen.append(message.queue_offset),
        model="broadcasting",
        offsets_dir=tmp_path / "file",
        start_from=StartFrom("first"),
    )
    (tmp_path / "file").write_text("not a directory")
    await asyncio.sleep(60)
    asked = [int(p.ext["queueOffset"]) for p in bench.broker.asked(RequestCode.PULL_MESSAGE)]
    assert asked.count(0) == 1
    assert seen == [3, 4]


@pytest.mark.spec("S12", "S122")
@on_bench()
async def test_broadcasting_writes_a_file_every_five_seconds_and_commits_nothing(
    bench: Bench, tmp_path: Path
) -> None:
    bench.broker.put("T", 0, b"x", b"y")
    consumer = await bench.consumer(
        ignore, model="broadcasting", offsets_dir=tmp_path, start_from=StartFrom("first")
    )
    path = tmp_path / "127.0.0.1@c1" / GROUP / "offsets.json"
    await asyncio.sleep(9)
    assert not path.exists()
    await asyncio.sleep(2)
    assert '"queueId":0,"topic":"T"}:2' in path.read_text()
    bench.broker.put("T", 0, b"z")
    await asyncio.sleep(5)
    assert '"queueId":0,"topic":"T"}:3' in path.read_text()
    assert not bench.broker.asked(COMMIT)
    assert not bench.broker.asked(QUERY)
    assert all(int(p.ext["sysFlag"]) & 1 == 0 for p in bench.broker.asked(11))
    await consumer.stop()


@pytest.mark.spec("S12")
@on_bench()
async def test_clustering_commits_to_the_broker_and_writes_no_file(
    bench: Bench, tmp_path: Path
) -> None:
    bench.broker.put("T", 0, b"x", b"y")
    await bench.consumer(ignore, offsets_dir=tmp_path, start_from=StartFrom("first"))
    await asyncio.sleep(12)
    assert bench.broker.offsets[GROUP, "T", 0] == 2
    assert files_in(tmp_path) == []


@pytest.mark.spec("S122")
@on_bench()
async def test_a_broadcasting_consumer_goes_on_where_its_file_says(
    bench: Bench, tmp_path: Path
) -> None:
    seen: list[int] = []
    bench.broker.put("T", 0, *[b"x"] * 5)
    for _ in range(2):
        consumer = await bench.consumer(
            lambda message: seen.append(message.queue_offset),
            model="broadcasting",
            offsets_dir=tmp_path,
            start_from=StartFrom("first"),
        )
        await asyncio.sleep(3)
        await consumer.stop()
        bench.broker.put("T", 0, b"more")
    assert seen == [0, 1, 2, 3, 4, 5]
