"""Groups with a Java and a Penstock member: shared queues, locks, retries, and both producers."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from tests.interop.client_lab import Lab, check, same, texts, wait_for
from tests.interop.client_scenarios import Run, run_clients
from tests.interop.java_members import Got, JavaMembers, java_members
from tests.interop.results import Cell
from tests.interop.servers import Cluster
from tests.interop.toolchain import Toolchain

from penstock import Message, PushConsumer, RetryLater, StoredMessage

SECTION = "groups of Java and Penstock members"
Source = Callable[[], list[Got]]
CLOCK_STEP = 0.002
"""Seconds: Java's times are whole milliseconds."""


class OurMember:
    """A Penstock consumer that notes what it handled and when."""

    def __init__(self, lab: Lab, name: str, group: str, topic: str, **options: object) -> None:
        self.name = name
        self.pause = 0.0
        self.fails_first = False
        self._got: list[Got] = []
        self._lock = threading.Lock()
        self.consumer: PushConsumer = lab.push(group, **options)
        self.consumer.on(topic)(self._handle)

    def _handle(self, message: StoredMessage) -> None:
        began = time.time()
        time.sleep(self.pause)
        got = Got(
            self.name,
            message.queue.queue_id,
            message.queue_offset,
            message.reconsume_times,
            began,
            time.time(),
            message.body.decode(),
        )
        with self._lock:
            self._got.append(got)
        if self.fails_first and message.reconsume_times == 0:
            raise RetryLater(1)

    def got(self) -> list[Got]:
        with self._lock:
            return list(self._got)

    def assigned(self) -> set[int]:
        return {queue.queue_id for queue in self.consumer.assignment()}


def _wait_for_split(java: JavaMembers, member: str, ours: OurMember, queues: int) -> None:
    def split() -> bool:
        theirs, mine = java.assigned(member), ours.assigned()
        return (
            theirs | mine == set(range(queues)) and not theirs & mine and len(mine) == queues // 2
        )

    wait_for(split, lambda: f"Java holds {java.assigned(member)}, Penstock {ours.assigned()}")


def _wait_for_bodies(sources: Sequence[Source], wanted: Iterable[str]) -> None:
    missing = set(wanted)

    def all_there() -> bool:
        for source in sources:
            missing.difference_update(got.body for got in source())
        return not missing

    wait_for(all_there, lambda: f"{len(missing)} messages lost, such as {sorted(missing)[:3]}")


def _send_both(lab: Lab, java: JavaMembers, topic: str, count: int, prefix: str) -> list[str]:
    """Half of the messages from each producer, keys shared; returns all bodies."""
    producer = lab.producer()
    ours = texts(count, f"{prefix}p")
    for number, body in enumerate(ours):
        producer.send(Message(topic, body.encode(), sharding_key=f"k{number % 8}"))
    java.tell("send", topic, count, f"{prefix}j")
    return ours + texts(count, f"{prefix}j")


def shared_queues(java: JavaMembers, lab: Lab) -> str:
    topic, group, member = lab.topic(queues=8), lab.name("group"), lab.name("java")
    ours = OurMember(lab, "penstock", group, topic)
    java.consume(member, "concurrent", group, topic)
    ours.consumer.start()
    _wait_for_split(java, member, ours, 8)
    sources: list[Source] = [partial(java.got, member), ours.got]
    bodies = _send_both(lab, java, topic, 100, "a")
    _wait_for_bodies(sources, bodies)
    shares = [len(source()) for source in sources]
    check(min(shares) > 0, f"shares {shares}")
    java.tell("stop", member)
    wait_for(lambda: len(ours.assigned()) == 8, lambda: f"Penstock holds {ours.assigned()}")
    bodies += _send_both(lab, java, topic, 40, "b")
    _wait_for_bodies(sources, bodies)
    ours.consumer.stop()
    counted = Counter(got.body for source in sources for got in source())
    twice = [body for body, count in counted.items() if count > 1]
    same([], twice, "messages that came twice")
    same(set(bodies), set(counted), "what was consumed")
    lab.check_no_lag(group, topic)
    return f"4 and 4 queues, {shares[0]} by Java and {shares[1]} by Penstock, each once; then all 8"


