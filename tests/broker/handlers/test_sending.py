"""Sends in all their forms, over a socket."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.support.asking import (
    all_records,
    bodies,
    ext,
    lock,
    log_position,
    max_offset,
    properties,
    put_group,
    put_topic,
    records,
)
from tests.support.paths import VECTORS
from tests.support.stage import Stage
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.model import MessageQueue
from penstock.model.hosts import unpack_host
from penstock.model.names import SCHEDULE_TOPIC
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command, decode_command
from penstock.protocol.frames import BINARY, FrameDecoder
from penstock.protocol.headers.send import SendMessage
from penstock.protocol.records.batches import BatchItem, encode_batch
from penstock.protocol.records.sys_flags import SysFlag
from penstock.testing.eventually import eventually

CPP_BATCH = VECTORS / "send-batch-cpp-1.0.1-rocketmq-0.4.4.bin"
SEND_FORMS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)


async def send_batch(
    wire: Wire, topic: str, items: list[BatchItem], envelope: dict[str, str] | None = None
) -> Command:
    body = encode_batch(items)
    code = RequestCode.SEND_BATCH_MESSAGE
    return await wire.send(topic, body, code=code, batch=True, properties=envelope)


# Forms


@pytest.mark.parametrize("code", SEND_FORMS)
async def test_a_message_is_stored_as_it_was_sent(wire: Wire, broker: Broker, code: int) -> None:
    born = time.time_ns() // 1_000_000 - 5000
    answer = await wire.send(
        "orders",
        b"payload",
        queue_id=2,
        properties={"TAGS": "new", "KEYS": "k1 k2", "UNIQ_KEY": "THE-ID", "color": "red"},
        code=code,
        flag=77,
        sys_flag=SysFlag.COMPRESSED,
        born_timestamp=born,
    )
    assert answer.code == ResponseCode.SUCCESS
    assert ext(answer)["queueId"] == "2"
    assert ext(answer)["queueOffset"] == "0"
    assert ext(answer)["transactionId"] == "THE-ID"
    assert ext(answer)["MSG_REGION"] == "DefaultRegion"
    assert ext(answer)["TRACE_ON"] == "true"
    [record] = records(await wire.pull("g", "orders", 0, queue_id=2))
    assert record.body == b"payload"
    assert (record.flag, record.born_timestamp, record.queue_id) == (77, born, 2)
    assert record.sys_flag & SysFlag.COMPRESSED
    assert unpack_host(record.born_host) == wire.address
    assert unpack_host(record.store_host) == broker.address
    stored = properties(record)
    assert stored["TAGS"] == "new"
    assert stored["KEYS"] == "k1 k2"
    assert stored["color"] == "red"
    assert stored["UNIQ_KEY"] == "THE-ID"
    assert stored["CLUSTER"] == "DefaultCluster"
    assert stored["MSG_REGION"] == "DefaultRegion"
    assert stored["TRACE_ON"] == "true"
    assert log_position(answer) == record.log_position


async def test_the_binary_header_is_answered_in_kind(wire: Wire) -> None:
    header = SendMessage("p", "T", "TBW102", 4, 0, 0, 1, 0, "")
    answer = await wire.request(RequestCode.SEND_MESSAGE_V2, header, b"x", serializer=BINARY)
    assert answer.code == ResponseCode.SUCCESS
    assert answer.serializer == BINARY
    assert ext(answer)["queueOffset"] == "0"


async def test_a_message_without_a_unique_id_gets_one(wire: Wire) -> None:
    answer = await wire.send("T")
    [record] = records(await wire.pull("g", "T", 0))
    given = properties(record)["UNIQ_KEY"]
    assert ext(answer)["transactionId"] == given
    assert len(given) == 32


async def test_a_receipt_of_an_earlier_delivery_is_not_stored(wire: Wire) -> None:
    await wire.send("T", properties={"POP_CK": "0 1 2 3", "a": "b"})
    [record] = records(await wire.pull("g", "T", 0))
    assert "POP_CK" not in properties(record)
    assert properties(record)["a"] == "b"


OF_SENDER = SysFlag.COMPRESSED | SysFlag.MULTI_TAGS | SysFlag.ZSTD


@pytest.mark.parametrize(
    "flag",
    [
        # Such a record would have no place in its queue and would never be delivered.
        SysFlag.TRANSACTION_PREPARED,
        # Readers would look for messages in its body, and give up the queue.
        SysFlag.INNER_BATCH,
        SysFlag.NEED_UNWRAP,
        SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP,
        # Readers would look for its fields in the wrong places.
        SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6,
    ],
    ids=hex,
)
async def test_a_client_cannot_set_the_flags_of_the_broker(wire: Wire, flag: int) -> None:
    for _ in range(2):  # the second takes the fast path
        assert (await wire.send("T", sys_flag=flag | OF_SENDER)).code == ResponseCode.SUCCESS
    if not flag & SysFlag.TRANSACTION_MASK:
        items = [BatchItem(b"a", b"", 0), BatchItem(b"b", b"", 0)]
        for _ in range(2):
            answer = await wire.send(
                "T",
                encode_batch(items),
                code=RequestCode.SEND_BATCH_MESSAGE,
                batch=True,
                sys_flag=flag | OF_SENDER,
            )
            assert answer.code == ResponseCode.SUCCESS
    found = await all_records(wire, "T")
    assert len(found) in (2, 6)
    assert {record.sys_flag for record in found} == {OF_SENDER}


async def test_a_batch_becomes_ordinary_messages_in_a_row(wire: Wire) -> None:
    await wire.send("T", b"before")
    items = [BatchItem(f"m{i}".encode(), f"TAGS\x01t{i}\x02".encode(), i) for i in range(5)]
    answer = await send_batch(wire, "T", items, {"UNIQ_KEY": "BATCH"})
    assert answer.code == ResponseCode.SUCCESS
    assert ext(answer)["queueOffset"] == "1"
    assert ext(answer)["transactionId"] == "BATCH"
    ids = ext(answer)["msgId"].split(",")
    found = records(await wire.pull("g", "T", 1))
    assert [r.body for r in found] == [b"m0", b"m1", b"m2", b"m3", b"m4"]
    assert [r.queue_offset for r in found] == [1, 2, 3, 4, 5]
    assert [r.flag for r in found] == [0, 1, 2, 3, 4]
    assert [int(one[-16:], 16) for one in ids] == [r.log_position for r in found]
    # The envelope's own properties are not the messages'.
    assert [properties(r) for r in found] == [{"TAGS": f"t{i}"} for i in range(5)]


async def test_a_batch_of_the_cpp_client_becomes_three_messages(broker: Broker, wire: Wire) -> None:
    """The bytes of ``send_batch`` of PyPI's rocketmq 0.4.4: SEND_MESSAGE with ``"batch":"1"``."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(CPP_BATCH.read_bytes())
    decoder = FrameDecoder()
    answers: list[Command] = []
    while not answers:
        answers += [decode_command(one) for one in decoder.feed(await reader.read(1 << 16))]
    writer.close()
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS]
    assert len(ext(answers[0])["msgId"].split(",")) == 3
    found = await all_records(wire, "PYbatch2", 1)
    assert [record.body for record in found] == [b"b0", b"b1", b"b2"]
    assert [properties(record)["KEYS"] for record in found] == ["k0", "k1", "k2"]


