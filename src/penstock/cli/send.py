"""``penstock send``: sends arguments, lines, JSON lines or a file as messages."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from penstock.cli import output
from penstock.cli.commands import PATH, argument, command, option
from penstock.cli.name_completion import guessing_topic, nearest, other_topics, topic_argument
from penstock.cli.output import json_flag
from penstock.cli.target import Target, on_cluster
from penstock.cli.times import rate_option
from penstock.errors import InvalidArgument, PenstockError
from penstock.runtime.pacing import Pacer

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock import MessageQueue, Producer, Receipt
    from penstock.cli.input_messages import Defaults, Numbered

GROUP = "penstock_cli"
_MISSPELLED = 0.8
LINGER_SECONDS = 0.005
WINDOW = 1000
"""Sends in flight; more would only fill memory."""
WINDOW_BYTES = 4 << 20
"""Bytes of bodies in flight; with more, the last sends would time out."""


@command
@on_cluster
@topic_argument
@argument(
    "bodies",
    nargs=-1,
    metavar="BODY",
    help="One message each; without any, lines are read from stdin.",
)
@option("--file", "-f", type=PATH, help="Read this file, or - for stdin; each line is a message.")
@option(
    "--jsonl",
    "json_lines",
    is_flag=True,
    help='Lines are objects such as {"body": "hi", "tag": "t", "keys": ["k"]}; also what '
    "tail --json prints.",
)
@option("--whole", is_flag=True, help="Send all of the input as one message.")
@option("--tag", "--tags", "tag", help="Tag of the messages.")
@option("--key", "keys", multiple=True, help="Key of the messages; may be repeated.")
@option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="A property; may be repeated.",
)
@option("--delay", help="How long brokers keep it back: 7m30s, 2h, or a level, 1-18.")
@option("--sharding-key", help="Messages with the same key share a queue, in order.")
@option(
    "--queue",
    metavar="BROKER:ID",
    help="Send to this queue, such as broker-a:3; an id alone if there is one broker.",
)
@rate_option
@json_flag
def send(
    target: Target,
    topic: str,
    bodies: tuple[str, ...],
    file: Path | None,
    json_lines: bool,
    whole: bool,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    delay: str | None,
    sharding_key: str | None,
    queue: str | None,
    rate: float | None,
    as_json: bool,
) -> None:
    """Send messages: arguments, or the lines of stdin or of a file.

    --json prints one receipt for each message, in order.

    Example: printf 'one\\ntwo\\n' | penstock send orders --tag created --rate 100
    """
    from penstock import Producer
    from penstock.cli.input_messages import Defaults, delay_of, pairs

    if bodies and (file is not None or json_lines or whole):
        raise InvalidArgument(
            "both a BODY and an input to read", expected="arguments, or --file, --jsonl, --whole"
        )
    _check_labels(tag, keys)
    if queue is not None and sharding_key is not None:
        raise InvalidArgument(
            "both --queue and --sharding-key", expected="one of them: both choose the queue"
        )
    if json_lines and whole:
        raise InvalidArgument("both --jsonl and --whole", expected="one of them")
    defaults = Defaults(
        topic,
        tag,
        keys,
        pairs(properties),
        delay_of(delay),
        sharding_key,
    )
    pacer = Pacer(rate)
    started = time.monotonic()
    sent = _Sent(as_json=as_json)
    with (
        target.admin() as admin,
        guessing_topic(admin, topic),
        _messages(defaults, bodies, file, json_lines=json_lines, whole=whole) as messages,
        Producer(
            GROUP,
            # For thousands of lines, a short wait for a full batch beats one request per line.
            linger=0 if bodies or pacer.is_limiting else LINGER_SECONDS,
            **target.access.as_keywords(),
        ) as producer,
        output.progress(len(bodies) if bodies else None, "sending", quiet=as_json) as bar,
    ):
        sent.bar = bar
        others = other_topics(admin, topic)
        try:
            chosen = None if queue is None else _queue(producer, topic, queue)
            send_all(producer, messages, pacer, sent, queue=chosen)
        except BaseException:
            if sent.count:
                output.note(f"{sent.count} messages were sent before it stopped.")
            raise
    if not as_json:
        _report(topic, sent, time.monotonic() - started, delay)
    if sent.count and others is not None:
        near = nearest(topic, others, likeness=_MISSPELLED)
        output.note(
            f"Topic {output.plain(topic)} is new"
            + (f"; did you mean {near}?" if near else ": the broker created it.")
        )


def _queue(producer: Producer, topic: str, text: str) -> MessageQueue:
    """The queue that the user means; it must exist, so a topic is not created for it."""
    known = producer.queues(topic)
    found = [
        queue
        for queue in known
        if text in (f"{queue.broker_name}:{queue.queue_id}", str(queue.queue_id))
    ]
    if len(found) == 1:
        return found[0]
    names = [f"{queue.broker_name}:{queue.queue_id}" for queue in found or known]
    raise InvalidArgument(
        f"--queue {text!r} of topic {topic!r}",
        expected=f"BROKER:ID, one of {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}",
    )


def _check_labels(tag: str | None, keys: Iterable[str]) -> None:
    """Refuse labels that RocketMQ would silently interpret differently."""
    if tag is not None and "||" in tag:
        raise InvalidArgument(
            f"--tag {tag!r}: a message has one tag; || separates the tags of a filter",
            expected="one tag",
        )
    for key in keys:
        if len(key.split()) > 1:
            raise InvalidArgument(
                f"--key {key!r}: a blank ends a key, so these would be {len(key.split())} keys",
                expected="a key without blanks",
                hint=" ".join(f"--key {part}" for part in key.split()),
            )


class _Sent:
    """Counts receipts, and prints them with ``--json``."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.bar = output.Bar()
        self.count = 0
        self.last: Receipt | None = None

    def __call__(self, receipt: Receipt) -> None:
        self.count += 1
        self.last = receipt
        self.bar.advance()
        if self._as_json:
            output.print_json_line(
                {
                    "status": receipt.status.value,
                    "msg_id": receipt.msg_id,
                    "offset_msg_id": receipt.offset_msg_id,
                    "topic": receipt.queue.topic,
                    "broker": receipt.queue.broker_name,
                    "queue_id": receipt.queue.queue_id,
                    "queue_offset": receipt.queue_offset,
                    "recall_handle": receipt.recall_handle,
                }
            )


