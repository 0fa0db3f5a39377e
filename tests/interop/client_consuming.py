"""Our push consumer on a real broker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from datetime import UTC, datetime

from tests.interop.client_lab import Lab, Seen, check, same, texts, wait_for

from penstock import Message, MessageQueue, PushConsumer, RetryLater, StoredMessage, aio


class InOrder:
    """An orderly handler that records the order of each queue and any overlapping calls."""

    def __init__(self, pause: float = 0.0) -> None:
        self._lock = threading.Lock()
        self._running: set[MessageQueue] = set()
        self._pause = pause
        self.offsets: dict[MessageQueue, list[int]] = defaultdict(list)
        self.together = 0
        self.seen = Seen()

    def __call__(self, message: StoredMessage) -> None:
        with self._lock:
            self.together += message.queue in self._running
            self._running.add(message.queue)
        if self._pause:
            time.sleep(self._pause)
        with self._lock:
            self._running.discard(message.queue)
            self.offsets[message.queue].append(message.queue_offset)
        self.seen.add(message)

    def check(self, *, again: bool = False) -> None:
        """Check the order and that no calls overlapped; with ``again`` redeliveries are allowed."""
        same(0, self.together, "overlapping handler calls in one queue")
        for queue, offsets in self.offsets.items():
            firsts = list(dict.fromkeys(offsets)) if again else offsets
            check(firsts == sorted(firsts), f"{queue} was delivered in the order {offsets[:50]}")


def push_concurrent(lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    before = lab.send(topic, texts(60, "before"))
    consumer, seen = lab.collect(topic, group)
    after = lab.send(topic, texts(60, "after"))
    seen.wait_for(before + after)
    consumer.stop()
    seen.check_once(before + after)
    lab.check_no_lag(group, topic)
    return "120 messages once, no lag left"


def push_async_handlers(lab: Lab) -> str:
    topic, seen, consumer = lab.topic(), Seen(), lab.push()
    bodies = lab.send(topic, texts(80))

    @consumer.on(topic)
    async def handle(message: StoredMessage) -> None:
        await asyncio.sleep(0.005)
        seen.add(message)

    consumer.start()
    seen.wait_for(bodies)
    consumer.stop()
    seen.check_once(bodies)
    lab.check_no_lag(lab.name("group"), topic)
    return "80 messages once by coroutines of the sync class"


def push_batches(lab: Lab) -> str:
    topic, seen, consumer = lab.topic(), Seen(), lab.push(batch_size=10)
    bodies = lab.send(topic, texts(100))
    sizes: list[int] = []

    @consumer.on(topic)
    def handle(messages: list[StoredMessage]) -> None:
        sizes.append(len(messages))
        seen.add(*messages)

    consumer.start()
    seen.wait_for(bodies)
    consumer.stop()
    seen.check_once(bodies)
    check(1 < max(sizes) <= 10, f"batches of {sizes}")
    return f"100 messages, each once, in {len(sizes)} batches"


def aio_push(lab: Lab) -> str:
    topic, seen = lab.topic(), Seen()
    bodies = lab.send(topic, texts(80))

    async def run() -> None:
        consumer = aio.PushConsumer(lab.name("group"), start_from="first", **lab.settings)

        @consumer.on(topic)
        async def handle(message: StoredMessage) -> None:
            await asyncio.sleep(0.001)
            seen.add(message)

        async with consumer:
            async with asyncio.timeout(50):
                while len(seen) < len(bodies):  # noqa: ASYNC110  handlers of other classes share Seen
                    await asyncio.sleep(0.05)
            same(4, len(await consumer.assignment()), "queues held")

    asyncio.run(run())
    seen.check_once(bodies)
    lab.check_no_lag(lab.name("group"), topic)
    return "80 messages once, no lag left"


def push_many(lab: Lab) -> str:
    topic, producer = lab.topic(queues=8), lab.producer(linger="5ms")
    bodies = texts(5000)
    futures = [producer.submit(Message(topic, body.encode())) for body in bodies]
    for future in futures:
        future.result(30)
    consumer, seen = lab.collect(topic)
    seen.wait_for(bodies)
    consumer.stop()
    seen.check_once(bodies)
    lab.check_no_lag(lab.name("group"), topic)
    return "5000 messages once, no lag left"


def push_orderly(lab: Lab) -> str:
    topic, handler, consumer = lab.topic(), InOrder(0.001), lab.push(orderly=True)
    before = lab.send(topic, texts(100, "before"))
    consumer.on(topic)(handler)
    consumer.start()
    after = lab.send(topic, texts(100, "after"))
    handler.seen.wait_for(before + after)
    consumer.stop()
    handler.check()
    handler.seen.check_once(before + after)
    lab.check_no_lag(lab.name("group"), topic)
    return "200 messages in the order of 4 queues, one at a time"


def push_orderly_suspend(lab: Lab) -> str:
    topic, consumer = lab.topic(queues=1), lab.push(orderly=True)
    bodies = lab.send(topic, texts(20))
    tries: list[str] = []

    @consumer.on(topic)
    def handle(message: StoredMessage) -> None:
        tries.append(message.body.decode())
        if message.body == b"m-7" and tries.count("m-7") < 3:
            raise RetryLater(1)

    consumer.start()
    wait_for(lambda: "m-19" in tries, lambda: f"only {tries}")
    consumer.stop()
    same(bodies[:7] + ["m-7"] * 3 + bodies[8:], tries, "handler calls")
    return "the third attempt succeeded; the queue waited"


def push_orderly_rebalance(lab: Lab) -> str:
    topic, handler, group = lab.topic(queues=4), InOrder(0.01), lab.name("group")
    bodies = texts(400)
    sender = threading.Thread(target=lab.send, args=(topic, bodies))
    first, second = (lab.push(group, orderly=True) for _ in range(2))
    for consumer in (first, second):
        consumer.on(topic)(handler)
    first.start()
    wait_for(lambda: len(first.assignment()) == 4, lambda: f"{first.assignment()} held")
    sender.start()
    second.start()
    _wait_for_shares(first, second, 2)
    second.stop()
    sender.join()
    handler.seen.wait_for(bodies)
    first.stop()
    handler.check(again=True)
    twice = len(handler.seen) - len(bodies)
    lab.check_no_lag(group, topic)
    return f"400 messages in order while queues moved and returned; {twice} redelivered"


def _wait_for_shares(first: PushConsumer, second: PushConsumer, share: int) -> None:
    def shared() -> bool:
        one, other = first.assignment(), second.assignment()
        return len(one) == len(other) == share and not one & other

    wait_for(shared, lambda: f"{len(first.assignment())} and {len(second.assignment())} queues")


def push_rebalance(lab: Lab) -> str:
    topic, group = lab.topic(queues=8), lab.name("group")
    first, seen = lab.collect(topic, group)
    wait_for(lambda: len(first.assignment()) == 8, lambda: f"{first.assignment()} held")
    second, other = lab.collect(topic, group)
    _wait_for_shares(first, second, 4)
    bodies = lab.send(topic, texts(80))
    wait_for(
        lambda: set(seen.bodies) | set(other.bodies) >= set(bodies),
        lambda: f"{len(seen)} and {len(other)} of 80",
    )
    check(len(seen) > 0 and len(other) > 0, f"shares {len(seen)} and {len(other)}")
    second.stop()
    wait_for(lambda: len(first.assignment()) == 8, lambda: f"{first.assignment()} held afterwards")
    rest = lab.send(topic, texts(40, "rest"))
    seen.wait_for(rest)
    both = Seen()
    both.add(*seen.messages, *other.messages)
    both.check_once(bodies + rest)
    return f"8 queues, 4 and 4, 8 again; shares {len(seen)} and {len(other)}"


def push_graceful_stop(lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    bodies = lab.send(topic, texts(300))
    both, consumer = Seen(), lab.push(group)

    @consumer.on(topic)
    def slow(message: StoredMessage) -> None:
        time.sleep(0.01)
        both.add(message)

    consumer.start()
    wait_for(lambda: len(both) >= 50, lambda: f"{len(both)} handled")
    consumer.stop()
    handled = len(both)
    check(handled < 300, "everything was handled before the stop")
    after = lab.push(group)
    after.on(topic)(both.add)
    after.start()
    both.wait_for(bodies)
    after.stop()
    both.check_once(bodies)
    return f"stopped after {handled} of 300; the next consumer got the rest, nothing twice"


def push_tags(lab: Lab) -> str:
    topic, producer, seen, consumer = lab.topic(), lab.producer(), Seen(), lab.push()
    for number in range(60):
        producer.send(Message(topic, f"m-{number}".encode(), tag="abc"[number % 3]))
    consumer.on(topic, tags="a || c")(seen.add)
    consumer.start()
    wanted = [f"m-{number}" for number in range(60) if number % 3 != 1]
    seen.wait_for(wanted)
    wait_for(
        lambda: lab.lag(lab.name("group"), topic) == 0,
        lambda: "the committed offset stops at filtered messages",
    )
    consumer.stop()
    seen.check_once(wanted)
    return "40 of 60, the committed offset passes the rest"


def push_sql92(lab: Lab) -> str:
    topic, producer, seen, consumer = lab.topic(), lab.producer(), Seen(), lab.push()
    for number in range(60):
        properties = {"number": str(number), "colour": "blue" if number % 2 else "red"}
        producer.send(Message(topic, f"m-{number}".encode(), properties=properties))
    consumer.on(topic, sql="number BETWEEN 10 AND 39 AND colour = 'blue'")(seen.add)
    consumer.start()
    wanted = [f"m-{number}" for number in range(11, 40, 2)]
    seen.wait_for(wanted)
    wait_for(
        lambda: lab.lag(lab.name("group"), topic) == 0,
        lambda: "the committed offset stops at filtered messages",
    )
    consumer.stop()
    seen.check_once(wanted)
    return "15 of 60, the committed offset passes the rest"


def push_broadcast(lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    pair = [lab.collect(topic, group, model="broadcasting") for _ in range(2)]
    for consumer, _ in pair:
        wait_for(lambda c=consumer: len(c.assignment()) == 4, lambda: "not all queues")  # type: ignore[misc]
    bodies = lab.send(topic, texts(40))
    for consumer, seen in pair:
        seen.wait_for(bodies)
        consumer.stop()
        seen.check_once(bodies)
    return "both got all 40"


def push_start_positions(lab: Lab) -> str:
    topic, producer = lab.topic(queues=1), lab.producer()
    early = lab.send(topic, texts(5, "early"), producer)
    # A 4.9 broker returns the message nearest to a time, and start times are in whole seconds, so
    # the time must be closer to the message after it.
    time.sleep(2.2)
    moment = datetime.now(UTC).replace(microsecond=0)
    late = lab.send(topic, texts(5, "late"), producer)
    starts: dict[str, str | datetime] = {"first": "first", "time": moment, "last": "last"}
    # A consumer with local offsets chooses its start position without the broker.
    members = {
        where: lab.collect(topic, lab.name(where), start_from=start, model="broadcasting")
        for where, start in starts.items()
    }
    # A broker returns 0 to a new group while the first message of the queue is in its memory.
    young, from_young = lab.collect(topic, lab.name("young"), start_from="last")
    members["first"][1].wait_for(early + late)
    members["time"][1].wait_for(late)
    from_young.wait_for(early + late)
    last = members["last"][0]
    wait_for(lambda: len(last.assignment()) == 1, lambda: "no queue")
    time.sleep(1.0)
    new = lab.send(topic, texts(3, "new"), producer)
    wanted = {"first": early + late + new, "time": late + new, "last": new}
    for where, (consumer, seen) in members.items():
        seen.wait_for(new)
        consumer.stop()
        seen.check_once(wanted[where])
    young.stop()
    return "first, by time and last are exact; a new group starts a new topic at 0"


def push_pause_resume_seek(lab: Lab) -> str:
    topic = lab.topic(queues=1)
    bodies = lab.send(topic, texts(10))
    consumer, seen = lab.collect(topic)
    seen.wait_for(bodies)
    consumer.pause()
    time.sleep(0.5)
    lab.send(topic, texts(1, "probe"))
    # A pull that the broker already held may still return the message that completes it.
    time.sleep(1.0)
    paused = lab.send(topic, texts(5, "paused"))
    time.sleep(2.0)
    check(not set(seen.bodies) & set(paused), f"paused, but {seen.bodies[10:]} arrived")
    consumer.resume()
    seen.wait_for(paused + texts(1, "probe"))
    queue = next(iter(consumer.assignment()))
    consumer.seek(queue, 4)
    wait_for(lambda: seen.bodies.count("m-9") == 2, lambda: f"after the seek: {seen.bodies[16:]}")
    same(bodies[4:], [b for b in seen.bodies[16:] if b.startswith("m-")], "after the seek")
    return "nothing while paused, everything afterwards; again from offset 4 after a seek"