async def test_a_one_way_send_is_stored_and_never_answered(wire: Wire) -> None:
    header = SendMessage("p", "T", "TBW102", 4, 0, 0, 1, 0, "")
    wire.oneway(RequestCode.SEND_MESSAGE_V2, header, b"quiet")
    # Answers come in order, so one to the first send would have come before this one.
    answer = await wire.send("T", b"loud")
    assert ext(answer)["queueOffset"] == "1"
    assert bodies(await wire.pull("g", "T", 0)) == [b"quiet", b"loud"]


async def test_a_refused_one_way_send_is_not_answered_either(wire: Wire) -> None:
    header = SendMessage("p", "bad name!", "TBW102", 4, 0, 0, 1, 0, "")
    wire.oneway(RequestCode.SEND_MESSAGE_V2, header, b"x")
    assert (await wire.send("T")).code == ResponseCode.SUCCESS


async def test_many_sends_in_one_chunk_are_stored_in_order(wire: Wire) -> None:
    headers = [SendMessage("p", "T", "TBW102", 4, 0, 0, 1, 0, "") for _ in range(200)]
    pending = [
        wire.start(RequestCode.SEND_MESSAGE_V2, header, str(number).encode())
        for number, header in enumerate(headers)
    ]
    offsets = [ext(await one)["queueOffset"] for one in pending]
    assert offsets == [str(number) for number in range(200)]
    found = await all_records(wire, "T")
    assert [int(r.body) for r in found] == list(range(200))


# Topics and queues


