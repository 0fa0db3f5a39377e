"""Our producer on a real broker: sent messages are read back and compared."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence

from tests.interop.client_lab import Lab, NotApplicable, Seen, check, same, texts, wait_for

from penstock import (
    Message,
    MessageQueue,
    PenstockError,
    Producer,
    Receipt,
    SendStatus,
    StoredMessage,
    aio,
)
from penstock.model.java_hash import java_hash
from penstock.protocol.records.sys_flags import SysFlag


def _agrees(receipt: Receipt, stored: StoredMessage, message: Message) -> None:
    """Check that a stored message equals the sent one and is where its receipt says."""
    same(SendStatus.OK, receipt.status, "status")
    same(message.body, stored.body, "body")
    same((receipt.queue, receipt.queue_offset), (stored.queue, stored.queue_offset), "place")
    same(receipt.msg_id, stored.msg_id, "message id")
    same(receipt.offset_msg_id, stored.offset_msg_id, "offset message id")
    same(tuple(message.keys), tuple(stored.keys), "keys")
    same(message.tag, stored.tag, "tag")
    for key, value in (message.properties or {}).items():
        same(value, stored.properties.get(key), f"property {key}")


def _compare(lab: Lab, topic: str, sent: Sequence[tuple[Message, Receipt]]) -> str:
    """Check that every message is in the topic once, as it was sent."""
    stored = {message.body: message for message in lab.read_all(topic, len(sent))}
    for message, receipt in sent:
        check(message.body in stored, f"{message.body[:40]!r} is not stored")
        _agrees(receipt, stored[message.body], message)
    return f"{len(sent)} messages read back"


def _rich(topic: str, number: int) -> Message:
    return Message(
        topic,
        f"m-{number}".encode(),
        tag=f"tag-{number % 3}",
        keys=[f"key-{number}", f"other-{number}"],
        properties={"colour": "grün", "number": str(number)},
        flag=number,
    )


def send_sync(lab: Lab) -> str:
    topic, producer = lab.topic(), lab.producer()
    messages = [_rich(topic, number) for number in range(12)]
    sent = [(message, producer.send(message)) for message in messages]
    summary = _compare(lab, topic, sent)
    flags = sorted(message.flag for message in lab.read(topic))
    same(list(range(12)), flags, "flags")
    return summary


def send_async(lab: Lab) -> str:
    topic, producer = lab.topic(), lab.producer()
    messages = [_rich(topic, number) for number in range(300)]
    futures = [(message, producer.submit(message)) for message in messages]
    return _compare(lab, topic, [(message, future.result(20)) for message, future in futures])


def send_oneway(lab: Lab) -> str:
    topic, producer = lab.topic(), lab.producer()
    for body in texts(40):
        producer.send_oneway(Message(topic, body.encode(), tag="quick"))
    found = lab.read_all(topic, 40)
    same(set(texts(40)), {message.body.decode() for message in found}, "bodies")
    return "40 messages read back"


def send_batch(lab: Lab) -> str:
    topic, producer = lab.topic(), lab.producer()
    messages = [_rich(topic, number) for number in range(20)]
    receipt = producer.send_batch(messages)
    same(SendStatus.OK, receipt.status, "status")
    found = sorted(lab.read_all(topic, 20), key=lambda message: message.queue_offset)
    same([message.body for message in messages], [message.body for message in found], "bodies")
    same({receipt.queue}, {message.queue for message in found}, "queue")
    same(receipt.offset_msg_id.split(","), [one.offset_msg_id for one in found], "offset ids")
    same(receipt.msg_id.split(","), [one.msg_id for one in found], "message ids")
    same(["key-7", "other-7"], list(found[7].keys), "keys of one message")
    return "20 messages in one request, in order, ids and keys kept"


def send_linger(lab: Lab) -> str:
    topic, producer = lab.topic(), lab.producer(linger="5ms")
    messages = [_rich(topic, number) for number in range(400)]
    futures = [(message, producer.submit(message)) for message in messages]
    return _compare(lab, topic, [(message, future.result(20)) for message, future in futures])


def _compressed(lab: Lab, kind: str) -> str:
    topic = lab.topic()
    try:
        producer = lab.producer(compression=kind)
    except PenstockError as missing:
        raise NotApplicable(str(missing)) from None
    message = Message(topic, b"a text that repeats itself; " * 4000, tag="big")
    receipt = producer.send(message)
    stored = lab.read_all(topic, 1)[0]
    _agrees(receipt, stored, message)
    # A client clears the compressed bit when it decompresses; the bits of the algorithm remain.
    kinds = {"zlib": SysFlag.ZLIB, "lz4": SysFlag.LZ4, "zstd": SysFlag.ZSTD}
    same(kinds[kind], stored.sys_flag & SysFlag.COMPRESSION_MASK, "compression algorithm")
    _, seen = lab.collect(topic)
    wait_for(lambda: len(seen) > 0, lambda: "the consumer never received it")
    same(message.body, seen.messages[0].body, "body of the pushed message")
    return f"{len(message.body)} bytes, sys flag {stored.sys_flag}"


def send_compressed(lab: Lab) -> str:
    return _compressed(lab, "zlib")


def send_compressed_lz4(lab: Lab) -> str:
    return _compressed(lab, "lz4")


def send_compressed_zstd(lab: Lab) -> str:
    return _compressed(lab, "zstd")


def send_big(lab: Lab) -> str:
    topic, producer = lab.topic(), lab.producer()
    body = random.Random(7).randbytes(4 * 1024 * 1024 - 2000)
    receipt = producer.send(Message(topic, body))
    same(body, lab.admin.message(receipt.offset_msg_id).body, "body")
    return f"{len(body)} random bytes"


def send_too_big(lab: Lab) -> str:
    topic, producer = lab.topic(), lab.producer(max_message_bytes=8 * 1024 * 1024)
    body = random.Random(7).randbytes(5 * 1024 * 1024)
    try:
        producer.send(Message(topic, body))
    except PenstockError as error:
        refusal = f"{type(error).__name__}: {error}"
    else:
        check(False, "5 MiB were accepted")
    producer.send(Message(topic, b"and on"))
    lab.read_all(topic, 1)
    return f"refused, the next one stored; {refusal[:120]}"


def send_delay(lab: Lab) -> str:
    topic, producer = lab.topic(), lab.producer()
    began = time.time()
    producer.send(Message(topic, b"1s", delay=1))
    producer.send(Message(topic, b"5s", delay="5s"))
    producer.send(Message(topic, b"now"))
    due = {b"now": 0.0, b"1s": 1.0, b"5s": 5.0}
    found = lab.read_all(topic, 3, 30)
    for message in found:
        waited = message.store_timestamp / 1000 - began
        check(waited >= due[message.body] - 0.05, f"{message.body!r} after {waited:.2f} s: early")
        check(message.topic == topic, f"under topic {message.topic}")
    return "levels 1 and 2, never early"


def send_sharding_key(lab: Lab) -> str:
    topic, producer = lab.topic(queues=5), lab.producer()
    for number in range(40):
        key = f"order-{number % 8}"
        producer.send(Message(topic, f"{key}/{number}".encode(), sharding_key=key))
    for message in lab.read_all(topic, 40):
        key = message.body.decode().split("/")[0]
        same(abs(java_hash(key)) % 5, message.queue.queue_id, f"queue of {key}")
        same(key, message.properties.get("__SHARDINGKEY"), "property __SHARDINGKEY")
    return "8 keys, each in the queue given by Java's hash"


def send_to_queue(lab: Lab) -> str:
    topic, producer = lab.topic(), lab.producer()
    queues = producer.queues(topic)
    same(4, len(queues), "queues")

    def last(among: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return sorted(among)[-1]

    by_queue = producer.send(Message(topic, b"a"), queue=queues[1])
    by_function = producer.send(Message(topic, b"b"), queue=last)
    same((queues[1], 3), (by_queue.queue, by_function.queue.queue_id), "queues of the receipts")
    places = {message.body: message.queue for message in lab.read_all(topic, 2)}
    same({b"a": queues[1], b"b": by_function.queue}, places, "places")
    return "by queue and by function"


def send_auto_create(lab: Lab) -> str:
    topic, producer = lab.name("new"), lab.producer()
    producer.send(Message(topic, b"first"))
    lab.read_all(topic, 1)
    same(4, len(lab.queues(topic)), "queues of the new topic")
    return "the first message created the topic, with 4 queues"


def request_reply(lab: Lab) -> str:
    topic, asking, answering = lab.topic(), lab.producer(), lab.producer()
    consumer = lab.push()

    @consumer.on(topic)
    def answer(message: StoredMessage) -> None:
        answering.reply(message, b"re: " + message.body)

    consumer.start()
    wait_for(lambda: len(consumer.assignment()) == 4, lambda: "the replier has no queues")
    for body in (b"one", b"two"):
        reply = asking.request(Message(topic, body, keys=["k"]), timeout=20)
        same(b"re: " + body, reply.body, "reply")
    return "two replies reached their requester"


def transaction(lab: Lab) -> str:
    topic, asked = lab.topic(), threading.Event()

    def decide(message: StoredMessage) -> bool:
        asked.set()
        return True

    producer = lab.producer(check_transaction=decide)
    producer.send_in_transaction(Message(topic, b"kept"), lambda message: True)
    producer.send_in_transaction(Message(topic, b"dropped"), lambda message: False)
    producer.send_in_transaction(Message(topic, b"asked"), lambda message: None)
    found = lab.read_all(topic, 2, 60)
    same({b"kept", b"asked"}, {message.body for message in found}, "visible messages")
    check(asked.is_set(), "the producer was never checked")
    return "commit, rollback, and the check of an undecided transaction"


def aio_send(lab: Lab) -> str:
    topic = lab.topic()

    async def run() -> list[tuple[Message, Receipt]]:
        producer = aio.Producer(lab.name("aio"), send_timeout=10, **lab.settings)
        async with producer:
            one = _rich(topic, 0)
            sent = [(one, await producer.send(one))]
            many = [_rich(topic, number) for number in range(1, 50)]
            futures = [(message, await producer.submit(message)) for message in many]
            sent += [(message, await future) for message, future in futures]
            await producer.send_batch([Message(topic, b"b-0"), Message(topic, b"b-1")])
            await producer.send_oneway(Message(topic, b"o-0"))
        return sent

    sent = asyncio.run(run())
    stored = {message.body: message for message in lab.read_all(topic, 53)}
    for message, receipt in sent:
        _agrees(receipt, stored[message.body], message)
    check({b"b-0", b"b-1", b"o-0"} <= set(stored), "batch or one-way send is missing")
    return "single, submitted, batch and one-way sends read back"


def several_threads(lab: Lab) -> str:
    topic, producer = lab.topic(), lab.producer()
    seen = Seen()

    def work(number: int, producer: Producer) -> None:
        for body in texts(50, f"t{number}"):
            producer.send(Message(topic, body.encode()))

    threads = [threading.Thread(target=work, args=(n, producer)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen.add(*lab.read_all(topic, 200))
    seen.check_once(body for n in range(4) for body in texts(50, f"t{n}"))
    return "200 messages from 4 threads"
