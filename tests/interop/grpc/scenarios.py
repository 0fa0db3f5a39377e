"""Scenarios of Apache's Python client of the 5.x series; run by ``grpc_clients``.

    python scenarios.py ENDPOINT SUFFIX NAME...

Each prints a JSON line. The topics ``TYPE_SUFFIX`` and the group ``fifo_SUFFIX`` exist.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from rocketmq import (  # type: ignore[import-not-found]
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

ENDPOINT, SUFFIX = sys.argv[1:3]
KEYS = (os.environ.get("INTEROP_ACCESS_KEY", ""), os.environ.get("INTEROP_SECRET_KEY", ""))
WHERE = ClientConfiguration(ENDPOINT, Credentials(*KEYS))
TLS = {"tls_enable": os.environ.get("INTEROP_TLS") == "1"}
WAIT_SECONDS = 90


def topic(kind: str) -> str:
    return f"{kind}_{SUFFIX}"


def message(kind: str, body: bytes, **more: Any) -> Any:
    made = Message()
    made.topic, made.body = topic(kind), body
    for name, value in more.items():
        setattr(made, name, value)
    return made


def producer(*kinds: str, **more: Any) -> Any:
    made = Producer(WHERE, tuple(map(topic, kinds)), **TLS, **more)
    made.startup()
    return made


def wait_for(condition: Callable[[], object], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {WAIT_SECONDS} s: {what()}")
        time.sleep(0.05)


class Listener(MessageListener):  # type: ignore[misc]
    """Notes what it is given; fails a given number of times."""

    def __init__(self, failures: int = 0) -> None:
        self.got: list[Any] = []
        self.times: list[float] = []
        self.failures = failures
        self.lock = threading.Lock()

    def consume(self, message: Any) -> Any:
        with self.lock:
            self.got.append(message)
            self.times.append(time.monotonic())
            is_bad = message.delivery_attempt <= self.failures
        return ConsumeResult.FAILURE if is_bad else ConsumeResult.SUCCESS


def pushing(group: str, kind: str, listener: Listener) -> Any:
    wanted = {topic(kind): FilterExpression("*")}
    made = PushConsumer(WHERE, f"{group}_{SUFFIX}", listener, wanted, **TLS)
    made.startup()
    return made


def grpc_send_and_simple_consumer() -> str:
    sender = producer("NORMAL")
    made = message("NORMAL", b"hello", tag="t", keys="k")
    made.add_property("colour", "red")
    sent = sender.send(made).message_id
    wanted = {topic("NORMAL"): FilterExpression("t")}
    consumer = SimpleConsumer(WHERE, f"simple_{SUFFIX}", wanted, await_duration=20, **TLS)
    consumer.startup()
    (got,) = consumer.receive(10, 15)
    found = (got.message_id, got.body, got.tag, set(got.keys), got.properties["colour"])
    assert found == (sent, b"hello", "t", {"k"}, "red"), found
    consumer.change_invisible_duration(got, 20)
    consumer.ack(got)
    consumer.shutdown()
    sender.shutdown()
    return str(sent)


def grpc_push() -> str:
    sender, listener = producer("PUSH"), Listener()
    consumer = pushing("push", "PUSH", listener)
    for number in range(50):
        sender.send(message("PUSH", b"%d" % number))
    wait_for(lambda: len(listener.got) >= 50, lambda: len(listener.got))
    assert {one.body for one in listener.got} == {b"%d" % number for number in range(50)}
    consumer.shutdown()
    sender.shutdown()
    return "50 messages"


def grpc_push_retries() -> str:
    sender, listener = producer("RETRY"), Listener(failures=2)
    consumer = pushing("retry", "RETRY", listener)
    sender.send(message("RETRY", b"bad"))
    wait_for(lambda: len(listener.got) >= 3, lambda: len(listener.got))
    gaps = [b - a for a, b in zip(listener.times, listener.times[1:], strict=False)]
    assert 0.9 < gaps[0] < 5, gaps
    assert 4.5 < gaps[1] < 12, gaps
    assert [one.delivery_attempt for one in listener.got] == [1, 2, 3]
    consumer.shutdown()
    sender.shutdown()
    return f"{gaps[0]:.1f} s, {gaps[1]:.1f} s"


def grpc_fifo() -> str:
    sender = producer("FIFO")
    listeners = [Listener(), Listener()]
    consumers = [pushing("fifo", "FIFO", one) for one in listeners]
    for number in range(40):
        sender.send(message("FIFO", b"%02d" % number, message_group=f"g{number % 4}"))
    wait_for(
        lambda: sum(len(one.got) for one in listeners) >= 40,
        lambda: [len(one.got) for one in listeners],
    )
    order = sorted(
        (at, one.message_group, one.body)
        for listener in listeners
        for at, one in zip(listener.times, listener.got, strict=True)
    )
    for group in {one[1] for one in order}:
        bodies = [body for _, name, body in order if name == group]
        assert bodies == sorted(bodies), bodies
    for consumer in consumers:
        consumer.shutdown()
    sender.shutdown()
    return "4 groups, 2 consumers"


def grpc_delay_and_recall() -> str:
    sender, listener = producer("DELAY"), Listener()
    consumer = pushing("delay", "DELAY", listener)
    at = int(time.time()) + 5
    recalled = sender.send(message("DELAY", b"recalled", delivery_timestamp=at))
    sender.send(message("DELAY", b"kept", delivery_timestamp=at))
    sender.recall_message(topic("DELAY"), recalled.recall_handle)
    wait_for(lambda: listener.got, lambda: "nothing")
    late = time.time() - at
    time.sleep(2)
    assert [one.body for one in listener.got] == [b"kept"]
    assert -1 <= late < 5, late
    consumer.shutdown()
    sender.shutdown()
    return f"{late:.1f} s late"


def grpc_transaction() -> str:
    class Checker(TransactionChecker):  # type: ignore[misc]
        asked: list[bytes] = []  # noqa: RUF012

        def check(self, message: Any) -> Any:
            self.asked.append(message.body)
            return TransactionResolution.COMMIT

    checker, listener = Checker(), Listener()
    sender = producer("TRANSACTION", checker=checker)
    consumer = pushing("transaction", "TRANSACTION", listener)
    for decision in ("commit", "rollback", "undecided"):
        transaction = sender.begin_transaction()
        sender.send(message("TRANSACTION", decision.encode()), transaction)
        if decision != "undecided":
            getattr(transaction, decision)()
    wait_for(lambda: len(listener.got) >= 2, lambda: [one.body for one in listener.got])
    assert sorted(one.body for one in listener.got) == [b"commit", b"undecided"]
    assert checker.asked == [b"undecided"], checker.asked
    consumer.shutdown()
    sender.shutdown()
    return "one committed, one asked about"


def grpc_restart() -> str:
    sender, listener = producer("RESTART"), Listener()
    pushing("restart", "RESTART", listener)
    sent: list[int] = []
    end = time.monotonic() + float(os.environ["INTEROP_SECONDS"])
    offset = time.time() - time.monotonic()
    sys.stdout.write("running\n")
    sys.stdout.flush()
    number = 0
    while time.monotonic() < end:
        number += 1
        try:
            sender.send(message("RESTART", b"%d" % number))
            sent.append(round(time.time() * 1000))
        except Exception:
            traceback.print_exc()
        time.sleep(0.1)
    return json.dumps({"sent": sent, "got": [(at + offset) * 1000 for at in listener.times]})


def main(names: list[str]) -> None:
    for name in names:
        begun = time.monotonic()
        try:
            status, evidence = "pass", globals()[name]()
        except Exception as error:
            traceback.print_exc()
            status, evidence = "fail", f"{type(error).__name__}: {error}"
        ms = round((time.monotonic() - begun) * 1000)
        line = {"scenario": name, "status": status, "evidence": evidence, "ms": ms}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


main(sys.argv[3:])
# The threads of a client that was not shut down keep the process alive.
os._exit(0)
