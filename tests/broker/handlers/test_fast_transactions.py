"""Halves and decisions have the same outcome on the fast path as on the plain path."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from tests.broker.handlers.test_fast_send import ask, header, on_plain_path
from tests.support.asking import all_records, log_position, put_topic
from tests.support.faulty_files import FaultyFiles, SimulatedDisk
from tests.support.stage import Stage
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.broker.handlers.fast_transactions import FastTransactions
from penstock.broker.transactions import turns
from penstock.broker.transactions.check_rounds import CheckRounds
from penstock.broker.transactions.open_transactions import OpenTransaction
from penstock.broker.transactions.recent_halves import RecentHalves
from penstock.errors import StoreError
from penstock.model.names import HALF_TOPIC, OP_HALF_TOPIC
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import ONEWAY, Command
from penstock.protocol.half_messages import TransactionKey
from penstock.protocol.records.codec import Record
from penstock.store import SYNC_FLUSH, Appended, Draft, DraftFields, appending
from penstock.store.bulk.record_rows import RecordRows

USUAL = [
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02",
    "PGROUP\x01shop\x02TRAN_MSG\x01true",
    "KEYS\x01k1 k2\x02TRAN_MSG\x01true\x02WAIT\x01true\x02PGROUP\x01shop\x02my_PGROUP\x01x\x02",
]
UNUSUAL = [
    "TRAN_MSG\x01TRUE\x02PGROUP\x01shop\x02",
    "TRAN_MSG\x01false\x02PGROUP\x01shop\x02",
    "TRAN_MSG\x01true\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02PGROUP\x01other\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02WAIT\x01false\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02DELAY\x013\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02TIMER_DELAY_SEC\x0130\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02REAL_TOPIC\x01other\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02REAL_QID\x017\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02__transactionId__\x01other\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02TRANSACTION_CHECK_TIMES\x014\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02TRAN_PREPARED_QUEUE_OFFSET\x010\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02MSG_REGION\x01elsewhere\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02a\x01\u00fc\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02no value\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02a\x01\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02a\x01b\x01c\x02d\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02a\x01b\x01c\x02\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02a\x011\x02b\x01x\x02a\x012\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01shop\x02a\x01" + 32_700 * "x" + "\x02",
]
DECISIONS: list[dict[str, object]] = [
    {},
    {"commitOrRollback": "12"},
    {"commitOrRollback": "0"},
    {"commitOrRollback": "4"},
    {"commitOrRollback": "08"},
    {"commitOrRollback": 8},
    {"producerGroup": "other"},
    {"producerGroup": None},
    {"tranStateTableOffset": "99"},
    {"tranStateTableOffset": "+{offset}"},
    {"tranStateTableOffset": None},
    {"commitLogOffset": "1"},
    {"commitLogOffset": " {position}"},
    {"commitLogOffset": "0{position}"},
    {"fromTransactionCheck": "true"},
    {"fromTransactionCheck": "maybe"},
    {"fromTransactionCheck": None},
    {"msgId": None},
    {"msgId": 5},
    {"topic": "unknown"},
    {"opaque": 0},
    {"flag": 4},
    {"remark": "a listener raised"},
]


Way = Callable[[dict[str, object]], dict[str, object]]


def on_fast_path(head: dict[str, object]) -> dict[str, object]:
    return head


def half_header(text: str, unique_id: str) -> dict[str, object]:
    return header(i=f"UNIQ_KEY\x01{unique_id}\x02TAGS\x01t\x02{text}", f="4", e="2", h="5")


def end_header(half: Command, unique_id: str, **changes: object) -> dict[str, object]:
    position, offset = log_position(half), (half.ext or {})["queueOffset"]
    ext: dict[str, object] = {
        "producerGroup": "shop",
        "bname": "broker-a",
        "commitLogOffset": str(position),
        "topic": "T",
        "msgId": unique_id,
        "tranStateTableOffset": offset,
        "commitOrRollback": "8",
        "transactionId": unique_id,
        "fromTransactionCheck": "false",
    }
    head: dict[str, object] = {
        "code": RequestCode.END_TRANSACTION,
        "extFields": ext,
        "flag": 0,
        "language": "JAVA",
        "opaque": 9,
        "serializeTypeCurrentRPC": "JSON",
        "version": 513,
    }
    for key, value in changes.items():
        fields = head if key in ("opaque", "flag", "remark") else ext
        if value is None:
            fields.pop(key, None)
        elif isinstance(value, str):
            fields[key] = value.format(position=position, offset=offset)
        else:
            fields[key] = value
    return head


def said(answer: Command | None) -> object:
    """An answer without the places of messages; a refusal names them in its remark, too."""
    if answer is None:
        return None
    ext = dict(answer.ext or {})
    for key in ("msgId", "queueOffset", "transactionId"):
        ext.pop(key, None)
    remark = re.sub(r"\d+", "-", answer.remark or "")
    return answer.code, answer.request_id, answer.flag, remark, ext


def kept(record: Record, unique_id: str) -> object:
    return (
        record.topic,
        record.queue_id,
        record.body,
        record.properties.replace(unique_id.encode(), b"-"),
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host[:4],
        record.store_host,
        record.reconsume_times,
        bool(record.prepared_transaction_offset),
    )


def ids() -> Iterator[str]:
    return (f"7F0000013A2218B4AAC2{number:012X}" for number in itertools.count(1))


async def enable_fast_path(broker: Broker, wire: Wire) -> None:
    await put_topic(wire, "T", 4)
    await ask(broker, on_plain_path(half_header("TAGS\x01a\x02", "first")), b"first")


@pytest.mark.parametrize("text", [*USUAL, *UNUSUAL])
async def test_a_half_and_its_commit_have_the_same_outcome_on_either_path(
    broker: Broker, wire: Wire, text: str
) -> None:
    await enable_fast_path(broker, wire)
    outcomes: list[object] = []
    new_ids = ids()
    for half_way, end_way in itertools.product((on_fast_path, on_plain_path), repeat=2):
        unique_id = next(new_ids)
        before, open_before = await records(wire), len(broker.state.transactions.open)
        half = await ask(broker, half_way(half_header(text, unique_id)), b"body")
        assert half is not None
        opened = len(broker.state.transactions.open) - open_before
        ended = None
        if half.code == 0:
            ended = await ask(broker, end_way(end_header(half, unique_id)), b"")
        new = [kept(one, unique_id) for one in (await records(wire))[len(before) :]]
        still_open = len(broker.state.transactions.open) - open_before
        outcomes.append((said(half), said(ended), opened, still_open, new))
    assert [one == outcomes[-1] for one in outcomes] == [True] * 4


async def records(wire: Wire) -> list[Record]:
    """All records, in the order of the log but for op records: these hold offsets."""
    found = [*await all_records(wire, "T", 2), *await all_records(wire, HALF_TOPIC, 0)]
    return sorted(found, key=lambda one: one.log_position)


@pytest.mark.parametrize("changes", DECISIONS)
async def test_a_decision_has_the_same_outcome_on_either_path(
    broker: Broker, wire: Wire, changes: dict[str, object]
) -> None:
    await enable_fast_path(broker, wire)
    new_ids = ids()
    outcomes: list[object] = []
    for way in (on_fast_path, on_plain_path):
        unique_id = next(new_ids)
        half = await ask(broker, half_header(USUAL[0], unique_id), b"body")
        assert half is not None
        assert str(log_position(half)) in broker.state.transactions.recent
        ended = await ask(broker, way(end_header(half, unique_id, **changes)), b"")
        decision = broker.state.transactions.remembered(int((half.ext or {})["queueOffset"]))
        visible = [one for one in await all_records(wire, "T", 2) if one.body == b"body"]
        ops = await all_records(wire, OP_HALF_TOPIC, 0)
        outcomes.append(
            (said(ended), decision, len(visible), len(ops)),
        )
        for one in visible[len(visible) - (decision == 8) :]:
            assert one.prepared_transaction_offset == log_position(half)
            assert ops[-1].body == (half.ext or {})["queueOffset"].encode()
    first, second = outcomes
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert first[:2] == second[:2]
    assert second[2:] == (2 * first[2], 2 * first[3])


async def test_a_decision_of_the_fast_path_is_remembered_as_any_other(
    broker: Broker, wire: Wire
) -> None:
    await enable_fast_path(broker, wire)
    half = await ask(broker, half_header(USUAL[0], "ID"), b"body")
    assert half is not None
    codes = []
    for decision in ("8", "8", "12"):
        answer = await ask(broker, end_header(half, "ID", commitOrRollback=decision), b"")
        assert answer is not None
        codes.append(answer.code)
    assert codes == [0, 0, 604]
    assert len([one for one in await all_records(wire, "T", 2) if one.body == b"body"]) == 1
    assert not broker.state.transactions.recent


USUAL_DECISIONS: list[dict[str, object]] = [
    {},
    {"commitOrRollback": "12"},
    {"fromTransactionCheck": "true"},
    {"fromTransactionCheck": None},
    {"topic": "unknown"},
    {"opaque": 0},
    {"remark": "a listener raised"},
    {"flag": ONEWAY},
]


@pytest.mark.parametrize("changes", [*USUAL_DECISIONS, *DECISIONS])
async def test_only_usual_decisions_take_the_fast_path(
    broker: Broker, wire: Wire, changes: dict[str, object]
) -> None:
    await enable_fast_path(broker, wire)
    half = await ask(broker, half_header(USUAL[0], "ID"), b"body")
    assert half is not None
    assert (fast_end(broker, half, **changes) is not None) == (changes in USUAL_DECISIONS)
    # A second one in the same loop turn, before the first is written.
    assert fast_end(broker, half) is None or changes not in USUAL_DECISIONS


def fast_end(broker: Broker, half: Command, **changes: object) -> bytes | None:
    head = orjson.dumps(end_header(half, "ID", **changes))
    return FastTransactions(broker.state).end(None, head, b"")  # type: ignore[arg-type]


async def test_a_decision_about_a_deleted_topic_is_left_to_the_plain_path(
    broker: Broker, wire: Wire
) -> None:
    await enable_fast_path(broker, wire)
    half = await ask(broker, half_header(USUAL[0], "ID"), b"body")
    assert half is not None
    broker.state.topics.remove("T")
    assert fast_end(broker, half) is None


async def test_with_sync_flush_decisions_are_left_to_the_plain_path(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store={"flush_disk_type": SYNC_FLUSH})
        wire = await stage.connect(broker)
        await enable_fast_path(broker, wire)
        half = await ask(broker, half_header(USUAL[0], "ID"), b"body")
        assert half is not None
        assert fast_end(broker, half) is None


async def test_one_way_commits_of_one_chunk_are_all_written(broker: Broker, wire: Wire) -> None:
    await enable_fast_path(broker, wire)
    halves = [
        (unique_id, await ask(broker, half_header(USUAL[0], unique_id), b"body"))
        for unique_id in itertools.islice(ids(), 20)
    ]
    assert len(broker.state.transactions.recent) == 20
    fast = FastTransactions(broker.state)
    for unique_id, half in halves:
        assert half is not None
        head = end_header(half, unique_id, flag=ONEWAY)
        answer = fast.end(None, orjson.dumps(head), b"")  # type: ignore[arg-type]
        assert answer == b""
    # Put off until the answers of the turn have left.
    assert len(broker.state.transactions.open) == 20
    broker.state.storage.finish_turn()
    assert not len(broker.state.transactions.open)
    assert len([one for one in await all_records(wire, "T", 2) if one.body == b"body"]) == 20
    closed = await all_records(wire, OP_HALF_TOPIC, 0)
    assert [one.body for one in closed] == [b"%d" % offset for offset in range(20)]
    assert broker.state.transactions.progress() == (20, 20)


async def commit_together(broker: Broker, halves: list[tuple[str, Command]]) -> None:
    """One-way commits of a loop turn, up to what is done after its answers."""
    fast = FastTransactions(broker.state)
    for unique_id, half in halves:
        head = end_header(half, unique_id, flag=ONEWAY)
        answer = fast.end(None, orjson.dumps(head), b"")  # type: ignore[arg-type]
        assert answer == b""
    broker.state.storage.finish_turn()


async def some_halves(broker: Broker, mark: str) -> list[tuple[str, Command]]:
    found: list[tuple[str, Command]] = []
    for number in range(20):
        half = await ask(broker, half_header(USUAL[0], f"{mark}{number:02}"), b"body")
        assert half is not None
        found.append((f"{mark}{number:02}", half))
    return found


@pytest.mark.parametrize("room", [100, 3_000, None])
async def test_commits_lost_with_a_full_buffer_leave_their_transactions_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int | None
) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        await enable_fast_path(broker, wire)
        transactions, storage = broker.state.transactions, broker.state.storage
        await commit_together(broker, await some_halves(broker, "A"))
        first = [one for one in await all_records(wire, "T", 2) if one.body == b"body"]
        halves = await some_halves(broker, "B")
        # Without a number the buffer is full with the op records, which come last.
        full = sum(one.size for one in first) - 1 if room is None else room
        with monkeypatch.context() as patched:
            patched.setattr(appending, "MAX_STAGED_BYTES", full)
            free, files.disk.free_bytes = files.disk.free_bytes, 0
            await commit_together(broker, halves)
        assert [entry.decision for entry in transactions.open] == [0] * 20
        files.disk.free_bytes = free
        assert await storage.unblock()
        await commit_together(broker, halves)
        assert not len(transactions.open)
        stored = [one for one in await all_records(wire, "T", 2) if one.body == b"body"]
        assert len(stored) == 40
        assert transactions.progress()[0] == storage.max_offset(HALF_TOPIC, 0)


async def test_commits_whose_op_records_are_refused_are_closed_in_the_next_round(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enable_fast_path(broker, wire)
    transactions, storage = broker.state.transactions, broker.state.storage
    await commit_together(broker, await some_halves(broker, "A"))
    halves = await some_halves(broker, "B")

    def refuse(topic: str, queue_id: int, rows: RecordRows) -> int:
        raise StoreError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "append_rows", refuse)
        await commit_together(broker, halves)
    assert len([one for one in await all_records(wire, "T", 2) if one.body == b"body"]) == 40
    assert not len(transactions.open)
    assert transactions.progress()[0] == 20
    transactions.close_unnamed()
    storage.finish_turn()
    assert transactions.progress() == (40, 40)
    closed = await all_records(wire, OP_HALF_TOPIC, 0)
    assert [one.body for one in closed] == [b"%d" % offset for offset in range(40)]


async def test_many_one_way_decisions_are_not_put_off_without_end(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "MAX_PUT_OFF", 4)
    await enable_fast_path(broker, wire)
    new_ids = [*itertools.islice(ids(), 5)]
    halves = [await ask(broker, half_header(USUAL[0], one), b"body") for one in new_ids]
    fast, decided = FastTransactions(broker.state), []
    for unique_id, half in zip(new_ids, halves, strict=True):
        assert half is not None
        head = end_header(half, unique_id, flag=ONEWAY)
        fast.end(None, orjson.dumps(head), b"")  # type: ignore[arg-type]
        decided.append([entry.decision for entry in broker.state.transactions.open])
    assert decided[:3] == [[0] * 5] * 3
    assert decided[3:] == [[8, 8, 8, 8, 0]] * 2
    broker.state.storage.finish_turn()
    assert not len(broker.state.transactions.open)


@pytest.mark.parametrize(("first", "second"), [("8", "12"), ("12", "8"), ("8", "8")])
@pytest.mark.parametrize("way", [on_fast_path, on_plain_path])
async def test_a_decision_that_was_put_off_comes_before_the_next_one(
    broker: Broker, wire: Wire, first: str, second: str, way: Way
) -> None:
    await enable_fast_path(broker, wire)
    half = await ask(broker, half_header(USUAL[0], "ID"), b"body")
    assert half is not None
    assert fast_end(broker, half, commitOrRollback=first, flag=ONEWAY) == b""
    answer = await ask(broker, way(end_header(half, "ID", commitOrRollback=second)), b"")
    assert answer is not None
    assert answer.code == (0 if first == second else 604)
    visible = [one for one in await all_records(wire, "T", 2) if one.body == b"body"]
    assert len(visible) == (first == "8")


async def test_of_two_one_way_decisions_of_a_turn_the_first_counts(
    broker: Broker, wire: Wire
) -> None:
    await enable_fast_path(broker, wire)
    half = await ask(broker, half_header(USUAL[0], "ID"), b"body")
    assert half is not None
    for decision in ("12", "8", "12"):
        assert fast_end(broker, half, commitOrRollback=decision, flag=ONEWAY) == b""
    broker.state.storage.finish_turn()
    assert not len(broker.state.transactions.open)
    assert [one for one in await all_records(wire, "T", 2) if one.body == b"body"] == []
    assert len(await all_records(wire, OP_HALF_TOPIC, 0)) == 1


async def test_a_commit_that_was_put_off_is_not_lost_when_the_broker_stops(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await enable_fast_path(broker, wire)
        half = await ask(broker, half_header(USUAL[0], "ID"), b"body")
        assert half is not None
        assert fast_end(broker, half, flag=ONEWAY) == b""
        await broker.stop()
        assert broker.state.transactions.remembered(int((half.ext or {})["queueOffset"])) == 8


async def test_a_decision_that_was_put_off_and_is_refused_leaves_the_transaction_open(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enable_fast_path(broker, wire)
    half = await ask(broker, half_header(USUAL[0], "ID"), b"body")
    assert half is not None
    assert fast_end(broker, half, flag=ONEWAY) == b""

    def refuse(draft: DraftFields) -> Appended:
        raise StoreError("no room")

    storage = broker.state.storage
    with monkeypatch.context() as patched:
        patched.setattr(storage, "append", refuse)
        storage.finish_turn()
    [entry] = broker.state.transactions.open
    assert not entry.decision
    answer = await ask(broker, end_header(half, "ID"), b"")
    assert answer is not None
    assert answer.code == 0
    assert not len(broker.state.transactions.open)


async def test_a_decision_that_is_refused_takes_none_with_it(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enable_fast_path(broker, wire)
    names = ("refused", "decided")
    for half in [await ask(broker, half_header(USUAL[0], one), b"body") for one in names]:
        assert half is not None
        assert fast_end(broker, half, flag=ONEWAY) == b""
    storage = broker.state.storage
    append, asked = storage.append, itertools.count()

    def refuse_first(draft: DraftFields) -> Appended:
        if not next(asked):
            raise StoreError("no room")
        return append(draft)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "append", refuse_first)
        storage.finish_turn()
    assert [entry.key.unique_id for entry in broker.state.transactions.open] == ["refused"]


async def test_a_half_that_is_sent_twice_is_one_open_transaction(
    broker: Broker, wire: Wire
) -> None:
    await enable_fast_path(broker, wire)
    open_by_topic = broker.state.transactions.counters.open_by_topic
    before = open_by_topic().get("T", 0)
    await ask(broker, half_header(USUAL[0], "ID"), b"body")
    half = await ask(broker, half_header(USUAL[0], "ID"), b"body")
    assert half is not None
    assert open_by_topic()["T"] == before + 1
    answer = await ask(broker, end_header(half, "ID"), b"")
    assert answer is not None
    assert answer.code == 0
    assert open_by_topic()["T"] == before
    assert len([one for one in await all_records(wire, "T", 2) if one.body == b"body"]) == 1


async def test_a_round_of_checks_sees_decisions_that_were_put_off(
    broker: Broker, wire: Wire
) -> None:
    await enable_fast_path(broker, wire)
    half = await ask(broker, half_header(USUAL[0], "ID"), b"body")
    assert half is not None
    assert fast_end(broker, half, flag=ONEWAY) == b""
    [entry] = broker.state.transactions.open
    broker.state.topics.remove("T")  # The decision came before.
    state = broker.state
    rounds = CheckRounds(
        *(state.transactions, state.storage, state.clock, state.settings, state.clients),
        *(state.topics, state.store_host, lambda peer, topic: True),
    )
    rounds._step([entry], state.clock.time_ms())
    state.storage.write()
    assert not len(state.transactions.open)
    assert state.transactions.remembered(int((half.ext or {})["queueOffset"])) == 8


@pytest.mark.parametrize("text", USUAL)
async def test_usual_halves_take_the_fast_path(broker: Broker, text: str) -> None:
    half = FastTransactions(broker.state).prepare(f"UNIQ_KEY\x01U\x02{text}", "T", 2)
    assert half is not None
    assert half.key == TransactionKey("shop", "T", "U")


@pytest.mark.parametrize("text", UNUSUAL)
async def test_unusual_halves_are_left_to_the_plain_path(broker: Broker, text: str) -> None:
    fast = FastTransactions(broker.state)
    assert fast.prepare(f"UNIQ_KEY\x01U\x02{text}", "T", 2) is None
    assert fast.prepare(USUAL[0], "T", 2) is None  # Without an id.


async def test_refused_transactions_are_left_to_the_plain_path(broker: Broker) -> None:
    fast = FastTransactions(broker.state)
    text = f"UNIQ_KEY\x01U\x02{USUAL[0]}"
    assert fast.prepare(text, "T", 2) is not None
    broker.state.settings.change({"rejectTransactionMessage": "true"})
    assert fast.prepare(text, "T", 2) is None


def test_recent_halves_are_bounded_by_their_bytes() -> None:
    recent = RecentHalves(max_bytes=10_000)
    key = TransactionKey("g", "T", "U")
    for number in range(100):
        final: DraftFields = ("T", 0, bytes(976), b"", 0, 8, 0, bytes(8), bytes(8), 0, 0, b"")
        recent.remember(OpenTransaction(key, [number], 1000 + number, 0), final)
    assert list(recent) == ["1095", "1096", "1097", "1098", "1099"][5 - len(recent) :]
    assert len(recent) == 5


async def test_a_decision_that_cannot_be_written_leaves_the_transaction_open(
    tmp_path: Path,
) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        await enable_fast_path(broker, wire)
        half = await ask(broker, half_header(USUAL[0], "ID"), b"body")
        assert half is not None
        room, files.disk.free_bytes = files.disk.free_bytes, 0
        # The write that finds the disk full comes after the answer was encoded; it is not sent.
        assert await ask(broker, end_header(half, "ID"), b"") is None
        assert await ask(broker, half_header(USUAL[0], "ID-2"), b"body") is not None
        [entry] = broker.state.transactions.open
        assert entry.key.unique_id == "ID"
        assert not entry.decision
        files.disk.free_bytes = room
        assert await broker.state.storage.unblock()
        answer = await ask(broker, end_header(half, "ID"), b"")
        assert answer is not None
        assert answer.code == 0
        [committed] = [one for one in await all_records(wire, "T", 2) if one.body == b"body"]
        assert committed.prepared_transaction_offset == log_position(half)
        assert not len(broker.state.transactions.open)


@pytest.mark.parametrize("is_fast", [False, True])
@pytest.mark.parametrize("is_written_in_parts", [False, True])
async def test_a_commit_that_is_in_the_log_is_not_asked_about_again(
    broker: Broker, wire: Wire, is_fast: bool, is_written_in_parts: bool
) -> None:
    """What fails is another part of the same loop turn."""
    await enable_fast_path(broker, wire)
    half = await ask(broker, half_header(USUAL[0], "ID"), b"body")
    assert half is not None
    transactions, storage = broker.state.transactions, broker.state.storage
    entry, queue_offset, final = transactions.recent[str(log_position(half))]
    if is_fast:
        transactions.turn.decide(entry, 8, final)
    else:
        transactions.decide(entry, 8, Draft(*final), waits_for_disk=False)
    if is_written_in_parts:
        storage.store.write()

    def refuse() -> None:
        raise StoreError("no room for an acknowledgement")

    storage.before_write(refuse)
    with pytest.raises(StoreError, match="no room"):
        storage.write()
    assert len([one for one in await all_records(wire, "T", 2) if one.body == b"body"]) == 1
    assert not len(transactions.open)
    assert transactions.remembered(int(queue_offset)) == 8
    transactions.close_unnamed()
    assert transactions.progress()[0] == storage.max_offset(HALF_TOPIC, 0)


@pytest.mark.parametrize("way", [on_fast_path, on_plain_path])
async def test_a_commit_lost_with_the_write_of_its_op_record_leaves_the_transaction_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    files = FaultyFiles(SimulatedDisk())
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(files=files)
        wire = await stage.connect(broker)
        await enable_fast_path(broker, wire)
        half = await ask(broker, half_header(USUAL[0], "ID"), b"body")
        assert half is not None
        # The buffer is full after the first record, so the second one writes it.
        monkeypatch.setattr(appending, "MAX_STAGED_BYTES", 100)
        room, files.disk.free_bytes = files.disk.free_bytes, 0
        await ask(broker, way(end_header(half, "ID")), b"")
        assert [entry.decision for entry in broker.state.transactions.open] == [0]
        files.disk.free_bytes = room
        assert await broker.state.storage.unblock()
        answer = await ask(broker, way(end_header(half, "ID")), b"")
        assert answer is not None
        assert answer.code == 0
        assert len([one for one in await all_records(wire, "T", 2) if one.body == b"body"]) == 1
        assert not len(broker.state.transactions.open)