def check_orderly(got: Sequence[Got]) -> list[str]:
    """Per queue: nobody beside another, first deliveries in order; tells what came again."""
    queues: dict[int, list[Got]] = defaultdict(list)
    for one in sorted(got, key=lambda one: (one.began, one.ended)):
        queues[one.queue_id].append(one)
    again: list[str] = []
    for queue_id, calls in queues.items():
        for before, after in pairwise(calls):
            check(
                after.began >= before.ended - CLOCK_STEP,
                f"queue {queue_id} was handled by two at once: {before} and {after}",
            )
        offsets = [one.queue_offset for one in calls]
        firsts = list(dict.fromkeys(offsets))
        check(firsts == sorted(firsts), f"queue {queue_id} out of order: {offsets[:60]}")
        by = {one.queue_offset: one.member for one in reversed(calls)}
        again += [
            f"{queue_id}/{one.queue_offset} by {one.member} after {by[one.queue_offset]}"
            for at, one in enumerate(calls)
            if one.queue_offset in offsets[:at]
        ]
    return again


def orderly_locks(java: JavaMembers, lab: Lab) -> str:
    topic, group, member = lab.topic(queues=4), lab.name("group"), lab.name("java")
    java.consume(member, "orderly", group, topic, 5)
    wait_for(lambda: len(java.assigned(member)) == 4, lambda: "Java does not hold the queues")
    bodies: list[str] = []
    sender = threading.Thread(
        target=lambda: bodies.extend(lab.send(topic, texts(600, "p"), lab.producer()))
    )
    sender.start()
    ours = OurMember(lab, "penstock", group, topic, orderly=True)
    ours.pause = 0.005
    ours.consumer.start()
    _wait_for_split(java, member, ours, 4)
    sender.join()
    bodies += _send_both(lab, java, topic, 100, "x")
    sources: list[Source] = [partial(java.got, member), ours.got]
    _wait_for_bodies(sources, bodies)
    java.tell("stop", member)
    wait_for(lambda: len(ours.assigned()) == 4, lambda: f"Penstock holds {ours.assigned()}")
    bodies += _send_both(lab, java, topic, 40, "y")
    _wait_for_bodies(sources, bodies)
    back = lab.name("java-again")
    java.consume(back, "orderly", group, topic, 5)
    _wait_for_split(java, back, ours, 4)
    ours.consumer.stop()
    sources.append(partial(java.got, back))
    bodies += _send_both(lab, java, topic, 40, "z")
    _wait_for_bodies(sources, bodies)
    java.tell("stop", back)
    got = [one for source in sources for one in source()]
    again = check_orderly(got)
    same(set(bodies), {one.body for one in got}, "what was consumed")
    shares = [len(source()) for source in sources]
    check(min(shares) > 0, f"shares {shares}")
    lab.check_no_lag(group, topic)
    told = f"{len(bodies)} messages in order over three moves of the locks"
    return f"{told}; seen again: {', '.join(again) or 'nothing'}"


