"""`PushConsumer` for ordinary, blocking Python."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from penstock.client.arguments import Time
from penstock.client.blocking.entered import Entered, soon
from penstock.client.consuming.consumer_shutdown import ConsumerStop
from penstock.client.facades.push_consumer import Handled, PushConsumerFacade, PushConsumerKeywords
from penstock.client.facades.values import seek_to
from penstock.client.observing.consumer_stats import ConsumerStats, consumer_stats
from penstock.client.session.host import Host
from penstock.client.session.session_registry import Lease
from penstock.model import MessageQueue, StoredMessage
from penstock.runtime.durations import Duration, seconds

log = logging.getLogger(__name__)

SIGNAL_SECONDS = 0.5
"""How late a `run` may notice a signal."""


class PushConsumer(Entered, PushConsumerFacade[Handled]):
    """Calls handlers with the messages of its topics.

    ``group`` (consumerGroup); ``namesrv`` (namesrvAddr); ``model`` (messageModel) is clustering or
    broadcasting; ``start_from`` (consumeFromWhere, consumeTimestamp) is where a group without an
    offset begins: last, first (latest and earliest mean the same) or a time; ``orderly``
    (MessageListenerOrderly) calls one handler at a time for each queue; ``batch_size``
    (consumeMessageBatchMaxSize); ``allocation`` (allocateMessageQueueStrategy) is
    average, circle, consistent-hash or an `AssignmentStrategy`; ``threads`` (consumeThreadMin)
    limits how many handlers run at once, on as many threads or as coroutines; ``max_retries``
    (maxReconsumeTimes), None: 16, or without end when orderly; ``instance``
    (instanceName); ``middleware`` (registerConsumeMessageHook) is called around handlers,
    ``filter_hooks`` (registerFilterMessageHook) with pulled messages before that;
    ``on_queues_changed`` (messageQueueListener) is called with the queues held now; with ``trace``
    (enableMsgTrace) each handler call is reported to a trace topic, as in `Producer`.
    """

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: PushConsumer[StoredMessage],
            group: str,
            *,
            batch_size: Literal[1] = 1,
            **keywords: Unpack[PushConsumerKeywords],
        ) -> None: ...

        @overload
        def __init__(
            self: PushConsumer[list[StoredMessage]],
            group: str,
            *,
            batch_size: int,
            **keywords: Unpack[PushConsumerKeywords],
        ) -> None: ...

        def __init__(self, group: str, **keywords: Any) -> None: ...

    _handler_host: Host | None = None
    _stop: ConsumerStop | None = None

    def start(self) -> None:
        """Join the group and begin to consume."""
        lease = self._open()
        try:
            self._stopping = threading.Lock()
            self._stop_asked = threading.Event()
            lease.host.run(self._start(lease))
        except BaseException:
            self._close()
            lease.release()
            self._end_handler_host()
            raise

    async def _start(self, lease: Lease) -> None:
        self._core = self._make_core(lease, self._handler_loop)
        await self._core.start()

    def _handler_loop(self) -> asyncio.AbstractEventLoop:
        if self._handler_host is None:
            self._handler_host = self._host.handler_host(f"{self._what} coroutines")
        return self._handler_host.loop

    def _end_handler_host(self) -> None:
        host, self._handler_host = self._handler_host, None
        if host is not None:
            host.close()

    def run(self) -> None:
        """Consume until Ctrl-C, SIGTERM or `stop`; then finish what runs and leave.

        It returns when everything is committed and the group left. A second Ctrl-C does not wait
        for running handlers.
        """
        self.start()
        try:
            with _sigterm_sets(self._stop_asked):
                # The system may hand a signal to any thread, and Python to this one only when it
                # runs: a wait without an end would not notice.
                while not self._stop_asked.wait(SIGNAL_SECONDS):
                    pass
        except KeyboardInterrupt:
            log.info("interrupted, finishing what runs consumer=%s", self._what)
        finally:
            self.stop()

    def stop(self, timeout: Duration = 30) -> None:
        """Take no new work, wait for running handlers, commit, leave; idempotent.

        What ends within ``timeout`` is committed and not delivered again. Handlers that still run
        are named in the log and their messages are delivered again. Ctrl-C skips the wait. A second
        call waits for the first. Called by a handler of this consumer it only begins the stop and
        returns at once: the handler is among what is waited for, and its message is committed.
        """
        stop = self._begin_stop(seconds(timeout))
        if stop is not None and not self._core.is_calling:
            stop.wait()

    def _begin_stop(self, timeout: float) -> ConsumerStop | None:
        """The stop that runs, begun now if there was none; None: there is nothing to stop."""
        if self._lease is None and not self._was_stopped:
            return None
        with self._stopping:
            if self._lease is None:
                return self._stop
            self._lease.host.check()
            lease = self._close()
            assert lease is not None
            self._stop = ConsumerStop(
                self._what, self._core, lease, timeout, self._end_handler_host
            )
            if self._core.is_calling:
                self._stop.go_on_alone()
            self._stop_asked.set()
            return self._stop

    def pause(self) -> None:
        """Pull nothing more until `resume`; what is cached is still consumed."""
        self._host.run(soon(self._core.pause))

    def resume(self) -> None:
        """Pull again."""
        self._host.run(self._core.resume())

    def seek(self, queue: MessageQueue, offset_or_time: int | Time) -> None:
        """Go on at another place of a queue that is held: an offset, or a datetime or its text."""
        self._host.run(seek_to(self._core, queue, offset_or_time))

    def assignment(self) -> set[MessageQueue]:
        """The queues of the subscribed topics that this consumer holds now."""
        return self._host.run(soon(self._core.assignment))

    def stats(self) -> ConsumerStats:
        """Rates, counts and where each queue stands."""
        return self._host.run(soon(consumer_stats, self._core))


@contextlib.contextmanager
def _sigterm_sets(event: threading.Event) -> Iterator[None]:
    """Let SIGTERM end a `run`, where signals can be handled: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: event.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
