"""Middleware around sends and handlers: a trace id that travels, timings, and duplicates dropped.

python examples/middleware.py
"""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
from collections import Counter, defaultdict

from penstock import (
    HandlerCall,
    Message,
    Middleware,
    Producer,
    PushConsumer,
    SendCall,
    StoredMessage,
    embedded,
)


class TraceId(Middleware):
    """Gives each message the id of the trace it belongs to, for its consumers to read."""

    def before_send(self, call: SendCall) -> None:
        call.messages = [
            dataclasses.replace(
                message, properties={**(message.properties or {}), "trace": str(uuid.uuid4())}
            )
            for message in call.messages
        ]


class Timing(Middleware):
    """Counts and times sends and handler calls; the same object serves both sides."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def before_send(self, call: SendCall) -> None:
        call.notes["started"] = time.monotonic()

    def after_send(self, call: SendCall) -> None:
        self._count("failed sends" if call.error else "sends", call)

    def before_handle(self, call: HandlerCall) -> None:
        call.notes["started"] = time.monotonic()

    def after_handle(self, call: HandlerCall) -> None:
        self._count("failed calls" if call.error else "calls", call)

    def _count(self, name: str, call: SendCall | HandlerCall) -> None:
        started = call.notes["started"]
        assert isinstance(started, float)
        self.counts[name] += 1
        self.seconds[name] += time.monotonic() - started


class OncePerKey(Middleware):
    """Acknowledges a message whose key was handled before, without calling the handler."""

    def __init__(self) -> None:
        self.done: set[str] = set()

    def before_handle(self, call: HandlerCall) -> None:
        call.skip = all(set(message.keys) <= self.done for message in call.messages)

    def after_handle(self, call: HandlerCall) -> None:
        if call.error is None:
            self.done.update(key for message in call.messages for key in message.keys)


def main() -> None:
    timing = Timing()
    billed: list[str] = []
    all_seen = threading.Event()
    with embedded() as mq:
        # before_send runs in this order, after_send in reverse.
        with Producer("shop", namesrv=mq.namesrv, middleware=(timing, TraceId())) as producer:
            for number in (1, 2, 2, 3):  # order 2 is sent twice
                producer.send(Message("orders", b"a book", keys=[f"order-{number}"]))

        consumer = PushConsumer(
            "billing",
            namesrv=mq.namesrv,
            start_from="first",
            threads=1,  # OncePerKey is not made for several threads
            middleware=(timing, OncePerKey()),
        )

        @consumer.on("orders")
        def bill(message: StoredMessage) -> None:
            assert len(message.properties["trace"]) == 36
            billed.append(message.keys[0])
            if len(billed) == 3:
                all_seen.set()

        with consumer:
            all_seen.wait(timeout=30)
            deadline = time.monotonic() + 30
            while timing.counts["calls"] < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
    print(f"{timing.counts['sends']} messages sent, {timing.counts['calls']} delivered")
    print(f"a send took {timing.seconds['sends'] / timing.counts['sends'] * 1000:.1f} ms")
    print(f"billed once each: {', '.join(sorted(billed))}")


if __name__ == "__main__":
    main()
