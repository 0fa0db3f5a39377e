"""Sending: where to, how often, how long, and what the answer means."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter

import pytest
from tests.support.loop_clients import Bench, on_bench
from tests.support.scripted import Answer, Script

from penstock.client.producing import request_reply
from penstock.client.producing.outgoing import make_outgoing
from penstock.client.producing.receipts import Receipt, SendStatus
from penstock.client.producing.transactions import LocalResult, end_transaction, send_half
from penstock.errors import (
    ConnectionLost,
    IllegalMessage,
    IllegalName,
    InvalidArgument,
    LifecycleError,
    MessageRefused,
    NoPermission,
    PenstockError,
    RequestTimeout,
    SystemBusy,
    TopicNotFound,
)
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.model.properties import parse_properties
from penstock.protocol.bodies.clients import HeartbeatData
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.headers.codec import decode_header, encode_header
from penstock.protocol.headers.send import PushReply
from penstock.protocol.headers.transactions import EndTransaction, TransactionDecision
from penstock.protocol.records.batches import decode_batch
from penstock.protocol.records.message_ids import parse_unique_id
from penstock.remoting.peer import Peer
from penstock.remoting.promise import Promise

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
TWO_BROKERS = ("broker-a", "broker-b")


def refusing(code: int, remark: str = "not today") -> Script:
    return lambda peer, request: Command(code, remark=remark)


def properties_of(bench: Bench, index: int = -1) -> dict[str, str]:
    return parse_properties(bench.broker.sent[index][0].properties or "")


@on_bench()
async def test_a_message_is_sent_with_its_properties_and_gets_a_receipt(bench: Bench) -> None:
    producer = bench.producer()
    receipt = await producer.deliver(
        Message(
            "T",
            b"body",
            tag="created",
            keys=["o-1", "o-2"],
            properties={"colour": "blue"},
            delay=3,
            flag=7,
        )
    )
    ((header, body),) = bench.broker.sent
    properties = properties_of(bench)
    assert body == b"body"
    assert (header.producer_group, header.topic, header.flag) == ("shop", "T", 7)
    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
    assert header.broker_name == "broker-a"
    assert properties == {
        "colour": "blue",
        "TAGS": "created",
        "KEYS": "o-1 o-2",
        "DELAY": "3",
        "WAIT": "true",
        "UNIQ_KEY": receipt.msg_id,
    }
    assert receipt.status is SendStatus.OK
    assert receipt.queue == MessageQueue("T", "broker-a", header.queue_id)
    assert receipt.queue_offset == 0
    assert receipt.offset_msg_id.endswith("0000")
    assert parse_unique_id(receipt.msg_id).ip == b"\x7f\x00\x00\x01"


@on_bench()
async def test_ids_are_unique_and_messages_go_round_the_queues(bench: Bench) -> None:
    producer = bench.producer()
    receipts = [await producer.deliver(Message("T", b"x")) for _ in range(16)]
    assert len({receipt.msg_id for receipt in receipts}) == 16
    assert set(Counter(receipt.queue.queue_id for receipt in receipts).values()) == {4}


@on_bench()
async def test_a_sharding_key_keeps_to_its_queue_and_is_sent_along(bench: Bench) -> None:
    producer = bench.producer()
    message = Message("T", b"x", sharding_key="o-1")
    used = {(await producer.deliver(message)).queue for _ in range(5)}
    assert len(used) == 1
    assert properties_of(bench)["__SHARDINGKEY"] == "o-1"


@on_bench()
async def test_an_explicit_queue_is_used_in_one_attempt(bench: Bench) -> None:
    producer = bench.producer()
    queue = MessageQueue("T", "broker-a", 3)
    assert (await producer.deliver(Message("T", b"x"), queue=queue)).queue == queue
    bench.broker.forget()
    bench.broker.script[SEND] = refusing(ResponseCode.SYSTEM_BUSY)
    with pytest.raises(SystemBusy):
        await producer.deliver(Message("T", b"x"), queue=queue)
    assert len(bench.broker.asked(SEND)) == 1


@on_bench(brokers=TWO_BROKERS)
async def test_a_refusal_that_may_pass_is_retried_on_the_other_broker(bench: Bench) -> None:
    bench.broker.script[SEND] = refusing(ResponseCode.SYSTEM_BUSY)
    producer = bench.producer()
    for _ in range(8):
        receipt = await producer.deliver(Message("T", b"x"))
        assert receipt.queue.broker_name == "broker-b"
    tried = bench.broker.asked(SEND)
    assert tried
    # The same message, not a copy: consumers can tell a repetition by its id.
    ids = {request.ext["i"] for request in tried}
    assert ids <= {header.properties for header, _ in bench.cluster.broker("broker-b").sent}


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    ],
)
@on_bench()
async def test_these_refusals_are_tried_three_times(bench: Bench, code: int) -> None:
    bench.broker.script[SEND] = refusing(code)
    producer = bench.producer()
    with pytest.raises(PenstockError, match="not today") as caught:
        await producer.deliver(Message("T", b"x"))
    assert caught.value.code == code
    assert len(bench.broker.asked(SEND)) == 3


@on_bench()
async def test_an_illegal_message_is_not_tried_again(bench: Bench) -> None:
    bench.broker.script[SEND] = refusing(ResponseCode.MESSAGE_ILLEGAL)
    producer = bench.producer()
    with pytest.raises(MessageRefused, match=r"MESSAGE_ILLEGAL.*not today"):
        await producer.deliver(Message("T", b"x"))
    assert len(bench.broker.asked(SEND)) == 1


@on_bench()
async def test_an_asynchronous_send_retries_silence_and_not_refusals(bench: Bench) -> None:
    bench.broker.script[SEND] = refusing(ResponseCode.NO_PERMISSION)
    producer = bench.producer()
    results: list[Receipt | PenstockError] = []
    producer.send(Message("T", b"x"), results.append, retry_refusals=False)
    await asyncio.sleep(1)
    assert len(bench.broker.asked(SEND)) == 1
    assert isinstance(results[0], NoPermission)


@on_bench(brokers=TWO_BROKERS)
async def test_a_lost_connection_is_retried_on_the_other_broker(bench: Bench) -> None:
    def hang_up(peer: Peer, request: Command) -> None:
        peer.abort("for a test")

    bench.broker.script[SEND] = hang_up
    producer = bench.producer()
    for _ in range(4):
        receipt = await producer.deliver(Message("T", b"x"))
        assert receipt.queue.broker_name == "broker-b"


@on_bench()
async def test_the_timeout_covers_all_attempts(bench: Bench) -> None:
    bench.broker.script[SEND] = lambda peer, request: None  # never an answer
    producer = bench.producer()
    await producer.queues("T")
    begun = bench.loop.time()
    with pytest.raises(RequestTimeout, match=r"not confirmed.*SEND_MESSAGE_V2"):
        await producer.deliver(Message("T", b"x"), timeout=2.0)
    assert 2.0 <= bench.loop.time() - begun < 2.5


@pytest.mark.parametrize("silent", ["name server", "broker"])
@on_bench()
async def test_the_timeout_covers_finding_the_route_and_the_connection(
    bench: Bench, silent: str
) -> None:
    producer = bench.producer()
    if silent == "broker":
        # It takes the connection and does not answer the heartbeat that comes first.
        bench.broker.script[RequestCode.HEART_BEAT] = lambda peer, request: Promise()
    else:
        bench.cluster.nameserver.script[ROUTE] = lambda peer, request: Promise()
    begun = bench.clock.monotonic()
    with pytest.raises(RequestTimeout, match="no connection to" if silent == "broker" else "route"):
        await producer.deliver(Message("T", b"x"), timeout=0.5)
    assert bench.clock.monotonic() - begun == pytest.approx(0.5, abs=0.1)
    assert not bench.broker.asked(SEND)
    assert producer.in_flight == 0


@on_bench()
async def test_an_error_after_unanswered_attempts_names_their_number(bench: Bench) -> None:
    def hang_up(peer: Peer, request: Command) -> None:
        peer.abort("for a test")

    bench.broker.script[SEND] = hang_up
    producer = bench.producer()
    with pytest.raises(ConnectionLost, match="not confirmed after 3 attempts"):
        await producer.deliver(Message("T", b"x"))


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_DISK_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, SendStatus.SLAVE_NOT_AVAILABLE),
    ],
)
@on_bench(brokers=TWO_BROKERS)
async def test_stored_but_not_safe_is_a_status_or_a_retry(
    bench: Bench, code: int, status: SendStatus
) -> None:
    ext = {"msgId": "A" * 32, "queueId": "0", "queueOffset": "5"}
    bench.broker.script[SEND] = lambda peer, request: Command(code, ext=dict(ext))
    queue = MessageQueue("T", "broker-a", 0)
    receipt = await bench.producer().deliver(Message("T", b"x"), queue=queue)
    assert (receipt.status, receipt.queue_offset) == (status, 5)
    careful = bench.producer(group="careful", retry_unless_stored=True)
    receipts = [await careful.deliver(Message("T", b"x")) for _ in range(4)]
    assert {receipt.queue.broker_name for receipt in receipts} == {"broker-b"}


@on_bench()
async def test_an_answer_without_its_fields_is_an_error_and_not_a_crash(bench: Bench) -> None:
    bench.broker.script[SEND] = lambda peer, request: Command(ResponseCode.SUCCESS, ext={})
    with pytest.raises(PenstockError, match="msgId, queueId and queueOffset"):
        await bench.producer().deliver(Message("T", b"x"))


@on_bench()
async def test_a_server_that_goes_away_is_asked_again_over_a_new_connection(bench: Bench) -> None:
    peers: list[Peer] = []
    send = bench.broker._handlers[SEND]

    def go_away_once(peer: Peer, request: Command) -> Answer:
        peers.append(peer)
        return Command(ResponseCode.GO_AWAY) if len(peers) == 1 else send(peer, request)

    bench.broker.script[SEND] = go_away_once
    receipt = await bench.producer(retries=0).deliver(Message("T", b"x"))
    assert receipt.status is SendStatus.OK
    assert len(peers) == 2
    assert peers[0] is not peers[1]


@on_bench(brokers=TWO_BROKERS)
async def test_a_slow_broker_is_avoided_when_asked_to(bench: Bench) -> None:
    send = bench.broker._handlers[SEND]

    def slow(peer: Peer, request: Command) -> Promise:
        promise = Promise()
        answer = send(peer, request)
        assert isinstance(answer, Command)
        asyncio.get_running_loop().call_later(0.6, promise.resolve, answer)
        return promise

    bench.broker.script[SEND] = slow
    producer = bench.producer(avoid_slow_brokers=True)
    used = [(await producer.deliver(Message("T", b"x"))).queue.broker_name for _ in range(12)]
    assert used.count("broker-a") == 1
    await asyncio.sleep(3)
    used = [(await producer.deliver(Message("T", b"x"))).queue.broker_name for _ in range(8)]
    assert used.count("broker-a") == 1


@on_bench(brokers=TWO_BROKERS)
async def test_a_broker_out_of_reach_is_probed_until_it_is_back(bench: Bench) -> None:
    producer = bench.producer(avoid_slow_brokers=True)
    assert producer.faults is not None
    await producer.deliver(Message("T", b"x"))
    producer.faults.failed("broker-a", bench.clock.monotonic(), is_reachable=False)
    assert producer.faults.suspects() == ["broker-a"]
    await asyncio.sleep(4)
    assert producer.faults.suspects() == []
    # Reachable again, yet left alone until its pause is over.
    assert not producer.faults.is_available("broker-a", bench.clock.monotonic())


@on_bench()
async def test_a_long_body_is_compressed_and_a_short_one_is_not(bench: Bench) -> None:
    producer = bench.producer()
    await producer.deliver(Message("T", b"a" * 4095))
    await producer.deliver(Message("T", b"a" * 4096))
    (plain, plain_body), (packed, packed_body) = bench.broker.sent
    assert (plain.sys_flag, len(plain_body)) == (0, 4095)
    assert packed.sys_flag == 0x301
    assert zlib.decompress(packed_body) == b"a" * 4096


@on_bench(topics={"TBW102": 8})
async def test_a_new_topic_gets_queues_on_the_brokers_of_the_template(bench: Bench) -> None:
    producer = bench.producer()
    queues = {(await producer.deliver(Message("NEW", b"x"))).queue.queue_id for _ in range(12)}
    assert queues == {0, 1, 2, 3}


@on_bench(topics={})
async def test_an_unknown_topic_is_an_error_with_a_hint(bench: Bench) -> None:
    with pytest.raises(TopicNotFound, match=r"no route for topic 'NEW'.*penstock topic create NEW"):
        await bench.producer().deliver(Message("NEW", b"x"))


@on_bench()
async def test_what_no_broker_would_take_is_refused_before_it_is_sent(bench: Bench) -> None:
    producer = bench.producer(max_message_bytes=1000)
    cases: list[tuple[Message, type[PenstockError], str]] = [
        (Message("T", b""), IllegalMessage, "empty"),
        (Message("T", b"x" * 1001), IllegalMessage, "1001 bytes"),
        (Message("T", "text"), IllegalMessage, r"body.encode\(\)"),  # type: ignore[arg-type]
        (Message("has blank", b"x"), IllegalName, "has blank"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), IllegalName, "belongs to the broker"),
        (Message("T", b"x", properties={"UNIQ_KEY": "1"}), IllegalMessage, "reserved"),
        (Message("T", b"x", properties={"a": "\x01"}), IllegalMessage, "0x01"),
        (Message("T", b"x", delay="11x"), InvalidArgument, "delay '11x'"),
        (Message("T", b"x", delay=19), InvalidArgument, "18 delay levels"),
    ]
    for message, error, text in cases:
        with pytest.raises(error, match=text):
            await producer.deliver(message)
    with pytest.raises(InvalidArgument, match="type str"):
        await producer.deliver("T")  # type: ignore[arg-type]
    assert not bench.broker.asked(SEND)
    assert producer.in_flight == 0


@on_bench()
async def test_a_batch_is_one_request_with_an_id_for_each(bench: Bench) -> None:
    producer = bench.producer()
    receipt = await producer.send_batch(
        [Message("T", b"1", tag="a"), Message("T", b"2" * 5000, flag=3)]
    )
    ((header, body),) = bench.broker.sent
    assert header.batch
    assert header.sys_flag == 0
    # 4.9 brokers write an id of the outgoing over those of the messages.
    assert parse_properties(header.properties or "") == {"WAIT": "true"}
    first, second = decode_batch(body)
    assert (first.body, second.body, second.flag) == (b"1", b"2" * 5000, 3)
    ids = [parse_properties(item.properties)["UNIQ_KEY"] for item in (first, second)]
    assert receipt.msg_id == ",".join(ids)
    assert len(receipt.offset_msg_id.split(",")) == 2


@on_bench()
async def test_a_batch_of_unlike_messages_is_refused(bench: Bench) -> None:
    producer = bench.producer(max_message_bytes=500)
    for messages, text in [
        ([], "no messages"),
        ([Message("T", b"1"), Message("U", b"2")], "'T' and 'U'"),
        ([Message("T", b"1", delay=1)], "delayed"),
        ([Message("%RETRY%g", b"1")], "retry topic"),
        ([Message("T", b"x" * 300), Message("T", b"x" * 300)], "several batches"),
    ]:
        with pytest.raises(InvalidArgument, match=text):
            await producer.send_batch(messages)


@on_bench()
async def test_a_one_way_message_is_not_answered(bench: Bench) -> None:
    producer = bench.producer()
    await producer.send_oneway(Message("T", b"x"))
    await asyncio.sleep(0.1)
    (request,) = bench.broker.asked(SEND)
    assert request.is_oneway


@on_bench(brokers=TWO_BROKERS)
async def test_one_way_messages_keep_to_the_queue_of_their_sharding_key(bench: Bench) -> None:
    producer = bench.producer()
    message = Message("T", b"x", sharding_key="o-1")
    queue = (await producer.deliver(message)).queue
    for _ in range(8):
        await producer.send_oneway(message)
    await asyncio.sleep(0.1)
    sent = [header for broker in TWO_BROKERS for header, _ in bench.cluster.broker(broker).sent]
    assert {(header.broker_name, header.queue_id) for header in sent} == {
        (queue.broker_name, queue.queue_id)
    }
    assert len(sent) == 9
    with pytest.raises(InvalidArgument, match="a queue of the message's topic"):
        await producer.send_oneway(message, MessageQueue("U", "broker-a", 0))


@on_bench()
async def test_lingering_sends_share_requests_and_each_gets_its_receipt(bench: Bench) -> None:
    producer = bench.producer(linger=0.01)
    results: list[Receipt | PenstockError] = []
    for number in range(1000):
        producer.send(Message("T", b"%03d" % number + b"." * 60), results.append)
    await asyncio.sleep(1)
    requests = bench.broker.asked(BATCH)
    assert 3 < len(requests) < 20
    receipts = [result for result in results if isinstance(result, Receipt)]
    assert len(receipts) == 1000
    assert len({receipt.msg_id for receipt in receipts}) == 1000
    assert len({(receipt.queue, receipt.queue_offset) for receipt in receipts}) == 1000
    # The load still goes round.
    assert len({receipt.queue for receipt in receipts}) == 4
    assert producer.in_flight == 0


@on_bench()
async def test_a_lingering_message_alone_travels_as_an_ordinary_send(bench: Bench) -> None:
    producer = bench.producer(linger=0.5)
    await producer.queues("T")
    begun = bench.loop.time()
    receipt = await producer.deliver(Message("T", b"x"))
    assert receipt.status is SendStatus.OK
    assert 0.5 <= bench.loop.time() - begun < 0.6
    assert bench.broker.asked(SEND)
    assert not bench.broker.asked(BATCH)


@on_bench()
async def test_lingering_keeps_keys_together_and_lets_delayed_messages_pass(bench: Bench) -> None:
    producer = bench.producer(linger=0.05)
    await producer.queues("T")
    results: list[Receipt | PenstockError] = []
    for number in range(40):
        producer.send(Message("T", b"x", sharding_key=f"k{number % 2}"), results.append)
    producer.send(Message("T", b"x", delay=1), results.append)
    producer.send(Message("T", b"x" * 5000), results.append)
    await asyncio.sleep(1)
    assert len(results) == 42
    assert len(bench.broker.asked(SEND)) == 2
    for request in bench.broker.asked(BATCH):
        keys = {parse_properties(i.properties)["__SHARDINGKEY"] for i in decode_batch(request.body)}
        assert keys in ({"k0"}, {"k1"})


@on_bench()
async def test_lingering_messages_of_all_kinds_share_a_lane_in_their_order(bench: Bench) -> None:
    producer = bench.producer(linger=0.05)
    await producer.queues("T")
    messages = [
        Message("T", b"plain"),
        Message("T", b"tagged", tag="a"),
        Message("T", b"keyed", keys=["k"], tag="a"),
        Message("T", b"flagged", flag=7),
        Message("T", bytearray(b"no bytes")),  # type: ignore[arg-type]  # taken all the same
        Message("T", b"own", properties={"p": "v"}),
        Message("T", b"other tag", tag="b"),
        Message("T", b"long tag", tag="t" * 300),
    ]
    results: list[Receipt | PenstockError] = []
    for message in messages:
        producer.send(message, results.append)
    await asyncio.sleep(1)
    [request] = bench.broker.asked(BATCH)
    items = decode_batch(request.body)
    assert [item.body for item in items] == [bytes(message.body) for message in messages]
    assert [item.flag for item in items] == [0, 0, 0, 7, 0, 0, 0, 0]
    found = [parse_properties(item.properties) for item in items]
    assert [one.get("TAGS") for one in found] == [message.tag for message in messages]
    assert found[2]["KEYS"] == "k"
    assert found[5]["p"] == "v"
    assert all(one["WAIT"] == "true" for one in found)
    ids = [one["UNIQ_KEY"] for one in found]
    assert len(set(ids)) == len(ids)
    assert [result.msg_id for result in results if isinstance(result, Receipt)] == ids
    for msg_id in ids:
        parse_unique_id(msg_id)


@on_bench()
@pytest.mark.parametrize(
    "message",
    [
        Message("T", b""),
        Message("T", "text"),  # type: ignore[arg-type]
        Message("T", b"x", tag=5),  # type: ignore[arg-type]
        Message("T", b"x", tag="a||b\x01"),
        Message("T", b"x", flag="1"),  # type: ignore[arg-type]
        Message("T", b"x", flag=None),  # type: ignore[arg-type]
        Message("T", b"x", flag=True),
        Message("T", b"x", flag=2**31),
        Message("bad topic", b"x"),
        Message(["T"], b"x"),  # type: ignore[arg-type]
        "no message",
    ],
    ids=str,
)
async def test_a_lingering_message_is_refused_with_the_same_error(
    bench: Bench, message: Message
) -> None:
    errors: list[str] = []
    for linger in (0.0, 0.05):
        producer = bench.producer(group=f"shop{linger > 0}", linger=linger)
        results: list[Receipt | PenstockError] = []
        producer.send(message, results.append)
        await asyncio.sleep(1)
        [result] = results
        assert isinstance(result, PenstockError)
        errors.append(f"{type(result).__name__}: {result}")
        assert producer.in_flight == 0
    assert errors[0] == errors[1]


@on_bench()
async def test_a_wrong_queue_fails_its_lingering_message_and_no_other(bench: Bench) -> None:
    producer = bench.producer(linger=0.05)
    await producer.queues("T")
    results: list[Receipt | PenstockError] = []
    elsewhere = MessageQueue("U", "broker-a", 0)
    producer.send(Message("T", b"x"), results.append)
    producer.send(Message("T", b"x"), results.append, queue=elsewhere)
    producer.send(Message("T", b"x"), results.append)
    await asyncio.sleep(1)
    assert sorted(type(result).__name__ for result in results) == [
        "InvalidArgument",
        "Receipt",
        "Receipt",
    ]
    assert producer.in_flight == 0


@on_bench()
@pytest.mark.parametrize("keys", [(), ("k\N{GREEK SMALL LETTER ALPHA}",)], ids=["plain", "keys"])
async def test_lingering_messages_never_make_a_batch_above_the_maximum(
    bench: Bench, keys: tuple[str, ...]
) -> None:
    producer = bench.producer(
        linger=0.05, linger_bytes=10_000, max_message_bytes=1000, compress_over=0
    )
    results: list[Receipt | PenstockError] = []
    bodies = [b"x" * size for size in (300, 300, 900, 10, 1000, 1000, *[1] * 50)]
    for body in bodies:
        producer.send(Message("T", body, keys=keys), results.append)
    await asyncio.sleep(1)
    assert [type(result) for result in results] == [Receipt] * len(bodies)
    batches = [request.body for request in bench.broker.asked(BATCH)]
    assert len(batches) > 2
    assert max(map(len, batches)) <= 1000
    assert producer.in_flight == 0


@on_bench()
async def test_a_lingering_message_that_changed_meanwhile_still_gets_a_result(
    bench: Bench,
) -> None:
    """What a message holds may be a list, and lists can be changed after they were checked."""
    producer = bench.producer(linger=0.05)
    results: list[Receipt | PenstockError] = []
    properties: dict[str, str] = {}
    producer.send(Message("T", b"x", properties=properties), results.append)
    properties["a\x01"] = "b"
    await asyncio.sleep(1)
    assert [type(result) for result in results] == [IllegalMessage]
    assert producer.in_flight == 0


@on_bench()
async def test_a_batch_that_cannot_be_encoded_fails_each_of_its_messages(bench: Bench) -> None:
    producer = bench.producer(linger=0.05)
    lanes = producer.lanes
    assert lanes is not None
    results: list[Receipt | PenstockError] = []
    message = Message("T", b"x")
    producer.send(message, results.append)
    outgoing = make_outgoing(message, producer.new_id(), producer.settings)
    lanes.add(message, outgoing._replace(flag=2**31), None, results.append)
    await asyncio.sleep(1)
    assert [type(result) for result in results] == [IllegalMessage] * 2
    assert producer.in_flight == 0


@on_bench()
async def test_a_refused_batch_fails_each_of_its_messages(bench: Bench) -> None:
    bench.broker.script[BATCH] = refusing(ResponseCode.MESSAGE_ILLEGAL)
    producer = bench.producer(linger=0.01)
    results: list[Receipt | PenstockError] = []
    for _ in range(10):
        producer.send(Message("T", b"x"), results.append)
    await asyncio.sleep(1)
    assert len(results) == 10
    assert all(isinstance(result, MessageRefused) for result in results)
    assert producer.in_flight == 0


@on_bench()
async def test_a_producer_is_used_between_start_and_stop(bench: Bench) -> None:
    producer = bench.producer(linger=5)
    results: list[Receipt | PenstockError] = []
    await producer.queues("T")
    producer.send(Message("T", b"x"), results.append)
    await producer.stop()
    # What waited for company was sent on the way out.
    assert isinstance(results[0], Receipt)
    assert bench.broker.asked(RequestCode.UNREGISTER_CLIENT, producerGroup="shop")
    with pytest.raises(LifecycleError, match="'shop' is not running"):
        await producer.deliver(Message("T", b"x"))


@on_bench()
async def test_a_stopped_producer_leaves_no_send_without_a_result(bench: Bench) -> None:
    bench.broker.script[SEND] = lambda peer, request: None  # never an answer
    producer = bench.producer(send_timeout=100.0)
    results: list[Receipt | PenstockError] = []
    for _ in range(3):
        producer.send(Message("T", b"x"), results.append)
    begun = bench.loop.time()
    await producer.stop(2.0)
    assert bench.loop.time() - begun == pytest.approx(2.0, abs=0.1)
    assert len(results) == 3
    assert all(isinstance(result, LifecycleError) for result in results)
    assert producer.in_flight == 0


@on_bench()
async def test_a_send_on_a_stopped_session_gets_an_error_and_not_silence(bench: Bench) -> None:
    producer = bench.producer()
    await bench.session("p1").stop()
    with pytest.raises(LifecycleError, match="not running"):
        await producer.deliver(Message("T", b"x"))


@on_bench()
async def test_a_request_gets_the_reply_that_carries_its_number(bench: Bench) -> None:
    producer = bench.producer()
    asking = asyncio.ensure_future(request_reply.request(producer, Message("T", b"2+2?"), 5.0))
    await asyncio.sleep(0.5)
    properties = properties_of(bench)
    assert properties["REPLY_TO_CLIENT"] == "127.0.0.1@p1"
    assert properties["TTL"] == "5000"
    heartbeat = decode_body(HeartbeatData, bench.broker.asked(RequestCode.HEART_BEAT)[0].body)
    assert "shop" in {group.group_name for group in heartbeat.producer_data_set}
    push = PushReply(
        producer_group="x",
        topic="C_REPLY_TOPIC",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        born_host="/10.0.0.1:5",
        store_host="10.0.0.2:6",
        store_timestamp=2,
        properties=f"CORRELATION_ID\x01{properties['CORRELATION_ID']}\x02",
    )
    (peer,) = bench.broker.peers
    answer = await peer.request(
        Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=encode_header(push), body=b"4"), 1.0
    )
    assert answer.code == ResponseCode.SUCCESS
    reply = await asking
    assert reply.body == b"4"
    assert reply.born_host == "10.0.0.1:5"
    assert "ARRIVE_TIME" in reply.properties


@on_bench()
async def test_a_request_without_a_reply_times_out_and_leaves_nothing_behind(bench: Bench) -> None:
    producer = bench.producer()
    begun = bench.loop.time()
    with pytest.raises(RequestTimeout, match="no reply to a request to topic 'T' within 2 s"):
        await request_reply.request(producer, Message("T", b"?"), 2.0)
    assert bench.loop.time() - begun == pytest.approx(2.0, abs=0.1)
    assert bench.session("p1").replies == {}


@on_bench(topics={"T": 1, "C_REPLY_TOPIC": 1})
async def test_a_reply_goes_to_the_reply_topic_of_the_cluster(bench: Bench) -> None:
    producer = bench.producer()
    asked = StoredMessage(
        "T",
        b"?",
        {"CORRELATION_ID": "42", "REPLY_TO_CLIENT": "c", "CLUSTER": "C", "TTL": "9"},
        MessageQueue("T", "broker-a", 0),
        0,
    )
    await request_reply.reply(producer, asked, b"!")
    (request,) = bench.broker.asked(RequestCode.SEND_REPLY_MESSAGE_V2)
    properties = parse_properties(request.ext["i"])
    assert request.ext["b"] == "C_REPLY_TOPIC"
    assert (properties["MSG_TYPE"], properties["CORRELATION_ID"]) == ("reply", "42")
    assert (properties["REPLY_TO_CLIENT"], properties["TTL"]) == ("c", "9")
    with pytest.raises(InvalidArgument, match="no CORRELATION_ID, REPLY_TO_CLIENT, CLUSTER"):
        await request_reply.reply(producer, StoredMessage("T", b"?", b"", asked.queue, 0), b"!")


@pytest.mark.parametrize("decision", [TransactionDecision.COMMIT, TransactionDecision.ROLLBACK])
@on_bench()
async def test_a_transaction_is_prepared_and_then_ended_as_decided(
    bench: Bench, decision: int
) -> None:
    producer = bench.producer()
    half = await send_half(producer, Message("T", b"x"))
    ((header, _),) = bench.broker.sent
    assert header.sys_flag & 0xC == 0x4
    assert properties_of(bench)["TRAN_MSG"] == "true"
    assert properties_of(bench)["PGROUP"] == "shop"
    await end_transaction(producer, half, LocalResult(decision))
    await asyncio.sleep(0.1)
    (request,) = bench.broker.asked(RequestCode.END_TRANSACTION)
    end = decode_header(EndTransaction, request.ext)
    assert request.is_oneway
    assert end.commit_or_rollback == decision
    assert (end.producer_group, end.msg_id) == ("shop", half.receipt.msg_id)
    assert (end.tran_state_table_offset, end.commit_log_offset) == (0, 0)


@on_bench()
async def test_a_delayed_half_message_is_refused(bench: Bench) -> None:
    producer = bench.producer()
    with pytest.raises(InvalidArgument, match="delayed"):
        await send_half(producer, Message("T", b"x", delay=1))


@on_bench()
async def test_a_batch_of_several_sharding_keys_has_no_queue_of_its_own(bench: Bench) -> None:
    producer = bench.producer()
    one = [Message("T", b"x", sharding_key="a"), Message("T", b"y", sharding_key="a")]
    mixed = [Message("T", b"x", sharding_key="a"), Message("T", b"y", sharding_key="b")]
    assert len({(await producer.send_batch(one)).queue for _ in range(8)}) == 1
    assert len({(await producer.send_batch(mixed)).queue for _ in range(8)}) == 4


@pytest.mark.parametrize("keys", [(), ("k",)], ids=["plain", "keys"])
@on_bench()
async def test_what_was_sent_does_not_count_as_pending_any_more(
    bench: Bench, keys: tuple[str, ...]
) -> None:
    producer = bench.producer(linger=0.05, linger_pending=5000, compress_over=0)
    results: list[Receipt | PenstockError] = []
    for _ in range(20):
        for _ in range(10):
            producer.send(Message("T", b"x" * 100, keys=keys), results.append)
        await asyncio.sleep(0.2)
    assert len(results) == 200
    # More than may wait in all was sent, and still each burst shares one request.
    assert len(bench.broker.asked(BATCH)) == 20
    assert producer.lanes is not None
    assert producer.lanes.pending_bytes == 0


@on_bench()
async def test_a_delayed_message_does_not_linger_and_keeps_its_delay(bench: Bench) -> None:
    producer = bench.producer(linger=5.0)
    await producer.queues("T")
    results: list[Receipt | PenstockError] = []
    for number in range(3):
        producer.send(Message("T", b"now"), results.append)
        producer.send(Message("T", b"later %d" % number, delay="10s"), results.append)
    await asyncio.sleep(1)
    assert len(results) == 3, "the delayed ones; the others wait"
    sent = {body: parse_properties(header.properties or "") for header, body in bench.broker.sent}
    assert {body: one["TIMER_DELAY_MS"] for body, one in sent.items()} == {
        b"later %d" % number: "10000" for number in range(3)
    }