async def test_an_unknown_topic_is_made_after_the_template(wire: Wire, broker: Broker) -> None:
    for asked, expected in ((4, 4), (3, 3), (100, 8)):
        topic = f"auto-{asked}"
        assert (await wire.send(topic, default_topic_queue_nums=asked)).code == 0
        config = broker.state.topics.require(topic)
        assert (config.read_queue_nums, config.write_queue_nums) == (expected, expected)
        # The right to serve as a template is not handed on.
        assert config.perm == 6


async def test_a_topic_that_does_not_let_others_inherit_is_no_template(wire: Wire) -> None:
    await put_topic(wire, "plain", 4)
    answer = await wire.send("new", default_topic="plain")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert ext(answer) == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    answer = await wire.send("new", default_topic="nowhere")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_missing_retry_topic_is_made_without_a_template(wire: Wire, broker: Broker) -> None:
    assert (await wire.send("%RETRY%g", default_topic="nowhere")).code == ResponseCode.SUCCESS
    config = broker.state.topics.require("%RETRY%g")
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)


@pytest.mark.parametrize("name", ["", "no spaces", "a" * 128, "a/b", "ümlaut"])
async def test_a_topic_with_an_illegal_name_is_refused(wire: Wire, name: str) -> None:
    answer = await wire.send(name)
    assert answer.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    ],
)
async def test_only_the_broker_itself_writes_to_its_own_topics(wire: Wire, topic: str) -> None:
    answer = await wire.send(topic)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert topic in (answer.remark or "")


async def test_a_negative_queue_lets_the_broker_choose(wire: Wire) -> None:
    await put_topic(wire, "T", 8, 4)
    used = {ext(await wire.send("T", queue_id=-1))["queueId"] for _ in range(60)}
    assert used == {"0", "1", "2", "3"}


async def test_a_queue_beyond_reading_and_writing_is_refused(wire: Wire) -> None:
    await put_topic(wire, "T", 4, 2)
    # A queue that is only read may still be written to, as in RocketMQ.
    assert (await wire.send("T", queue_id=3)).code == ResponseCode.SUCCESS
    answer = await wire.send("T", queue_id=4)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "queueId[4]" in (answer.remark or "")


async def test_the_write_permission_of_a_topic_is_for_clients_to_look_at(wire: Wire) -> None:
    await put_topic(wire, "T", 1, perm=4)
    assert (await wire.send("T")).code == ResponseCode.SUCCESS


# Contents


async def test_a_body_that_is_empty_or_too_big_is_illegal(wire: Wire, broker: Broker) -> None:
    limit = broker.state.storage.max_message_size
    assert (await wire.send("T", b"")).code == ResponseCode.MESSAGE_ILLEGAL
    answer = await wire.send("T", bytes(limit + 1))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert str(limit) in (answer.remark or "")
    assert await max_offset(wire, "T") == 0


async def test_a_message_that_fits_no_segment_is_illegal(wire: Wire) -> None:
    # The test's segments are smaller than the largest message.
    answer = await wire.send("T", bytes(2 << 20))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert (await wire.send("T")).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("text", ["a\x01" + "x" * 40_000 + "\x02", "a\x01zero \x00 byte\x02"])
async def test_properties_that_cannot_be_stored_are_illegal(wire: Wire, text: str) -> None:
    header = SendMessage("p", "T", "TBW102", 4, 0, 0, 1, 0, text)
    answer = await wire.request(RequestCode.SEND_MESSAGE_V2, header, b"x")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert (await wire.send("T")).code == ResponseCode.SUCCESS


async def test_properties_without_their_last_separator_are_understood(wire: Wire) -> None:
    header = SendMessage("p", "T", "TBW102", 4, 0, 0, 1, 0, "TAGS\x01A\x02color\x01red")
    assert (await wire.request(RequestCode.SEND_MESSAGE_V2, header, b"x")).code == 0
    [record] = records(await wire.pull("g", "T", 0))
    assert properties(record)["color"] == "red"


async def test_a_header_without_a_needed_field_is_refused_by_name(wire: Wire) -> None:
    answer = await wire.request(RequestCode.SEND_MESSAGE_V2, {"a": "p", "b": "T"}, b"x")
    assert answer.code != ResponseCode.SUCCESS
    assert "defaultTopic" in (answer.remark or "") or "c" in (answer.remark or "")


