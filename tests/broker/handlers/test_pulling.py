"""Pulls that are answered at once: statuses, filters, limits, refusals."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tests.support.asking import (
    bodies,
    committed,
    ext,
    log_position,
    put_group,
    put_topic,
    records,
)
from tests.support.stage import Stage
from tests.support.wire import Wire, json_body

from penstock.broker import Broker
from penstock.protocol.bodies.common import MessageModel
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.bodies.offsets import ConsumerOffsetTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.extensions import PULL_BYTES, PULL_COUNT
from penstock.protocol.filters.tags import tag_code
from penstock.protocol.headers.admin import UpdateTopic
from penstock.protocol.headers.clients import ResetOffset
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.pull import PullFlag, PullMessage
from penstock.protocol.records.batches import BatchItem, encode_batch

FOUND = ResponseCode.SUCCESS
NOT_FOUND = ResponseCode.PULL_NOT_FOUND
RETRY = ResponseCode.PULL_RETRY_IMMEDIATELY
MOVED = ResponseCode.PULL_OFFSET_MOVED


async def fill(wire: Wire, topic: str, count: int, *, queue_id: int = 0, size: int = 1) -> None:
    """Send messages whose bodies start with their number."""
    for start in range(0, count, 100):
        items = [
            BatchItem(str(number).encode().ljust(size, b"."), b"", 0)
            for number in range(start, min(start + 100, count))
        ]
        body = encode_batch(items)
        code = RequestCode.SEND_BATCH_MESSAGE
        answer = await wire.send(topic, body, code=code, batch=True, queue_id=queue_id)
        assert answer.code == FOUND, answer.remark


def window(answer: Command) -> tuple[int, int, int]:
    """Where the next pull starts, and where the queue starts and ends."""
    fields = ext(answer)
    return int(fields["nextBeginOffset"]), int(fields["minOffset"]), int(fields["maxOffset"])


async def old_store(stage: Stage, wire: Wire, broker: Broker) -> int:
    """Have the first segments of the log deleted; returns the queue's new beginning."""
    for _ in range(30):
        await wire.send("old", bytes(100_000))
    store = broker.state.storage.store
    # A segment may go only when the entries of its messages are on the disk.
    store.flush(thorough=True)
    store.request_clean()
    assert store.clean(stage.clock.time_ms() + 3_600_000)
    first = store.min_offset("old", 0)
    assert 0 < first < 30
    return first


# Statuses


@pytest.mark.spec("S54", "S62", "S63")
async def test_a_pull_returns_one_queues_messages_in_order(wire: Wire) -> None:
    for number in range(10):
        await wire.send("T", f"a{number}".encode(), queue_id=1)
        await wire.send("T", f"b{number}".encode(), queue_id=2)
        await wire.send("U", f"c{number}".encode(), queue_id=1)
    answer = await wire.pull("g", "T", 3, queue_id=1)
    assert answer.code == FOUND
    assert answer.remark == "FOUND"
    assert bodies(answer) == [f"a{number}".encode() for number in range(3, 10)]
    assert [r.queue_offset for r in records(answer)] == list(range(3, 10))
    assert window(answer) == (10, 0, 10)
    assert ext(answer)["suggestWhichBrokerId"] == "0"


@pytest.mark.spec("S57", "S61", "S51")
async def test_an_empty_queue_has_nothing_at_0_and_is_moved_to_0_from_elsewhere(
    wire: Wire,
) -> None:
    await put_topic(wire, "T", 4)
    await wire.send("T", queue_id=1)
    for queue_id in (0, 3):
        answer = await wire.pull("g", "T", 0, queue_id=queue_id)
        assert (answer.code, window(answer)) == (NOT_FOUND, (0, 0, 0))
        answer = await wire.pull("g", "T", 5, queue_id=queue_id)
        assert (answer.code, window(answer)) == (MOVED, (0, 0, 0))
        # Whether the store has made files for the queue yet is not the client's business.
        assert answer.remark == "NO_MESSAGE_IN_QUEUE"


@pytest.mark.spec("S58", "S51", "S63")
async def test_an_offset_before_the_first_message_is_moved_to_it(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store={"file_reserved_hours": 0})
        wire = await stage.connect(broker)
        first = await old_store(stage, wire, broker)
        answer = await wire.pull("g", "old", 0)
        assert (answer.code, answer.remark) == (MOVED, "OFFSET_TOO_SMALL")
        assert window(answer) == (first, first, 30)
        answer = await wire.pull("g", "old", first)
        assert answer.code == FOUND