def hand_over(java: JavaMembers, lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    bodies: list[str] = []
    got: list[Got] = []
    past: Source = got.copy
    for round_number in range(4):
        bodies += _send_both(lab, java, topic, 30, f"r{round_number}")
        if round_number % 2:
            ours = OurMember(lab, f"penstock-{round_number}", group, topic)
            ours.consumer.start()
            _wait_for_bodies([past, ours.got], bodies)
            ours.consumer.stop()
            got += ours.got()
        else:
            member = lab.name(f"java-{round_number}")
            java.consume(member, "concurrent", group, topic)
            _wait_for_bodies([past, partial(java.got, member)], bodies)
            java.tell("stop", member)
            got += java.got(member)
    counted = Counter(one.body for one in got)
    same([], [body for body, count in counted.items() if count > 1], "messages that came twice")
    lab.check_no_lag(group, topic)
    return "Java, Penstock, Java, Penstock: each went on where the other stopped"


def retries(java: JavaMembers, lab: Lab) -> str:
    topic, group, member = lab.topic(), lab.name("group"), lab.name("java")
    ours = OurMember(lab, "penstock", group, topic)
    ours.fails_first = True
    java.consume(member, "failing", group, topic)
    ours.consumer.start()
    _wait_for_split(java, member, ours, 4)
    bodies = _send_both(lab, java, topic, 20, "a")

    def attempts() -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for one in java.got(member) + ours.got():
            found[one.body].append(one.attempt)
        return found

    wait_for(
        lambda: sum(1 in tries for tries in attempts().values()) == len(bodies),
        lambda: f"{sum(1 in tries for tries in attempts().values())} of {len(bodies)} retried",
        80,
    )
    java.tell("stop", member)
    ours.consumer.stop()
    odd = {body: tries for body, tries in attempts().items() if sorted(tries) != [0, 1]}
    same({}, odd, "attempts other than 0 and 1")
    first = {one.body for one in ours.got() if one.attempt == 0}
    second = {one.body for one in ours.got() if one.attempt == 1}
    check(0 < len(first) < len(bodies), f"Penstock failed {len(first)} of {len(bodies)}")
    crossed = len(first ^ second)
    return f"{len(bodies)} failed once and passed at attempt 1, {crossed} of them at the other kind"


def messages_across(java: JavaMembers, lab: Lab) -> str:
    topic, member = lab.topic(), lab.name("java")
    body = b"a text that repeats itself; " * 4000
    receipt = lab.producer().send(
        Message(topic, body, tag="bad", keys=["k-1", "k-2"], properties={"colour": "grün"})
    )
    msg_id = java.tell("send-big", topic)
    java.consume(member, "concurrent", lab.name("theirs"), topic)
    _, seen = lab.collect(topic, lab.name("ours"))
    wait_for(
        lambda: len(java.fields(member)) >= 2 and len(seen) >= 2,
        lambda: f"Java got {len(java.fields(member))}, Penstock {len(seen)} of 2",
    )
    java.tell("stop", member)
    same(
        {
            (receipt.msg_id, len(body), "k-1 k-2", "bad", "grün"),
            (msg_id, len(body), "k-1 k-2", "bad", "grün"),
        },
        {
            (one["msg_id"], one["size"], one["keys"], one["tags"], one["colour"])
            for one in java.fields(member)
        },
        "what Java saw",
    )
    same(
        {
            (receipt.msg_id, body, ("k-1", "k-2"), "bad", "grün"),
            (msg_id, body, ("k-1", "k-2"), "bad", "grün"),
        },
        {
            (one.msg_id, one.body, tuple(one.keys), one.tag, one.properties.get("colour"))
            for one in seen.messages
        },
        "what Penstock saw",
    )
    return "compressed bodies, ids, keys, tags and properties alike on both sides"


def same_queues(java: JavaMembers, lab: Lab) -> str:
    topic = lab.topic(queues=5)
    _send_both(lab, java, topic, 40, "a")
    places: dict[int, set[int]] = defaultdict(set)
    for message in lab.read_all(topic, 80):
        number = int(message.body.decode().rpartition("-")[2])
        places[number % 8].add(message.queue.queue_id)
    spread = {key: queues for key, queues in places.items() if len(queues) != 1}
    same({}, spread, "keys in more than one queue")
    return "both producers send a key to the same queue"


def requests(java: JavaMembers, lab: Lab) -> str:
    to_java, to_us, member = lab.topic("to-java"), lab.topic("to-us"), lab.name("java")
    java.consume(member, "replying", lab.name("theirs"), to_java)
    producer, consumer = lab.producer(), lab.push(lab.name("ours"))

    @consumer.on(to_us)
    def answer(message: StoredMessage) -> None:
        producer.reply(message, b"penstock says " + message.body)

    consumer.start()
    wait_for(lambda: len(java.assigned(member)) == 4, lambda: "Java holds no queues")
    wait_for(lambda: len(consumer.assignment()) == 4, lambda: "Penstock holds no queues")
    reply = producer.request(Message(to_java, b"hello"), timeout=20)
    same(b"java says hello", reply.body, "the reply from Java")
    same("penstock says hello", java.tell("ask", to_us, "hello"), "the reply from Penstock")
    java.tell("stop", member)
    return "each answered the other's request"


_RUNS: tuple[Callable[[JavaMembers, Lab], str], ...] = (
    shared_queues,
    orderly_locks,
    hand_over,
    retries,
    messages_across,
    same_queues,
    requests,
)
NAMES: tuple[str, ...] = tuple(f"group_{run.__name__}" for run in _RUNS)


def run_groups(
    toolchain: Toolchain, cluster: Cluster, names: Sequence[str], column: str
) -> Iterator[Cell]:
    """Run ``names`` one after the other with one JVM; yields a cell as each ends."""
    if not names:
        return
    with java_members(toolchain, cluster) as java:
        runs: Mapping[str, Run] = {
            name: partial(run, java) for name, run in zip(NAMES, _RUNS, strict=True)
        }
        yield from run_clients(cluster, names, column, runs=runs, section=SECTION, parallel=1)