@pytest.mark.parametrize("body", [b"\x00\x00\x00\x08nonsense", b"\xff" * 40, b"\x00"])
async def test_a_batch_that_cannot_be_read_is_illegal(wire: Wire, body: bytes) -> None:
    answer = await wire.send("T", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert await max_offset(wire, "T") == 0


async def test_a_batch_is_stored_whole_or_not_at_all(wire: Wire) -> None:
    good, delayed = BatchItem(b"a", b"", 0), BatchItem(b"b", b"DELAY\x013\x02", 0)
    assert (await send_batch(wire, "T", [good, delayed])).code == ResponseCode.MESSAGE_ILLEGAL
    with_zero = BatchItem(b"b", b"p\x01\x00\x02", 0)
    assert (await send_batch(wire, "T", [good, with_zero])).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await send_batch(wire, "%RETRY%g", [good])).code == ResponseCode.MESSAGE_ILLEGAL
    assert await max_offset(wire, "T") == 0


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("envelope", "sys_flag"),
    [
        ({"DELAY": "3"}, 0),
        ({"TIMER_DELAY_SEC": "60"}, 0),
        ({"TRAN_MSG": "true", "PGROUP": "p"}, 0),
        ({"DELAY": "soon"}, 0),
        ({}, 4),
    ],
)
async def test_a_batch_asks_for_nothing_but_to_be_stored(
    wire: Wire, envelope: dict[str, str], sys_flag: int, is_first: bool
) -> None:
    items = [BatchItem(b"a", b"", 0), BatchItem(b"b", b"", 0)]
    if not is_first:
        # The queue has taken one, so the next takes the fast path.
        assert (await send_batch(wire, "T", items)).code == ResponseCode.SUCCESS
    before = await max_offset(wire, "T")
    answer = await wire.send(
        "T",
        encode_batch(items),
        code=RequestCode.SEND_BATCH_MESSAGE,
        batch=True,
        properties=envelope,
        sys_flag=sys_flag,
    )
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert await max_offset(wire, "T") == before


async def test_names_that_end_like_a_delay_are_names_like_any_other(wire: Wire) -> None:
    stored = [
        b"SHIPPING_DELAY\x0112\x02",
        b"DELAY\x010\x02",
        b"note\x01TIMER_DELAY\x02",
        b"MY_TRAN_MSG\x01true\x02TRAN_MSG\x01false\x02",
    ]
    items = [BatchItem(b"%d" % number, said, 0) for number, said in enumerate(stored)]
    answer = await send_batch(wire, "T", items)
    assert answer.code == ResponseCode.SUCCESS
    assert [r.properties for r in records(await wire.pull("g", "T", 0))] == stored
    single = await wire.send("T", properties={"SHIPPING_DELAY": "12"})
    assert single.code == ResponseCode.SUCCESS
    assert len(records(await wire.pull("g", "T", 0))) == 5


# Delays, transactions and timers


async def test_a_delayed_message_waits_in_the_queue_of_its_level(wire: Wire) -> None:
    answer = await wire.send("T", queue_id=3, properties={"DELAY": "5"})
    assert answer.code == ResponseCode.SUCCESS
    # The answer has the requested queue, and the offset in the schedule topic.
    assert ext(answer)["queueId"] == "3"
    [record] = records(await wire.pull("g", SCHEDULE_TOPIC, 0, queue_id=4))
    assert record.log_position == log_position(answer)
    stored = properties(record)
    assert (stored["REAL_TOPIC"], stored["REAL_QID"], stored["DELAY"]) == ("T", "3", "5")


async def test_a_level_beyond_the_last_is_the_last(wire: Wire) -> None:
    await wire.send("T", properties={"DELAY": "99"})
    [record] = records(await wire.pull("g", SCHEDULE_TOPIC, 0, queue_id=17))
    assert properties(record)["DELAY"] == "18"


@pytest.mark.parametrize("level", ["0", "-1"])
async def test_a_level_that_is_none_delays_nothing(wire: Wire, level: str) -> None:
    await wire.send("T", b"now", properties={"DELAY": level, "x": "y"})
    assert bodies(await wire.pull("g", "T", 0)) == [b"now"]