@pytest.mark.spec("S59", "S63")
async def test_the_end_of_a_queue_has_nothing_yet(wire: Wire) -> None:
    await fill(wire, "T", 3)
    answer = await wire.pull("g", "T", 3)
    assert (answer.code, answer.remark) == (NOT_FOUND, "OFFSET_OVERFLOW_ONE")
    assert window(answer) == (3, 0, 3)


@pytest.mark.spec("S60", "S51", "S63")
@pytest.mark.parametrize(("profile", "expected"), [("current", 3), ("documents", 0)])
async def test_an_offset_far_beyond_the_end_is_moved(
    tmp_path: Path, profile: str, expected: int
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store={"overflow_returns_to_min": profile == "documents"})
        wire = await stage.connect(broker)
        await fill(wire, "T", 3)
        answer = await wire.pull("g", "T", 17)
        assert (answer.code, answer.remark) == (MOVED, "OFFSET_OVERFLOW_BADLY")
        assert window(answer) == (expected, 0, 3)


@pytest.mark.spec("S60")
async def test_in_both_profiles_a_queue_that_lost_its_start_sends_to_the_end(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(
            store={"file_reserved_hours": 0, "overflow_returns_to_min": True}
        )
        wire = await stage.connect(broker)
        first = await old_store(stage, wire, broker)
        answer = await wire.pull("g", "old", 99)
        assert (answer.code, window(answer)) == (MOVED, (30, first, 30))


@pytest.mark.spec("S56")
@pytest.mark.parametrize("checks", [False, True])
async def test_a_slave_corrects_offsets_only_if_configured(tmp_path: Path, checks: bool) -> None:
    async with Stage(tmp_path) as stage:
        master = await stage.broker(store={"file_reserved_hours": 0})
        wire = await stage.connect(master)
        first = await old_store(stage, wire, master)
        await master.stop()
        slave = await stage.broker(
            broker_role="SLAVE", broker_id=1, store={"offset_check_in_slave": checks}
        )
        wire = await stage.connect(slave)
        for asked, corrected in ((0, first), (99, 30)):
            answer = await wire.pull("g", "old", asked)
            if checks:
                assert (answer.code, window(answer)) == (MOVED, (corrected, first, 30))
            else:
                assert (answer.code, window(answer)) == (RETRY, (asked, first, 30))
        assert (await wire.pull("g", "old", first)).code == FOUND


@pytest.mark.spec("S53")
async def test_a_queue_is_20_bytes_a_message_in_a_directory_of_its_own(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker()
        wire = await stage.connect(broker)
        sent = [
            await wire.send("T", queue_id=2, properties={"TAGS": tag}) for tag in ("A", "B", "ü")
        ]
        sizes = [r.size for r in records(await wire.pull("g", "T", 0, queue_id=2))]
        await broker.stop()
    [file] = (tmp_path / "broker-a/consumequeue/T/2").iterdir()
    assert file.name == "0" * 20
    units = list(struct.iter_unpack(">qiq", file.read_bytes()[:60]))
    assert units == [
        (log_position(answer), size, tag_code(tag))
        for answer, size, tag in zip(sent, sizes, ("A", "B", "ü"), strict=True)
    ]


# Filters


@pytest.mark.spec("S55")
async def test_a_tag_filter_lets_equal_hashes_through_and_nothing_else(wire: Wire) -> None:
    for tag in ("Aa", "C", "BB", "D"):
        await wire.send("T", tag.encode(), properties={"TAGS": tag})
    await wire.send("T", b"none")
    # "Aa" and "BB" have the same Java hash; the consumer compares the text again.
    assert tag_code("Aa") == tag_code("BB")
    assert bodies(await wire.pull("g", "T", 0, expression="Aa")) == [b"Aa", b"BB"]
    assert bodies(await wire.pull("g", "T", 0, expression=" C || D ")) == [b"C", b"D"]
    assert len(bodies(await wire.pull("g", "T", 0, expression=""))) == 5
    answer = await wire.pull("g", "T", 0, expression="Aa")
    assert window(answer) == (5, 0, 5)


@pytest.mark.spec("S63")
async def test_what_the_filter_drops_is_passed_and_not_asked_for_again(wire: Wire) -> None:
    for _ in range(3):
        await wire.send("T", properties={"TAGS": "other"})
    answer = await wire.pull("g", "T", 1, expression="mine")
    assert (answer.code, answer.remark) == (RETRY, "NO_MATCHED_MESSAGE")
    assert window(answer) == (3, 0, 3)


async def test_a_long_stretch_of_other_messages_is_passed_in_steps(wire: Wire) -> None:
    await fill(wire, "T", 700)
    await wire.send("T", b"mine", properties={"TAGS": "mine"})
    offset, steps = 0, 0
    while (answer := await wire.pull("g", "T", offset, expression="mine")).code == RETRY:
        assert window(answer)[0] > offset
        offset, steps = window(answer)[0], steps + 1
    assert steps > 0
    assert bodies(answer) == [b"mine"]


async def test_sql92_looks_at_the_properties(wire: Wire) -> None:
    for number in range(6):
        await wire.send("T", str(number).encode(), properties={"n": str(number), "TAGS": "x"})
    answer = await wire.pull(
        "g", "T", 0, expression="n BETWEEN 2 AND 3 OR n = '5'", expression_type="SQL92"
    )
    assert bodies(answer) == [b"2", b"3", b"5"]
    assert window(answer) == (6, 0, 6)


async def test_a_long_sql92_filter_passes_other_messages_in_steps(wire: Wire) -> None:
    await fill(wire, "T", 30)
    await wire.send("T", b"mine", properties={"n": "-1"})
    expression = " OR ".join([f"n = {number}" for number in range(100, 2000)] + ["n = -1"])
    offset, steps = 0, 0
    while (
        answer := await wire.pull("g", "T", offset, expression=expression, expression_type="SQL92")
    ).code == RETRY:
        assert window(answer)[0] > offset
        offset, steps = window(answer)[0], steps + 1
    # A pull must not block the loop while a filter takes a few milliseconds per message.
    assert steps > 1
    assert bodies(answer) == [b"mine"]


async def test_sql92_that_does_not_compile_delivers_everything(wire: Wire) -> None:
    # As in RocketMQ; CHECK_CLIENT_CONFIG reports the error when a consumer starts.
    await fill(wire, "T", 2)
    answer = await wire.pull("g", "T", 0, expression="n >", expression_type="SQL92")
    assert len(bodies(answer)) == 2


async def test_sql92_of_a_heartbeat_that_does_not_compile_is_refused(wire: Wire) -> None:
    await fill(wire, "T", 2)
    for expression, code in (("n >", ResponseCode.FILTER_DATA_NOT_EXIST), ("n IS NULL", FOUND)):
        group = f"g{code}"
        await wire.heartbeat("c", consumer=group, topics={"T": expression}, expression_type="SQL92")
        # The type in the pull is ignored: the subscription is that of the heartbeat.
        for expression_type in ("SQL92", "TAG"):
            answer = await wire.pull(
                group, "T", 0, expression=None, expression_type=expression_type
            )
            assert answer.code == code
    refused = await wire.pull("g27", "T", 0, expression=None)
    assert ext(refused) == {}
    assert "filter data is not exist" in (refused.remark or "")


async def test_sql92_without_a_text_is_refused(wire: Wire) -> None:
    await fill(wire, "T", 2)
    answer = await wire.pull("g", "T", 0, expression="", expression_type="SQL92")
    assert (answer.code, ext(answer)) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, {})


@pytest.mark.spec("S63")
async def test_the_flags_of_topic_and_group_come_with_every_answer(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await put_topic(wire, "T", 1)
        await put_group(wire, SubscriptionGroupConfig("g", group_sys_flag=5))
        header = UpdateTopic("U", "TBW102", 1, 1, 6, "SINGLE_TAG", False, 2)
        await wire.ok(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        await wire.send("U", properties={"TAGS": "other"})
        answers = [
            await wire.pull("g", "U", 0),
            await wire.pull("g", "U", 0, expression="mine"),
            await wire.pull("g", "U", 1),
            await wire.pull("g", "U", 9),
        ]
        await wire.ok(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffset("U", "g", 0, is_force=True)
        )
        answers.append(await wire.pull("g", "U", 1))
        assert [a.code for a in answers] == [FOUND, RETRY, NOT_FOUND, MOVED, MOVED]
        assert {(ext(a)["topicSysFlag"], ext(a)["groupSysFlag"]) for a in answers} == {("2", "5")}
        plain = ext(await wire.pull("h", "T", 0))
        assert (plain["topicSysFlag"], plain["groupSysFlag"]) == ("0", "0")


async def test_the_last_pull_counts_for_the_lag_even_without_messages(wire: Wire) -> None:
    for _ in range(3):
        await wire.send("T", properties={"TAGS": "other"})

    async def pulled() -> int:
        answer = await wire.ok(RequestCode.GET_ALL_CONSUMER_OFFSET)
        table = json_body(ConsumerOffsetTable, answer).pull_offset_table or {}
        return table["T@g"][0]

    await wire.pull("g", "T", 1, count=1)
    assert await pulled() == 2
    assert (await wire.pull("g", "T", 0, expression="mine")).code == RETRY
    assert await pulled() == 3
    assert (await wire.pull("g", "T", 99)).code == MOVED
    assert await pulled() == 3


async def test_a_tag_expression_without_meaning_is_refused(wire: Wire) -> None:
    await fill(wire, "T", 2)
    answer = await wire.pull("g", "T", 0, expression="||")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert ext(answer) == {}


async def test_sql92_is_refused_where_it_is_switched_off(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(enable_property_filter=False))
        await fill(wire, "T", 2)
        answer = await wire.pull("g", "T", 0, expression="n = 1", expression_type="SQL92")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "SQL92" in (answer.remark or "")


async def test_without_an_expression_the_heartbeats_subscription_counts(wire: Wire) -> None:
    for tag in ("A", "B", "A"):
        await wire.send("T", tag.encode(), properties={"TAGS": tag})
    await wire.heartbeat("c1", consumer="g", topics={"T": "A"})
    assert bodies(await wire.pull("g", "T", 0, expression=None)) == [b"A", b"A"]
    await wire.heartbeat("c1", consumer="g", topics={"T": "B"}, version=2)
    assert bodies(await wire.pull("g", "T", 0, expression=None)) == [b"B"]
    # An older version of the subscription changes nothing.
    await wire.heartbeat("c1", consumer="g", topics={"T": "A"}, version=1)
    assert bodies(await wire.pull("g", "T", 0, expression=None)) == [b"B"]


async def test_a_newer_subscription_version_in_the_pull_is_accepted(wire: Wire) -> None:
    await fill(wire, "T", 1)
    await wire.heartbeat("c1", consumer="g", topics=["T"], version=5)
    header = PullMessage("g", "T", 0, 0, 32, 0, 0, 0, sub_version=9)
    assert (await wire.request(RequestCode.PULL_MESSAGE, header)).code == FOUND


# Limits


async def test_a_pull_has_at_most_32_messages_and_256_kib(wire: Wire) -> None:
    await fill(wire, "many", 100)
    assert len(bodies(await wire.pull("g", "many", 0, count=1000))) == 32
    assert len(bodies(await wire.pull("g", "many", 0, count=7))) == 7
    await fill(wire, "big", 20, size=50_000)
    body = (await wire.pull("g", "big", 0)).body
    assert 150_000 < len(body) <= 262_144


async def test_the_first_message_is_returned_regardless_of_its_size(wire: Wire) -> None:
    await wire.send("T", bytes(600_000))
    await wire.send("T", bytes(600_000))
    assert [len(body) for body in bodies(await wire.pull("g", "T", 0))] == [600_000]


async def test_old_messages_come_in_smaller_portions_and_suggest_the_slave(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(slave_read_enable=True, store={"memory_bytes": 100_000})
        wire = await stage.connect(broker)
        await fill(wire, "T", 100)
        await fill(wire, "other", 10, size=50_000)
        answer = await wire.pull("g", "T", 0)
        assert len(bodies(answer)) == 8
        assert ext(answer)["suggestWhichBrokerId"] == "1"


async def test_our_own_client_may_ask_for_more_at_once(wire: Wire, broker: Broker) -> None:
    await fill(wire, "T", 300, size=3000)
    header = PullMessage("g", "T", 0, 0, 10_000, PullFlag.SUBSCRIPTION, 0, 0, 0, "*")
    fields = {**encode_header(header), PULL_BYTES: "600000"}
    answer = await wire.request(RequestCode.PULL_MESSAGE, fields)
    assert 32 < len(bodies(answer)) < 300
    assert len(answer.body) <= 600_000
    for plenty in (str(1 << 40), "9" * 400):
        fields[PULL_BYTES] = plenty
        answer = await wire.request(RequestCode.PULL_MESSAGE, fields)
        assert 600_000 < len(answer.body) <= broker.state.config.max_pull_bytes
    for nonsense in ("-5", "many", "0"):
        fields[PULL_BYTES] = nonsense
        assert len(bodies(await wire.request(RequestCode.PULL_MESSAGE, fields))) == 1


async def test_our_own_client_says_apart_how_many_it_takes(wire: Wire) -> None:
    await fill(wire, "T", 300)
    header = PullMessage("g", "T", 0, 0, 32, PullFlag.SUBSCRIPTION, 0, 0, 0, "*")
    fields = {**encode_header(header), PULL_BYTES: "600000"}
    for count, brought in (("200", 200), ("9" * 400, 300), ("0", 1), ("many", 1)):
        fields[PULL_COUNT] = count
        assert len(bodies(await wire.request(RequestCode.PULL_MESSAGE, fields))) == brought
    # Alone it means nothing.
    del fields[PULL_BYTES]
    fields[PULL_COUNT] = "200"
    assert len(bodies(await wire.request(RequestCode.PULL_MESSAGE, fields))) == 32


# Committing on the way


async def test_a_pull_may_carry_a_commit(wire: Wire) -> None:
    await fill(wire, "T", 5)
    await wire.pull("g", "T", 3, commit=2)
    assert await committed(wire, "g", "T") == 2


async def test_minus_one_is_no_offset(wire: Wire) -> None:
    await put_topic(wire, "T")
    # Go and C++ say so with every pull until they have something to commit.
    await wire.pull("g", "T", 0, commit=-1)
    assert await committed(wire, "g", "T") is None


# Refusals


async def test_refusals_come_in_rocketmqs_order(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(auto_create_subscription_group=False)
        wire = await stage.connect(broker)
        answer = await wire.pull("g", "T", 0)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        await put_group(wire, SubscriptionGroupConfig("g", consume_enable=False))
        answer = await wire.pull("g", "T", 0)
        assert (answer.code, ext(answer)) == (16, {"forbiddenType": "2"})
        await put_group(wire, SubscriptionGroupConfig("g"))
        assert (await wire.pull("g", "T", 0)).code == ResponseCode.TOPIC_NOT_EXIST
        await put_topic(wire, "T", 2, perm=2)
        answer = await wire.pull("g", "T", 0)
        assert (answer.code, ext(answer)) == (16, {"forbiddenType": "3"})
        await put_topic(wire, "T", 2)
        for queue_id in (2, -1):
            answer = await wire.pull("g", "T", 0, queue_id=queue_id)
            assert (answer.code, ext(answer)) == (ResponseCode.INVALID_PARAMETER, {})
        answer = await wire.pull("g", "T", 0, expression=None)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await wire.heartbeat("c1", consumer="g", topics=["other"])
        answer = await wire.pull("g", "T", 0, expression=None)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await wire.heartbeat("c1", consumer="g", topics=["T"])
        assert (await wire.pull("g", "T", 0, expression=None)).code == NOT_FOUND


async def test_a_broker_that_may_not_be_read_answers_no_pull(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(broker_permission=2))
        await wire.send("T")
        answer = await wire.pull("g", "T", 0)
        assert (answer.code, ext(answer)) == (16, {"forbiddenType": "1"})


async def test_a_group_may_be_kept_from_broadcasting(wire: Wire) -> None:
    await fill(wire, "T", 1)
    await put_group(wire, SubscriptionGroupConfig("g", consume_broadcast_enable=False))
    await wire.heartbeat("c1", consumer="g", topics=["T"], model=MessageModel.BROADCASTING)
    answer = await wire.pull("g", "T", 0, expression=None)
    assert (answer.code, ext(answer)) == (16, {"forbiddenType": "4"})


@pytest.mark.parametrize("allowed", [True, False])
async def test_lite_pull_can_be_switched_off(tmp_path: Path, allowed: bool) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker(lite_pull_message_enable=allowed))
        await fill(wire, "T", 1)
        answer = await wire.start_pull("g", "T", 0, code=RequestCode.LITE_PULL_MESSAGE)
        assert answer.code == (FOUND if allowed else ResponseCode.NO_PERMISSION)


async def test_a_count_below_one_is_one(wire: Wire) -> None:
    await fill(wire, "T", 3)
    assert len(bodies(await wire.pull("g", "T", 0, count=0))) == 1
    assert len(bodies(await wire.pull("g", "T", 0, count=-7))) == 1


async def test_an_offset_without_the_flag_is_not_committed(wire: Wire) -> None:
    await fill(wire, "T", 5)
    flags = PullFlag.SUBSCRIPTION | PullFlag.SUSPEND
    header = PullMessage("g", "T", 0, 0, 32, flags, 4, 1000, 0, "*", "TAG")
    await wire.ok(RequestCode.PULL_MESSAGE, header)
    # Without a commit a new group begins with the first message.
    assert await committed(wire, "g", "T") == 0
