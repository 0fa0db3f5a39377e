"""Groups of Penstock and Java or Go members: shared queues, locks, retries, producers."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from tests.interop.client_lab import Failed, Lab, NotApplicable, check, same, texts, wait_for
from tests.interop.client_scenarios import Run, run_clients
from tests.interop.go_clients import client_version, prepare_go
from tests.interop.members import Got, Members, go_members, java_members
from tests.interop.programs import not_run
from tests.interop.results import Cell
from tests.interop.servers import Cluster
from tests.interop.toolchain import Toolchain, Unavailable

from penstock import Message, PushConsumer, RetryLater, StoredMessage
from penstock.errors import RequestCodeNotSupported

Source = Callable[[], list[Got]]
CLOCK_STEP = 0.002
"""Seconds: the other clients report whole milliseconds."""


_POP_ROUNDS = 30
SPLIT_SECONDS = 110.0
"""The Go client releases a queue without unlocking it; the lock then expires after 60 s."""


class OurMember:
    """A Penstock consumer that records the messages it handled, with times."""

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


def _wait_for_split(others: Members, member: str, ours: OurMember, queues: int) -> None:
    def split() -> bool:
        theirs, mine = others.assigned(member), ours.assigned()
        return (
            theirs | mine == set(range(queues)) and not theirs & mine and len(mine) == queues // 2
        )

    wait_for(
        split,
        lambda: f"{others.kind} holds {others.assigned(member)}, Penstock {ours.assigned()}",
        SPLIT_SECONDS,
    )


def _wait_for_bodies(sources: Sequence[Source], wanted: Iterable[str]) -> None:
    missing = set(wanted)

    def all_there() -> bool:
        for source in sources:
            missing.difference_update(got.body for got in source())
        return not missing

    wait_for(all_there, lambda: f"{len(missing)} messages lost, such as {sorted(missing)[:3]}")


def _send_both(lab: Lab, others: Members, topic: str, count: int, prefix: str) -> list[str]:
    """Send half of the messages from each producer, with shared keys; return all bodies."""
    producer = lab.producer()
    ours = texts(count, f"{prefix}p")
    for number, body in enumerate(ours):
        producer.send(Message(topic, body.encode(), sharding_key=f"k{number % 8}"))
    others.command("send", topic, count, f"{prefix}j")
    return ours + texts(count, f"{prefix}j")


def shared_queues(others: Members, lab: Lab) -> str:
    topic, group, member = lab.topic(queues=8), lab.name("group"), lab.name("other")
    ours = OurMember(lab, "penstock", group, topic)
    others.consume(member, "concurrent", group, topic)
    ours.consumer.start()
    _wait_for_split(others, member, ours, 8)
    sources: list[Source] = [partial(others.got, member), ours.got]
    bodies = _send_both(lab, others, topic, 100, "a")
    _wait_for_bodies(sources, bodies)
    shares = [len(source()) for source in sources]
    check(min(shares) > 0, f"shares {shares}")
    others.command("stop", member)
    wait_for(lambda: len(ours.assigned()) == 8, lambda: f"Penstock holds {ours.assigned()}")
    bodies += _send_both(lab, others, topic, 40, "b")
    _wait_for_bodies(sources, bodies)
    ours.consumer.stop()
    handled = [Counter(got.body for got in source()) for source in sources]
    for counted in handled:
        twice = [body for body, count in counted.items() if count > 1]
        same([], twice, "messages delivered to one member twice")
    same(set(bodies), set(handled[0]) | set(handled[1]), "consumed messages")
    lab.check_no_lag(group, topic)
    # The Java client sends its last commit one-way, so the notification that it left may overtake
    # the commit: then its last messages are redelivered.
    again = len(set(handled[0]) & set(handled[1]))
    return (
        f"4 and 4 queues, {shares[0]} by {others.kind} and {shares[1]} by Penstock, then 8; "
        f"{again} redelivered when {others.kind} left"
    )


def check_orderly(got: Sequence[Got]) -> list[str]:
    """Check, per queue, for overlapping calls and for order; return the redeliveries."""
    queues: dict[int, list[Got]] = defaultdict(list)
    for one in sorted(got, key=lambda one: (one.began, one.ended)):
        queues[one.queue_id].append(one)
    again: list[str] = []
    for queue_id, calls in queues.items():
        for before, after in pairwise(calls):
            check(
                after.began >= before.ended - CLOCK_STEP,
                f"queue {queue_id} was handled by two members at once: {before} and {after}",
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


def orderly_locks(others: Members, lab: Lab) -> str:
    topic, group, member = lab.topic(queues=4), lab.name("group"), lab.name("other")
    others.consume(member, "orderly", group, topic, 5)
    wait_for(
        lambda: len(others.assigned(member)) == 4,
        lambda: "the other client does not hold the queues",
    )
    bodies: list[str] = []
    sender = threading.Thread(
        target=lambda: bodies.extend(lab.send(topic, texts(600, "p"), lab.producer()))
    )
    sender.start()
    ours = OurMember(lab, "penstock", group, topic, orderly=True)
    ours.pause = 0.005
    ours.consumer.start()
    _wait_for_split(others, member, ours, 4)
    sender.join()
    bodies += _send_both(lab, others, topic, 100, "x")
    sources: list[Source] = [partial(others.got, member), ours.got]
    _wait_for_bodies(sources, bodies)
    others.command("stop", member)
    wait_for(lambda: len(ours.assigned()) == 4, lambda: f"Penstock holds {ours.assigned()}")
    bodies += _send_both(lab, others, topic, 40, "y")
    _wait_for_bodies(sources, bodies)
    back = lab.name("other-again")
    others.consume(back, "orderly", group, topic, 5)
    _wait_for_split(others, back, ours, 4)
    ours.consumer.stop()
    sources.append(partial(others.got, back))
    bodies += _send_both(lab, others, topic, 40, "z")
    _wait_for_bodies(sources, bodies)
    others.command("stop", back)
    got = [one for source in sources for one in source()]
    again = check_orderly(got)
    same(set(bodies), {one.body for one in got}, "consumed messages")
    shares = [len(source()) for source in sources]
    check(min(shares) > 0, f"shares {shares}")
    lab.check_no_lag(group, topic)
    summary = f"{len(bodies)} messages in order while the locks moved three times"
    return f"{summary}; redelivered: {', '.join(again) or 'nothing'}"


def hand_over(others: Members, lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    bodies: list[str] = []
    got: list[Got] = []
    past: Source = got.copy
    for round_number in range(4):
        bodies += _send_both(lab, others, topic, 30, f"r{round_number}")
        if round_number % 2:
            ours = OurMember(lab, f"penstock-{round_number}", group, topic)
            ours.consumer.start()
            _wait_for_bodies([past, ours.got], bodies)
            ours.consumer.stop()
            got += ours.got()
        else:
            member = lab.name(f"other-{round_number}")
            others.consume(member, "concurrent", group, topic)
            _wait_for_bodies([past, partial(others.got, member)], bodies)
            others.command("stop", member)
            got += others.got(member)
    counted = Counter(one.body for one in got)
    same([], [body for body, count in counted.items() if count > 1], "messages delivered twice")
    lab.check_no_lag(group, topic)
    return (
        f"{others.kind}, Penstock, {others.kind}, Penstock: each continued where the other stopped"
    )


def retries(others: Members, lab: Lab) -> str:
    topic, group, member = lab.topic(), lab.name("group"), lab.name("other")
    ours = OurMember(lab, "penstock", group, topic)
    ours.fails_first = True
    others.consume(member, "failing", group, topic)
    ours.consumer.start()
    _wait_for_split(others, member, ours, 4)
    bodies = _send_both(lab, others, topic, 20, "a")

    def attempts() -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for one in others.got(member) + ours.got():
            found[one.body].append(one.attempt)
        return found

    wait_for(
        lambda: sum(1 in tries for tries in attempts().values()) == len(bodies),
        lambda: f"{sum(1 in tries for tries in attempts().values())} of {len(bodies)} retried",
        80,
    )
    others.command("stop", member)
    ours.consumer.stop()
    odd = {body: tries for body, tries in attempts().items() if sorted(tries) != [0, 1]}
    same({}, odd, "attempts other than 0 and 1")
    first = {one.body for one in ours.got() if one.attempt == 0}
    second = {one.body for one in ours.got() if one.attempt == 1}
    check(0 < len(first) < len(bodies), f"Penstock failed {len(first)} of {len(bodies)}")
    crossed = len(first ^ second)
    return f"{len(bodies)} failed once and succeeded at attempt 1, {crossed} in the other client"


def messages_across(others: Members, lab: Lab) -> str:
    topic, member = lab.topic(), lab.name("other")
    body = b"a text that repeats itself; " * 4000
    receipt = lab.producer().send(
        Message(topic, body, tag="bad", keys=["k-1", "k-2"], properties={"colour": "grün"})
    )
    msg_id = others.command("send-big", topic)
    others.consume(member, "concurrent", lab.name("theirs"), topic)
    _, seen = lab.collect(topic, lab.name("ours"))
    wait_for(
        lambda: len(others.fields(member)) >= 2 and len(seen) >= 2,
        lambda: f"{others.kind} got {len(others.fields(member))}, Penstock {len(seen)} of 2",
    )
    others.command("stop", member)
    same(
        {
            (receipt.msg_id, len(body), "k-1 k-2", "bad", "grün"),
            (msg_id, len(body), "k-1 k-2", "bad", "grün"),
        },
        {
            (one["msg_id"], one["size"], one["keys"], one["tags"], one["colour"])
            for one in others.fields(member)
        },
        f"messages received by {others.kind}",
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
        "messages received by Penstock",
    )
    return "compressed bodies, ids, keys, tags and properties equal on both sides"


def same_queues(others: Members, lab: Lab) -> str:
    topic = lab.topic(queues=5)
    _send_both(lab, others, topic, 40, "a")
    places: dict[int, set[int]] = defaultdict(set)
    for message in lab.read_all(topic, 80):
        number = int(message.body.decode().rpartition("-")[2])
        places[number % 8].add(message.queue.queue_id)
    spread = {key: queues for key, queues in places.items() if len(queues) != 1}
    same({}, spread, "keys in more than one queue")
    return "both producers send a key to the same queue"


def requests(others: Members, lab: Lab) -> str:
    to_other, to_us, member = lab.topic("to-other"), lab.topic("to-us"), lab.name("other")
    others.consume(member, "replying", lab.name("theirs"), to_other)
    producer, consumer = lab.producer(), lab.push(lab.name("ours"))

    @consumer.on(to_us)
    def answer(message: StoredMessage) -> None:
        producer.reply(message, b"penstock says " + message.body)

    consumer.start()
    wait_for(lambda: len(others.assigned(member)) == 4, lambda: "the other client holds no queues")
    wait_for(lambda: len(consumer.assignment()) == 4, lambda: "Penstock holds no queues")
    reply = producer.request(Message(to_other, b"hello"), timeout=20)
    same(f"{others.kind.lower()} says hello".encode(), reply.body, f"the reply from {others.kind}")
    same("penstock says hello", others.command("ask", to_us, "hello"), "the reply from Penstock")
    others.command("stop", member)
    return "each answered the other's request"


def popping(others: Members, lab: Lab) -> str:
    """Members of both clients pop one queue, pull it when the mode is set so, and pop again."""
    topic, group, member = lab.topic(queues=1), lab.name("group"), lab.name("other")
    ours = OurMember(lab, "penstock", group, topic, mode="auto", pop_batch_size=8)
    lab.admin.create_group(group)
    try:
        lab.admin.set_group_mode(group, topic, "pop")
        others.consume(member, "popping", group, topic)
    except (Failed, RequestCodeNotSupported) as missing:
        raise NotApplicable(f"no pop here: {missing}") from None
    ours.consumer.start()
    wait_for(lambda: ours.assigned() == {-1}, lambda: f"Penstock holds {ours.assigned()}")
    ours.pause = 0.01
    sources: list[Source] = [partial(others.got, member), ours.got]
    bodies: list[str] = []
    shares = [0, 0]
    # The other member may need a while before its first pop; ours would take all meanwhile.
    for number in range(_POP_ROUNDS):
        bodies += _send_both(lab, others, topic, 200, f"a{number}-")
        _wait_for_bodies(sources, bodies)
        shares = [len(source()) for source in sources]
        if min(shares):
            break
        time.sleep(1)
    check(min(shares) > 0, f"shares {shares} of one queue")
    same(len(bodies), sum(shares), "deliveries")
    ours.pause = 0.0
    for mode, prefix in (("pull", "b"), ("pop", "c")):
        lab.admin.set_group_mode(group, topic, mode)
        bodies += _send_both(lab, others, topic, 20, prefix)
        wait_for(
            lambda mode=mode: (-1 in ours.assigned()) == (mode == "pop"),  # type: ignore[misc]
            lambda: f"Penstock holds {ours.assigned()}",
            60,
        )
        bodies += _send_both(lab, others, topic, 20, f"{prefix}2")
        _wait_for_bodies(sources, bodies)
    others.command("stop", member)
    ours.consumer.stop()
    return f"one queue, {shares[0]} by {others.kind} and {shares[1]} by Penstock, each once"


_RUNS: tuple[Callable[[Members, Lab], str], ...] = (
    shared_queues,
    orderly_locks,
    hand_over,
    retries,
    messages_across,
    same_queues,
    requests,
)
_JAVA_RUNS = (*_RUNS, popping)
"""The Go client does not pop."""
NAMES: tuple[str, ...] = tuple(f"group_{run.__name__}" for run in _JAVA_RUNS)
GO_NAMES: tuple[str, ...] = tuple(f"go_group_{run.__name__}" for run in _RUNS)


def run_groups(
    toolchain: Toolchain, cluster: Cluster, names: Sequence[str], column: str
) -> Iterator[Cell]:
    """Run ``names`` one after the other with one JVM; yield a cell as each ends."""
    if not names:
        return
    with java_members(toolchain, cluster) as others:
        yield from _run(NAMES, others, cluster, names, column)


def run_go_groups(cluster: Cluster, names: Sequence[str]) -> Iterator[Cell]:
    """The same with Apache's Go client; without it, cells with the reason for the skip."""
    if not names:
        return
    column = f"go {client_version()}"
    try:
        program = prepare_go()
    except Unavailable as missing:
        yield from not_run(names, _section("Go"), column, missing)
        return
    with go_members(program, cluster) as others:
        yield from _run(GO_NAMES, others, cluster, names, column)


def _section(kind: str) -> str:
    return f"groups of {kind} and Penstock members"


def _run(
    known: Sequence[str], others: Members, cluster: Cluster, names: Sequence[str], column: str
) -> Iterator[Cell]:
    runs: Mapping[str, Run] = {
        name: partial(run, others) for name, run in zip(known, _JAVA_RUNS, strict=False)
    }
    section = _section(others.kind)
    yield from run_clients(cluster, names, column, runs=runs, section=section, parallel=1)