def _report(topic: str, sent: _Sent, seconds: float, delay: str | None) -> None:
    last = sent.last
    if last is None:
        output.note("Nothing was sent: the input has no lines.")
    elif sent.count == 1:
        queue = last.queue
        where = f"{topic}, {queue.broker_name}:{queue.queue_id}@{last.queue_offset}"
        # A delayed message gets its queue offset when it is delivered.
        if delay is not None:
            where = f"{topic}, delayed by {'level ' if delay.isdecimal() else ''}{delay}"
        output.say(f"Sent {last.msg_id} to {where}.")
        if last.recall_handle is not None:
            output.note(f"penstock timer recall {topic} {last.recall_handle}")
    else:
        pace = f"{sent.count / seconds:,.0f} per second" if seconds > 0 else "at once"
        output.say(f"Sent {sent.count:,} messages to {topic} in {seconds:.1f} s, {pace}.")


def send_all(
    producer: Producer,
    messages: Iterable[Numbered],
    pacer: Pacer,
    on_receipt: Callable[[Receipt], object],
    *,
    queue: MessageQueue | None = None,
) -> None:
    """Send messages concurrently, those with the same sharding key one after the other.

    Receipts arrive in the order of the messages. If it ends early, it still waits for the sends in
    flight and reports their receipts.
    """
    waiting = _InFlight(on_receipt)
    last_of: dict[str, Future[Receipt]] = {}
    is_first = True
    try:
        for number, message in messages:
            pacer.wait()
            key = message.sharding_key
            # A broker with several threads may store two concurrent sends in either order.
            while key is not None and waiting.sends and not _is_stored(last_of.get(key)):
                waiting.take()
            size = len(message.body)
            while waiting.is_full(size):
                waiting.take()
            future = producer.submit(message, queue=queue)
            waiting.add(number, size, future)
            if is_first:
                # The first send connects and may create the topic. Concurrent sends would do the
                # same, and could be stored before it.
                waiting.take()
                is_first = False
                continue
            if key is not None:
                last_of[key] = future
                if len(last_of) > WINDOW:
                    last_of = {k: sent for k, sent in last_of.items() if not sent.done()}
            while waiting.sends and waiting.sends[0].future.done():
                waiting.take()
        while waiting.sends:
            waiting.take()
    except BaseException:
        for send in waiting.sends:
            with contextlib.suppress(PenstockError):
                on_receipt(send.future.result())
        raise


class _Send(NamedTuple):
    number: int
    size: int
    future: Future[Receipt]


class _InFlight:
    """Sends without an answer, in order."""

    def __init__(self, on_receipt: Callable[[Receipt], object]) -> None:
        self.sends: deque[_Send] = deque()
        self._on_receipt = on_receipt
        self._bytes = 0

    def is_full(self, size: int) -> bool:
        """Whether ``size`` more bytes must wait."""
        too_many = len(self.sends) >= WINDOW or self._bytes + size > WINDOW_BYTES
        return too_many and bool(self.sends)

    def add(self, number: int, size: int, future: Future[Receipt]) -> None:
        self.sends.append(_Send(number, size, future))
        self._bytes += size

    def take(self) -> None:
        """Wait for the answer to the oldest send."""
        number, size, future = self.sends.popleft()
        self._bytes -= size
        try:
            receipt = future.result()
        except InvalidArgument as error:
            # Raised before anything was sent, so it is about the line, not the cluster.
            raise type(error)(
                f"message {number}: {error.what}", expected=error.expected, hint=error.hint
            ) from error
        self._on_receipt(receipt)


def _is_stored(sent: Future[Receipt] | None) -> bool:
    # A failed send is not stored: `take` raises before the next of its key is sent.
    return sent is None or (sent.done() and sent.exception() is None)


@contextlib.contextmanager
def _messages(
    defaults: Defaults,
    bodies: tuple[str, ...],
    file: Path | None,
    *,
    json_lines: bool,
    whole: bool,
) -> Iterator[Iterable[Numbered]]:
    from penstock.cli import input_messages
    from penstock.cli.input_messages import Numbered, from_json_lines, from_lines

    if bodies:
        # Keep the bytes that the shell could not decode.
        encoded = [body.encode("utf-8", "surrogateescape") for body in bodies]
        yield [Numbered(n, defaults.message(body)) for n, body in enumerate(encoded, start=1)]
        return
    with _input(file) as stream:
        if whole:
            yield [Numbered(1, defaults.message(input_messages.whole(stream)))]
        else:
            lines = input_messages.bounded_lines(stream, is_json=json_lines)
            yield (from_json_lines if json_lines else from_lines)(lines, defaults)


@contextlib.contextmanager
def _input(file: Path | None) -> Iterator[BinaryIO]:
    if file is not None and str(file) != "-":
        try:
            stream = file.open("rb")
        except OSError as error:
            raise InvalidArgument(
                f"--file {file} cannot be read: {error.strerror}", expected="a file with lines"
            ) from error
        with stream:
            yield stream
        return
    if sys.stdin.isatty():
        output.note("Each line you type is a message; Ctrl-D ends the input.")
    yield sys.stdin.buffer
