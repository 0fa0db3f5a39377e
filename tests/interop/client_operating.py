"""Our pull consumer and our admin client on a real cluster."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from tests.interop.client_lab import PATIENCE, Lab, Seen, check, same, texts, wait_for

from penstock import Message, MessageQueue, PenstockError, PullConsumer, StoredMessage, aio


def _poll_until(consumer: PullConsumer, seen: Seen, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while len(seen) < count:
        check(time.monotonic() < deadline, f"{len(seen)} of {count} polled")
        seen.add(*consumer.poll(1))


def pull_subscribe(lab: Lab) -> str:
    topic, group, seen = lab.topic(), lab.name("group"), Seen()
    producer = lab.producer()
    for number in range(60):
        producer.send(Message(topic, f"m-{number}".encode(), tag="ab"[number % 2]))
    consumer = lab.pull(group)
    consumer.subscribe(topic, "a")
    consumer.start()
    _poll_until(consumer, seen, 30)
    same([], consumer.poll(0.5), "a poll after the end")
    consumer.commit()
    wait_for(lambda: lab.lag(group, topic) == 0, lambda: f"lag {lab.lag(group, topic)}")
    consumer.stop()
    seen.check_once(f"m-{number}" for number in range(0, 60, 2))
    return "30 of 60 by tag, committed to the end"


def pull_rebalance(lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    pair = [lab.pull(group) for _ in range(2)]
    for consumer in pair:
        consumer.subscribe(topic)
        consumer.start()
    wait_for(
        lambda: [len(consumer.assignment()) for consumer in pair] == [2, 2],
        lambda: f"{[len(consumer.assignment()) for consumer in pair]} queues",
    )
    bodies, seen = lab.send(topic, texts(40)), Seen()
    deadline = time.monotonic() + PATIENCE
    while len(seen) < 40 and time.monotonic() < deadline:
        for consumer in pair:
            seen.add(*consumer.poll(0.2))
    seen.check_once(bodies)
    return "2 and 2 queues, 40 messages once"


def pull_assign_seek_commit(lab: Lab) -> str:
    topic, group, seen = lab.topic(queues=2), lab.name("group"), Seen()
    queues, producer = lab.queues(topic), lab.producer()
    for number in range(20):
        producer.send(Message(topic, f"m-{number}".encode()), queue=queues[0])
        producer.send(Message(topic, f"n-{number}".encode()), queue=queues[1])
    consumer = lab.pull(group, auto_commit=False)
    consumer.assign([queues[0]])
    consumer.start()
    _poll_until(consumer, seen, 20)
    same(texts(20), seen.bodies, "the assigned queue")
    consumer.seek(queues[0], 15)
    again = Seen()
    _poll_until(consumer, again, 5)
    same(texts(20)[15:], again.bodies, "after the seek")
    consumer.commit()
    consumer.stop()
    committed = {row.queue_id: row.committed for row in lab.admin.group_lag(group, topic=topic)}
    same(20, committed.get(0), "committed offset of the assigned queue")
    check(committed.get(1, -1) <= 0, f"the other queue was committed at {committed.get(1)}")
    return "one queue only, again from 15 after a seek, committed at 20"


def pull_seek_time(lab: Lab) -> str:
    topic, producer = lab.topic(queues=1), lab.producer()
    lab.send(topic, texts(5, "early"), producer)
    time.sleep(0.8)  # a 4.9 broker returns the message nearest to a time
    moment = datetime.now(UTC)
    time.sleep(0.1)
    late = lab.send(topic, texts(5, "late"), producer)
    consumer, seen = lab.pull(), Seen()
    queue = lab.queues(topic)[0]
    consumer.assign([queue])
    consumer.start()
    consumer.seek(queue, moment)
    _poll_until(consumer, seen, 5)
    same(late, seen.bodies, "messages from that time on")
    return "a time between two messages was found"


def pull_long_polling(lab: Lab) -> str:
    topic, consumer = lab.topic(queues=1), lab.pull()
    consumer.assign(lab.queues(topic))
    consumer.start()
    same([], consumer.poll(1), "a poll of an empty queue")
    producer, waits = lab.producer(), []
    for body in texts(5):
        time.sleep(0.3)
        producer.send(Message(topic, body.encode()))
        sent = time.monotonic()
        same([body], [message.body.decode() for message in consumer.poll(10)], "polled")
        waits.append(time.monotonic() - sent)
    check(max(waits) < 5, f"a held pull was answered after {max(waits):.1f} s")
    return f"answered {min(waits) * 1000:.0f} to {max(waits) * 1000:.0f} ms after the send"


def aio_pull(lab: Lab) -> str:
    topic, seen = lab.topic(), Seen()
    bodies = lab.send(topic, texts(40))

    async def run() -> None:
        consumer = aio.PullConsumer(lab.name("group"), start_from="first", **lab.settings)
        await consumer.subscribe(topic)
        async with consumer, asyncio.timeout(50):
            async for message in consumer:
                seen.add(message)
                if len(seen) == 40:
                    break
            await consumer.commit()

    asyncio.run(run())
    seen.check_once(bodies)
    lab.check_no_lag(lab.name("group"), topic)
    return "40 messages once by iteration, committed"


def admin_topics(lab: Lab) -> str:
    topic, admin = lab.topic("made", queues=6), lab.admin
    check(topic in admin.topics(), f"{topic} is not listed")
    route = admin.route(topic)
    same([(6, 6)], [(one.read_queues, one.write_queues) for one in route.queues], "route")
    same({6}, {config.write_queue_nums for config in admin.topic_config(topic).values()}, "config")
    lab.send(topic, texts(12))
    wait_for(
        lambda: sum(one.count for one in admin.topic_stats(topic)) == 12,
        lambda: f"12 messages sent, the broker counts {admin.topic_stats(topic)}",
    )
    admin.create_topic(topic, 3)
    same([3], [one.write_queues for one in admin.route(topic).queues], "route after the reduction")
    admin.delete_topic(topic)
    wait_for(lambda: topic not in admin.topics(), lambda: f"{topic} is still listed", 40)
    return "created, listed, changed, deleted"


def admin_groups(lab: Lab) -> str:
    group, admin = lab.name("made"), lab.admin
    admin.create_group(group, retry_max_times=7)
    check(group in admin.groups(), f"{group} is not listed")
    same({7}, {one.retry_max_times for one in admin.group_config(group).values()}, "retries")
    admin.delete_group(group)
    check(group not in admin.groups(), f"{group} is still listed")
    return "created, read, deleted"


def admin_cluster(lab: Lab) -> str:
    admin, cluster = lab.admin, lab.cluster
    same(
        [(cluster.broker_name, 0, cluster.broker)],
        [(one.broker_name, one.broker_id, one.address) for one in admin.cluster()],
        "cluster",
    )
    info = admin.broker_info(cluster.broker_name)
    check("brokerVersionDesc" in info, f"no version in {sorted(info)[:5]}")
    same(cluster.broker_name, admin.broker_config(cluster.broker).get("brokerName"), "brokerName")
    admin.update_broker_config(cluster.broker_name, {"fileReservedTime": "70"})
    same("70", admin.broker_config(cluster.broker_name).get("fileReservedTime"), "changed setting")
    return f"cluster, info, settings of {info['brokerVersionDesc']}"


def admin_lag_and_reset(lab: Lab) -> str:
    topic, group, admin = lab.topic(), lab.name("group"), lab.admin
    bodies = lab.send(topic, texts(40))
    consumer, seen = lab.collect(topic, group)
    seen.wait_for(bodies)
    consumer.stop()
    rows = [row for row in admin.group_lag(group) if row.topic == topic]
    same((40, 0), (sum(row.committed for row in rows), lab.lag(group, topic)), "committed and lag")
    check(group in admin.topic_groups(topic), f"{group} is not among the topic's groups")
    moved = admin.reset_offsets(group, topic, "first")
    same({0}, set(moved.values()), "offsets after the reset")
    same(40, lab.lag(group, topic), "lag after the reset")
    again, more = lab.collect(topic, group)
    more.wait_for(bodies)
    again.stop()
    more.check_once(bodies)
    admin.reset_offsets(group, topic, "first", queue=lab.queues(topic)[0])
    check(0 < lab.lag(group, topic) < 40, f"lag {lab.lag(group, topic)} after one queue's reset")
    admin.reset_offsets(group, topic, "last")
    same(0, lab.lag(group, topic), "lag at the end")
    return "to the first with 40 messages redelivered, one queue only, and to the end"


def admin_reset_online(lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    bodies = lab.send(topic, texts(40))
    _, seen = lab.collect(topic, group)
    seen.wait_for(bodies)
    # A 4.9 broker refuses to reset a group that has not committed yet.
    wait_for(lambda: lab.lag(group, topic) == 0, lambda: "nothing was committed")
    lab.admin.reset_offsets(group, topic, "first")
    wait_for(lambda: len(seen) >= 80, lambda: f"{len(seen)} of 80 after the reset")
    same({2}, {seen.bodies.count(body) for body in bodies}, "deliveries of each message")
    return "a running consumer went back to the start"


def admin_query(lab: Lab) -> str:
    topic, producer, admin = lab.topic(), lab.producer(), lab.admin
    receipts = [
        producer.send(Message(topic, f"m-{n}".encode(), keys=[f"key-{n}", "shared"]))
        for n in range(8)
    ]
    wait_for(lambda: len(admin.query(topic, "shared")) == 8, lambda: "the index is not up to date")
    same([b"m-3"], [message.body for message in admin.query(topic, "key-3")], "by key")
    same([], admin.query(topic, "no-such-key"), "by an unused key")
    one = receipts[5]
    same(b"m-5", admin.message(one.offset_msg_id).body, "by offset id")
    same(b"m-5", admin.message(one.msg_id, topic=topic).body, "by unique id")
    try:
        admin.message(one.msg_id[:-4] + "FFFF", topic=topic)
    except PenstockError as error:
        return f"by key, unique id and offset id; an unknown id: {type(error).__name__}"
    check(False, "an unknown id was found")
    return ""


def admin_clients(lab: Lab) -> str:
    topic, group, admin = lab.topic(), lab.name("group"), lab.admin
    consumer, _ = lab.collect(topic, group)
    wait_for(lambda: len(consumer.assignment()) == 4, lambda: "no queues")
    clients = admin.clients(group)
    same([consumer.client_id], [client.client_id for client in clients], "clients")
    check(topic in {one.topic for one in admin.subscriptions(group)}, "subscription is missing")
    info = admin.running_info(group, consumer.client_id, stacks=True)
    held = {queue for queue in info.mq_table if queue.topic == topic}
    same(consumer.assignment(), held, "queues in the running info")
    same([], admin.clients(lab.name("unknown")), "clients of an unknown group")
    producer = lab.producer()
    producer.send(Message(topic, b"hello"))
    wait_for(
        lambda: producer.client_id in {c.client_id for c in admin.producers(lab.name("producer"))},
        lambda: "the producer is not listed",
        40,
    )
    return f"{clients[0].language} client with 4 queues, and a producer"


def admin_consume_directly(lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    receipt = lab.producer().send(Message(topic, b"again"))
    consumer, seen = lab.collect(topic, group)
    seen.wait_for(["again"])
    result = lab.admin.consume_directly(group, consumer.client_id, receipt.offset_msg_id)
    same(["again", "again"], seen.bodies, "messages of the handler")
    return f"handled again at an operator's request: {result.consume_result}"


def admin_reads_queues(lab: Lab) -> str:
    topic = lab.topic(queues=1)
    lab.send(topic, texts(70))
    queue: MessageQueue = lab.queues(topic)[0]
    part = lab.admin.messages(queue, 60)
    same([f"m-{n}" for n in range(60, 70)], [one.body.decode() for one in part.messages], "slice")
    same((70, 0, 70), (part.next_offset, part.min_offset, part.max_offset), "bounds")
    found: list[StoredMessage] = lab.read_all(topic, 70)
    same(list(range(70)), [message.queue_offset for message in found], "offsets")
    return "70 messages read without a group"
