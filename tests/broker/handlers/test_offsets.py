"""Where groups stand: commits, queries, resets, the file they are kept in."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.asking import commit, committed, ext, max_offset, put_topic
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.broker.tables.offsets import Offsets
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.offsets import ConsumerOffsetTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.offsets import (
    GetEarliestStoreTime,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from penstock.testing.eventually import eventually

OK = ResponseCode.SUCCESS
FILE = "broker-a/config/consumerOffset.json"


def saved(root: Path) -> dict[str, dict[int, int]]:
    return decode_body(ConsumerOffsetTable, (root / FILE).read_bytes()).offset_table


# Committing


@pytest.mark.spec("S91")
async def test_a_smaller_offset_is_taken_with_a_warning(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    await put_topic(wire, "T")
    assert (await commit(wire, "g", "T", 10)).code == OK
    assert (await commit(wire, "g", "T", 5)).code == OK
    # Only clients see to it that offsets grow; tools rewind them this way.
    assert await committed(wire, "g", "T") == 5
    assert "offset moved back group=g topic=T queue=0 from=10 to=5" in caplog.text


async def test_groups_topics_and_queues_stand_apart(wire: Wire) -> None:
    await put_topic(wire, "T", 2)
    await put_topic(wire, "U", 2)
    await commit(wire, "g1", "T", 1, queue_id=0)
    await commit(wire, "g1", "T", 2, queue_id=1)
    await commit(wire, "g2", "T", 3, queue_id=0)
    await commit(wire, "g1", "U", 4, queue_id=0)
    assert await committed(wire, "g1", "T", queue_id=0) == 1
    assert await committed(wire, "g1", "T", queue_id=1) == 2
    assert await committed(wire, "g2", "T", queue_id=0) == 3
    assert await committed(wire, "g1", "U", queue_id=0) == 4
    assert await committed(wire, "g2", "U", queue_id=0) is None


async def test_a_commit_may_be_one_way(wire: Wire) -> None:
    await put_topic(wire, "T")
    wire.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("g", "T", 0, 7))
    assert await committed(wire, "g", "T") == 7


async def test_node_commits_minus_one_for_nothing(wire: Wire) -> None:
    await put_topic(wire, "T")
    assert (await commit(wire, "g", "T", -1)).code == OK
    assert await committed(wire, "g", "T") is None
    await commit(wire, "g", "T", 4)
    await commit(wire, "g", "T", -1)
    assert await committed(wire, "g", "T") == 4


async def test_a_commit_for_what_is_not_there_is_refused(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(auto_create_subscription_group=False))
        answer = await commit(wire, "g", "T", 1)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        assert (await commit(wire, "g", "T", 1)).code == ResponseCode.TOPIC_NOT_EXIST
        await put_topic(wire, "T", 2)
        for queue_id in (2, -1):
            answer = await commit(wire, "g", "T", 1, queue_id=queue_id)
            assert answer.code == ResponseCode.INVALID_PARAMETER


# Asking


async def test_a_new_group_starts_at_0_while_the_first_message_is_fresh(wire: Wire) -> None:
    await wire.send("T")
    assert await committed(wire, "new", "T") == 0
    ask = QueryConsumerOffset("new", "T", 0, set_zero_if_not_found=False)
    answer = await wire.request(RequestCode.QUERY_CONSUMER_OFFSET, ask)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_an_empty_or_unknown_queue_has_no_offset(wire: Wire) -> None:
    await put_topic(wire, "T", 2)
    assert await committed(wire, "g", "T", queue_id=1) is None
    assert await committed(wire, "g", "nowhere") is None


async def test_a_queue_whose_first_message_is_old_has_no_offset(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(store={"memory_bytes": 10_000}))
        await wire.send("T")
        await wire.send("other", bytes(100_000))
        assert await committed(wire, "g", "T") is None


async def test_ends_of_queues_and_offsets_by_time(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        for _ in range(3):
            await wire.send("T")
        assert await max_offset(wire, "T") == 3
        assert await max_offset(wire, "nowhere") == 0
        answer = await wire.ok(RequestCode.GET_MIN_OFFSET, GetMinOffset("T", 0))
        assert ext(answer)["offset"] == "0"
        first = broker.state.storage.store.store_time_at("T", 0, 0)
        asked = await wire.ok(RequestCode.GET_EARLIEST_MSG_STORETIME, GetEarliestStoreTime("T", 0))
        assert ext(asked)["timestamp"] == str(first)
        asked = await wire.ok(RequestCode.GET_EARLIEST_MSG_STORETIME, GetEarliestStoreTime("U", 0))
        assert ext(asked)["timestamp"] == "-1"
        for when, boundary, expected in (
            (first - 1000, None, "0"),
            (first + 3_600_000, "LOWER", "3"),
            (first + 3_600_000, "upper", "2"),
            (first - 1000, "UPPER", "0"),
        ):
            search = SearchOffset("T", 0, when, boundary)
            answer = await wire.ok(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
            assert ext(answer)["offset"] == expected


# Resets


async def test_while_a_reset_waits_commits_are_taken_and_ignored(
    wire: Wire, broker: Broker
) -> None:
    for _ in range(5):
        await wire.send("T")
    await commit(wire, "g", "T", 5)
    broker.state.offsets.reset("g", "T", 0, 1)
    assert await committed(wire, "g", "T") == 1
    assert (await commit(wire, "g", "T", 4)).code == OK
    assert await committed(wire, "g", "T") == 1
    answer = await wire.pull("g", "T", 5)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert ext(answer)["nextBeginOffset"] == "1"
    assert {"minOffset", "maxOffset", "suggestWhichBrokerId"} <= ext(answer).keys()
    # From here on it goes on as ever.
    await commit(wire, "g", "T", 3)
    assert await committed(wire, "g", "T") == 3
    assert (await wire.pull("g", "T", 1)).code == OK


# The file


@pytest.mark.spec("S90", "S92")
async def test_the_file_is_rocketmqs_and_survives_a_restart(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        for _ in range(8):
            await wire.send("T", queue_id=1)
        await commit(wire, "g", "T", 7, queue_id=1)
        await broker.stop()
        assert saved(tmp_path) == {"T@g": {1: 7}}
        # Bare numbers for queues, as fastjson writes them.
        assert "1:7" in (tmp_path / FILE).read_text()
        wire = await stage.connect(await stage.broker())
        assert await committed(wire, "g", "T", queue_id=1) == 7


@pytest.mark.spec("S93")
@in_virtual_time
async def test_offsets_are_saved_after_10_seconds_and_then_every_5(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        await put_topic(wire, "T")
        await commit(wire, "g", "T", 1)
        await stage.clock.sleep(8)
        assert not (tmp_path / FILE).exists()
        await stage.clock.sleep(2.5)
        assert saved(tmp_path) == {"T@g": {0: 1}}
        for number in range(2, 5):
            await commit(wire, "g", "T", number)
            await stage.clock.sleep(5.5)
            assert saved(tmp_path) == {"T@g": {0: number}}


@pytest.mark.spec("S93")
@in_virtual_time
async def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T")
        await commit(wire, "g", "T", 1)
        await stage.clock.sleep(20)
        before = (tmp_path / FILE).stat().st_mtime_ns
        await commit(wire, "g", "T", 1)
        await stage.clock.sleep(60)
        assert (tmp_path / FILE).stat().st_mtime_ns == before


@pytest.mark.spec("S92")
async def test_a_file_of_4_9_is_read(tmp_path: Path) -> None:
    file = tmp_path / FILE
    file.parent.mkdir(parents=True)
    file.write_text('{\n\t"offsetTable":{"T@g":{0:0,1:5},"%RETRY%g@g":{0:2}\n\t}\n}')
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        assert await committed(wire, "g", "T", queue_id=0) == 0


@pytest.mark.spec("S92")
async def test_a_damaged_file_gives_way_to_its_backup(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        for _ in range(8):
            await wire.send("T")
        await commit(wire, "g", "T", 6)
        await broker.stop()
        file = tmp_path / FILE
        file.rename(file.with_name("consumerOffset.json.bak"))
        file.write_bytes(b"{\x00\x00")
        wire = await stage.connect(await stage.broker())
        assert await committed(wire, "g", "T") == 6


@in_virtual_time
async def test_offsets_beyond_a_shortened_log_are_pulled_back(tmp_path: Path) -> None:
    # Otherwise the group would skip what is sent next.
    file = tmp_path / FILE
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        for _ in range(3):
            await wire.send("T")
        await broker.stop()
        file.write_text('{"offsetTable":{"T@g":{0:50}}}')
        file.with_name(f"{file.name}.sum").unlink(missing_ok=True)
        wire = await stage.connect(await stage.broker())
        assert await committed(wire, "g", "T") == 3
        # Saved without a further commit, so that tools that read the file see it, too.
        await eventually(lambda: saved(tmp_path) == {"T@g": {0: 3}}, 30)


# The table by itself


def test_offsets_that_are_pulled_back_are_to_be_saved() -> None:
    changes: list[None] = []
    offsets = Offsets(now_ms=lambda: 1, changed=lambda: changes.append(None))
    offsets.commit("g", "T", 0, 5, "here")
    changes.clear()
    assert offsets.clamp(lambda topic, queue_id: 5) == []
    assert changes == []
    assert offsets.clamp(lambda topic, queue_id: 4) == ["T@g:0 5->4"]
    assert len(changes) == 1


def test_the_data_version_moves_every_500_commits() -> None:
    offsets = Offsets(now_ms=lambda: 1)
    before = offsets.table().data_version
    for number in range(499):
        offsets.commit("g", "T", 0, number, "here")
    assert offsets.table().data_version == before
    offsets.commit("g", "T", 0, 499, "here")
    assert offsets.table().data_version != before


def test_removing_and_cloning() -> None:
    offsets = Offsets(now_ms=lambda: 1)
    for topic in ("T", "U"):
        for group in ("g", "h"):
            offsets.commit(group, topic, 0, 1, "here")
    offsets.clone("g", "copy", "T")
    assert offsets.committed("copy", "T", 0) == 1
    offsets.remove_topic("T")
    assert offsets.groups_of_topic("T") == []
    offsets.remove_group("g")
    assert sorted(set(offsets.topics_by_group())) == ["h"]
    assert list(offsets.entries()) == [("U", "h", 0, 1)]
    offsets.clone("unknown", "copy", "U")
    assert offsets.of_topic("copy", "U") == {}