@pytest.mark.parametrize("key", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
async def test_a_time_that_cannot_be_read_is_refused_and_nothing_sent_too_early(
    wire: Wire, key: str
) -> None:
    answer = await wire.send("T", properties={key: "soon"})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"property {key} is 'soon'" in (answer.remark or "")
    assert await max_offset(wire, "T") == 0


# Sends to retry topics


async def dead_letters(wire: Wire, group: str) -> list[bytes]:
    answer = await wire.pull("reader", f"%DLQ%{group}", 0)
    return bodies(answer) if answer.code == ResponseCode.SUCCESS else []


async def test_a_retry_within_its_limit_goes_to_the_retry_topic(wire: Wire) -> None:
    answer = await wire.send("%RETRY%g", b"again", reconsume_times=3, max_reconsume_times=3)
    assert answer.code == ResponseCode.SUCCESS
    [record] = records(await wire.pull("reader", "%RETRY%g", 0))
    assert (record.body, record.reconsume_times) == (b"again", 3)


async def test_a_retry_past_its_limit_becomes_a_dead_letter_at_once(
    wire: Wire, broker: Broker
) -> None:
    answer = await wire.send(
        "%RETRY%g",
        b"enough",
        properties={"DELAY": "6", "RETRY_TOPIC": "T"},
        reconsume_times=4,
        max_reconsume_times=3,
    )
    assert answer.code == ResponseCode.SUCCESS
    assert ext(answer)["queueId"] == "0"
    [record] = records(await wire.pull("reader", "%DLQ%g", 0))
    assert (record.body, record.reconsume_times) == (b"enough", 4)
    assert properties(record)["RETRY_TOPIC"] == "T"
    assert properties(record)["DELAY"] == "0"
    config = broker.state.topics.require("%DLQ%g")
    assert (config.write_queue_nums, config.perm) == (1, 6)


@pytest.mark.spec("S112")
async def test_a_dead_letter_from_another_queue_goes_to_the_only_one(
    wire: Wire, broker: Broker
) -> None:
    await put_topic(wire, "%RETRY%g", 4)
    answer = await wire.send(
        "%RETRY%g", b"enough", queue_id=3, reconsume_times=4, max_reconsume_times=3
    )
    assert ext(answer)["queueId"] == "0"
    assert await dead_letters(wire, "g") == [b"enough"]
    assert broker.state.storage.max_offset("%DLQ%g", 3) == 0


async def test_without_a_limit_of_its_own_a_retry_has_the_groups(wire: Wire) -> None:
    await put_group(wire, SubscriptionGroupConfig("g", retry_max_times=2))
    await wire.send("%RETRY%g", b"second", reconsume_times=2)
    await wire.send("%RETRY%g", b"third", reconsume_times=3)
    assert bodies(await wire.pull("reader", "%RETRY%g", 0)) == [b"second"]
    assert await dead_letters(wire, "g") == [b"third"]


async def test_the_limit_of_a_client_that_is_too_old_to_have_one_is_ignored(
    wire: Wire, broker: Broker
) -> None:
    async with await Wire.connect(broker.port, version=63) as old:
        await old.send("%RETRY%g", b"kept", reconsume_times=2, max_reconsume_times=0)
    assert bodies(await wire.pull("reader", "%RETRY%g", 0)) == [b"kept"]


@pytest.mark.spec("S112")
async def test_what_an_orderly_group_gives_up_is_dead_at_once(wire: Wire) -> None:
    await wire.send("T")
    queue = MessageQueue("T", "broker-a", 0)
    assert await lock(wire, "g", "c1", [queue]) == {queue}
    await wire.send("%RETRY%g", b"given up", reconsume_times=1, max_reconsume_times=16)
    assert await dead_letters(wire, "g") == [b"given up"]


async def test_a_retry_for_a_group_that_may_not_be_is_refused(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(auto_create_subscription_group=False)
        wire = await stage.connect(broker)
        answer = await wire.send("%RETRY%g", reconsume_times=1)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


# Permissions of the broker


async def test_a_broker_that_may_not_be_written_to_refuses_order_topics(
    tmp_path: Path,
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(broker_permission=4)
        wire = await stage.connect(broker)
        await put_topic(wire, "ordered", 1, order=True)
        await put_topic(wire, "plain", 1)
        assert (await wire.send("ordered")).code == ResponseCode.NO_PERMISSION
        assert (await wire.send("plain")).code == ResponseCode.SUCCESS


async def test_without_auto_creation_an_unknown_topic_is_refused(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(auto_create_topic_enable=False)
        wire = await stage.connect(broker)
        assert (await wire.send("T")).code == ResponseCode.TOPIC_NOT_EXIST
        await put_topic(wire, "T", 1)
        assert (await wire.send("T")).code == ResponseCode.SUCCESS


async def test_a_slave_takes_no_message(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(broker_role="SLAVE", broker_id=1)
        wire = await stage.connect(broker)
        answer = await wire.send("T")
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert (answer.remark or "").startswith("[REJECTREQUEST]")
        assert "T" not in broker.state.topics


async def test_sends_are_counted_by_topic(wire: Wire, broker: Broker) -> None:
    await wire.send("T")
    await send_batch(wire, "T", [BatchItem(b"a", b"", 0), BatchItem(b"b", b"", 0)])
    await eventually(lambda: broker.state.stats.puts_of("T").count == 3)
