"""Load by the official Python client of the 5.x series: ENDPOINT SUFFIX SECONDS.

Rows come from standard input: send-INFLIGHT-SIZE, push-MESSAGES-SIZE or simple-MESSAGES-SIZE; each
answers with a JSON line. Lines "begin" and "end" enclose what the rate is of. The topics
send_SUFFIX and receive_SUFFIX and the group load_SUFFIX exist.
It runs in an environment that has the client alone; ``benchmarks.grpc_against_apache`` starts it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
)

FILL_IN_FLIGHT = 64
BATCH = 32
SIMPLE_THREADS = 4
LIMIT_SECONDS = 120
INVISIBLE_SECONDS = 60
# Apache's proxy polls for 5 s at least, and refuses calls with a deadline before that.
AWAIT_SECONDS = 5


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


class Drained(MessageListener):  # type: ignore[misc]
    """Counts the messages of one drain, and when the first and the last came."""

    def __init__(self, start: bytes, count: int) -> None:
        self.start = start
        self.left = count
        self.lock = threading.Lock()
        self.done = threading.Event()
        self.first = self.last = 0.0

    def consume(self, message: Any) -> Any:
        if message.body.startswith(self.start):
            with self.lock:
                if not self.first:
                    self.first = time.perf_counter()
                    say("begin")
                self.left -= 1
                if self.left == 0:
                    self.last = time.perf_counter()
                    say("end")
                    self.done.set()
        return ConsumeResult.SUCCESS


class Load:
    """One producer, and a consumer for each drain."""

    def __init__(self, endpoint: str, suffix: str, seconds: float) -> None:
        self.where = ClientConfiguration(endpoint, Credentials("", ""))
        self.seconds = seconds
        self.send_topic, self.receive_topic = f"send_{suffix}", f"receive_{suffix}"
        self.group = f"load_{suffix}"
        self.wanted = {self.receive_topic: FilterExpression("*")}
        self.producer = Producer(self.where, (self.send_topic, self.receive_topic))
        self.producer.startup()
        self.drains = 0

    def run(self, kind: str, number: int, size: int) -> float:
        if kind == "send":
            say("begin")
            begun = time.perf_counter()
            end = begun + self.seconds
            body = bytes(size)
            sent = self.send(self.send_topic, body, number, lambda _: time.perf_counter() < end)
            rate = sent / (time.perf_counter() - begun)
            say("end")
            return rate
        consuming = {"push": self.pushing, "simple": self.receiving}[kind]
        self.drains += 1
        start = b"drain %d;" % self.drains
        self.send(
            self.receive_topic, start.ljust(size, b"."), FILL_IN_FLIGHT, lambda sent: sent < number
        )
        drained = Drained(start, number)
        with consuming(drained):
            if not drained.done.wait(LIMIT_SECONDS):
                raise RuntimeError(f"{drained.left} of {number} did not come")
        return (number - 1) / max(1e-9, drained.last - drained.first)

    def send(self, topic: str, body: bytes, in_flight: int, more: Callable[[int], bool]) -> int:
        """Send with some in flight; all are answered when it returns."""
        free = threading.Semaphore(in_flight)
        failed: list[BaseException] = []

        def answered(future: Any) -> None:
            error = future.exception()
            if error is not None:
                failed.append(error)
            free.release()

        sent = 0
        while more(sent):
            free.acquire()
            message = Message()
            message.topic, message.body = topic, body
            self.producer.send_async(message).add_done_callback(answered)
            sent += 1
        for _ in range(in_flight):
            free.acquire()
        if failed:
            raise RuntimeError(f"{len(failed)} of {sent} sends failed, the first: {failed[0]}")
        return sent

    @contextmanager
    def pushing(self, drained: Drained) -> Iterator[None]:
        consumer = PushConsumer(self.where, self.group, drained, self.wanted)
        consumer.startup()
        yield
        closing = threading.Thread(target=consumer.shutdown)
        closing.start()
        self.end_polls(closing)

    def end_polls(self, thread: threading.Thread) -> None:
        """Send until a thread has ended: polls wait for seconds at an empty topic."""
        while thread.is_alive():
            self.send(self.receive_topic, b"end", 1, lambda sent: not sent)
            thread.join(0.02)

    @contextmanager
    def receiving(self, drained: Drained) -> Iterator[None]:
        consumer = SimpleConsumer(self.where, self.group, self.wanted, await_duration=AWAIT_SECONDS)
        consumer.startup()
        threads = [
            threading.Thread(target=receive, args=(consumer, drained))
            for _ in range(SIMPLE_THREADS)
        ]
        for thread in threads:
            thread.start()
        yield
        for thread in threads:
            self.end_polls(thread)
        consumer.shutdown()


def receive(consumer: Any, drained: Drained) -> None:
    while not drained.done.is_set():
        try:
            for message in consumer.receive(BATCH, INVISIBLE_SECONDS) or ():
                consumer.ack(message)
                drained.consume(message)
        except Exception:
            # The first polls may come before the settings, which Apache's proxy refuses.
            traceback.print_exc()
            time.sleep(0.05)


def main(endpoint: str, suffix: str, seconds: str) -> None:
    load = Load(endpoint, suffix, float(seconds))
    for row in map(str.strip, sys.stdin):
        kind, number, size = row.split("-")
        rate = load.run(kind, int(number), int(size))
        say(json.dumps({"row": row, "messages_per_second": round(rate, 1)}))


status = 0
try:
    main(*sys.argv[1:])
except Exception:
    traceback.print_exc()
    status = 1
# The threads of the client keep the process alive.
os._exit(status)
