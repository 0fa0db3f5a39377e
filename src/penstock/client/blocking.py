"""The classes for ordinary, blocking Python.

Calls are forwarded to the session's loop in its own thread; handlers run on a pool of threads,
coroutine handlers on one further loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, TypeVarTuple, Unpack, overload

from penstock.client.arguments import Time
from penstock.client.arrow_support import arrow_rows, arrow_sends
from penstock.client.consuming.consumer_shutdown import ConsumerStop
from penstock.client.facade import (
    Handled,
    ProducerFacade,
    PullConsumerFacade,
    PushConsumerFacade,
    PushConsumerKeywords,
    maybe_queue_set,
    seek_to,
)
from penstock.client.observing.consumer_stats import ConsumerStats, consumer_stats
from penstock.client.producing import request_reply
from penstock.client.producing.blocking_send import BlockingSends, blocking_sends
from penstock.client.producing.outgoing import as_message
from penstock.client.producing.producer import STOP_SECONDS
from penstock.client.producing.receipts import Receipt
from penstock.client.producing.selection import QueueSelector, chosen
from penstock.client.producing.send_futures import Window
from penstock.client.producing.send_middleware import SendMiddleware
from penstock.client.producing.send_queue import SendQueue
from penstock.client.producing.transactions import (
    NOT_RUN,
    LocalResult,
    PreparedMessage,
    decision_of,
    end_transaction,
    failed,
    refuse_coroutine_function,
    send_half,
)
from penstock.client.session.host import Host
from penstock.client.session.namespaces import wrap
from penstock.client.session.session_registry import Lease
from penstock.errors import LifecycleError, PenstockError
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.runtime.durations import Duration, seconds

log = logging.getLogger(__name__)

POLL_SECONDS = 5.0
SIGNAL_SECONDS = 0.5
"""How late a `run` may notice a signal."""

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class Entered(ABC):
    """`start` and `stop` around a block."""

    @abstractmethod
    def start(self) -> None:
        """Begin."""

    @abstractmethod
    def stop(self) -> None:
        """End; idempotent."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class Producer(Entered, ProducerFacade):
    """Sends messages.

    ``group`` (producerGroup); ``namesrv`` (namesrvAddr); ``send_timeout`` (sendMsgTimeout) covers
    all attempts, ``retries`` (retryTimesWhenSendFailed) go to other brokers, ``linger`` (autoBatch)
    lets single sends wait so long for others to the same topic, to share one request; bodies of
    ``compress_over`` bytes (compressMsgBodyOverHowmuch) and more are compressed. ``instance``
    (instanceName): clients with the same one share a session; ``check_transaction``
    (transactionListener) decides about a transaction that a broker asks for, also one that another
    process of the group began; brokers of ``topics`` (TransactionMQProducer.topics) know the
    producer from its start, others from its first send. With ``trace`` (enableMsgTrace) each send
    is reported to RMQ_SYS_TRACE_TOPIC, or to the topic it names (customizedTraceTopic).
    ``middleware`` (registerSendMessageHook) is called around each send: see `Middleware`.
    """

    _send_queue: SendQueue
    _window: Window
    _blocking_sends: BlockingSends | None = None
    _after_sends: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Join the cluster; the first send finds the brokers."""
        lease = self._open()
        try:
            self._core = self._make_core(lease)
            self._send_queue = SendQueue(self._core, lease.host)
            self._blocking_sends = blocking_sends(self._core)
            self._window = Window(self._settings.max_in_flight)
            if self._middleware is not None:
                self._after_sends = ThreadPoolExecutor(
                    1, thread_name_prefix=f"{self._what} after_send"
                )
            lease.host.run(_soon(self._core.start))
        except BaseException:
            self._close()
            lease.release()
            raise

    def stop(self) -> None:
        """Wait for the answers to open sends, then leave the cluster; idempotent."""
        if self._lease is not None:
            # A fork must not close the connections of its parent.
            self._lease.host.check()
        lease = self._close()
        if lease is None:
            return
        try:
            if self._blocking_sends is not None:
                self._blocking_sends.close(STOP_SECONDS)
            lease.host.run(self._core.stop())
            if self._after_sends is not None:
                # Not when an after_send calls this: it would wait for itself.
                name = threading.current_thread().name
                self._after_sends.shutdown(wait=not name.startswith(f"{self._what} after_send"))
        finally:
            lease.release()
            if self._checkers is not None:
                self._checkers.shutdown(wait=False)

    def send(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        queue: MessageQueue | QueueSelector | None = None,
        timeout: Duration | None = None,
    ) -> Receipt:
        """Send a message and return when a broker has it.

        ``send("orders", b"...")`` is short for a `Message` with just a topic and a body. ``queue``
        is a queue, or a function of the topic's queues and the message. All messages with the same
        sharding key go to the same queue. While no broker can be reached, the send is tried again
        until its time is up.
        """
        if body is not None or type(message) is not Message:
            message = as_message(message, body)
        if self._middleware is None:
            return self._send(message, queue, timeout)
        return self._middleware.around(
            (message,), lambda messages: self._send(messages[0], queue, timeout), queue
        )

    def _send(
        self,
        message: Message,
        queue: MessageQueue | QueueSelector | None,
        timeout: Duration | None,
    ) -> Receipt:
        host = self._host
        message, wish = self._addressed(message, queue)
        limit = None if timeout is None else seconds(timeout)
        # Read once: another thread may set it to None (`_keep_to_one_connection`).
        direct = self._blocking_sends
        if direct is not None and host.may_send_directly():
            result = direct.send(message, wish, limit)
            if isinstance(result, Receipt):
                return result
            if result is not None:
                future = self._window.expect()
                host.call_soon(self._core.go_on, message, wish, result, future)
                return host.wait(future)
        return host.wait(self._put(message, wish, limit, retry_refusals=True))

    def submit(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        queue: MessageQueue | QueueSelector | None = None,
    ) -> Future[Receipt]:
        """Send a message and return at once; the future gets the receipt.

        Blocks while ``max_in_flight`` sends wait for their answers.
        """
        if body is not None or type(message) is not Message:
            message = as_message(message, body)
        if self._blocking_sends is not None:
            self._keep_to_one_connection()
        if self._middleware is not None:
            return self._submit_around(self._middleware, message, queue)
        if queue is None and not self._namespace:
            return self._put(message, None, None, retry_refusals=False)
        message, wish = self._addressed(message, queue)
        return self._put(message, wish, None, retry_refusals=False)

    def _submit_around(
        self,
        middleware: SendMiddleware,
        message: Message,
        queue: MessageQueue | QueueSelector | None,
    ) -> Future[Receipt]:
        """A submit whose future gets its result after every ``after_send``."""
        host, thread = self._host, self._after_sends
        host.check()
        try:
            call = middleware.begin((message,), queue)
        except Exception as error:
            failed: Future[Receipt] = Future()
            failed.set_exception(error)
            return failed
        try:
            message, wish = self._addressed(call.messages[0], queue)
        except BaseException as error:
            middleware.finish(call, error)
            raise
        future = self._window.expect()
        settle = host.expect(future)

        def answered(result: Receipt | PenstockError) -> None:
            # On the session's loop, where no code of the user may run.
            host.loop.run_in_executor(thread, finish, result)

        def finish(result: Receipt | PenstockError) -> None:
            middleware.finish(call, result)
            try:
                host.call_soon(settle, result)
            except LifecycleError:
                settle(result)

        self._send_queue.put((message, answered, wish, None, False))
        return future

    def _addressed(
        self, message: Message, queue: MessageQueue | QueueSelector | None
    ) -> tuple[Message, MessageQueue | None]:
        """The message under the name brokers know, and the queue it must go to, if any."""
        host = self._host
        message = self._named(message)
        if queue is None or isinstance(queue, MessageQueue):
            return message, queue
        queues = self._known_queues(message.topic) or host.run(
            self._core.wait_for_queues(message.topic, self._settings.send_timeout)
        )
        return message, chosen(queue, queues, message)

    def _keep_to_one_connection(self) -> None:
        """Make no more blocking sends: they could overtake a send that nothing waits for."""
        direct = self._blocking_sends
        if direct is not None:
            self._host.check()
            self._blocking_sends = None
            direct.retire()

    def _put(
        self,
        message: Message,
        queue: MessageQueue | None,
        timeout: float | None,
        *,
        retry_refusals: bool,
    ) -> Future[Receipt]:
        host = self._host
        # First of all: in a fork, room in the window would be waited for without end.
        host.check()
        future = self._window.expect()
        self._send_queue.put((message, host.expect(future), queue, timeout, retry_refusals))
        return future

    def send_oneway(self, message: Message | str, body: bytes | None = None) -> None:
        """Send a message without waiting for an answer: one attempt, no receipt."""
        message = as_message(message, body)
        self._keep_to_one_connection()
        self._run_around((message,), lambda batch: self._core.send_oneway(self._named(batch[0])))

    def send_batch(self, messages: Iterable[Message]) -> Receipt:
        """Send messages of one topic in one request: all are stored, or none."""
        return self._run_around(
            tuple(messages), lambda batch: self._core.send_batch([*map(self._named, batch)])
        )

    def send_arrow(self, data: Any, topic: str | None = None) -> int:
        """Send the rows of an Arrow table and return their number, when all are stored.

        ``data`` is a pyarrow table, batch or reader, or a frame of Polars, pandas or DuckDB. The
        column ``body`` is required; ``topic``, ``keys``, ``tags``, ``properties``, ``sharding_key``
        and ``delay`` are used if they are there. The argument ``topic`` overrides the column. Rows
        without a sharding key go to any queue. Middleware is not called. Needs ``[arrow]``.
        """
        send_table = arrow_sends()
        named = partial(wrap, self._namespace)
        return self._host.run(send_table(self._core, data, topic, named))

    def request(self, message: Message, timeout: Duration) -> StoredMessage:
        """Send a message and wait for the reply of its consumer."""
        limit = seconds(timeout)
        return self._run_around(
            (message,),
            lambda batch: request_reply.request(self._core, self._named(batch[0]), limit),
        )

    def reply(self, request: StoredMessage, body: bytes) -> Receipt:
        """Answer a message that was sent with `request`."""
        return self._host.run(request_reply.reply(self._core, request, body))

    def send_in_transaction(
        self, message: Message, execute: Callable[[PreparedMessage], bool | None]
    ) -> Receipt:
        """Send a message that becomes visible only if ``execute`` returns True.

        ``execute`` runs the local transaction: True commits, False rolls back; None or anything
        else, or an exception, leaves it to ``check_transaction``. It stores the ``transaction_id``
        of the message that it gets together with its data, so that ``check_transaction`` of any
        process of the group can look for it.

        If the broker does not take the message, the error is raised and ``execute`` is not called.
        Neither is it if the broker is not sure to keep the message (`Receipt.status`); then the
        message is rolled back. `Receipt.decision` says what was sent to the broker.
        """
        refuse_coroutine_function(execute, "execute")

        def send(messages: Sequence[Message]) -> Receipt:
            [message] = messages
            host = self._host
            half = host.run(send_half(self._core, self._named(message)))
            result = NOT_RUN
            if half.is_safe:
                msg_id = half.receipt.msg_id
                try:
                    result = LocalResult(decision_of(execute(half.prepared(message)), msg_id))
                except Exception as error:
                    result = failed(error, msg_id)
            return host.run(end_transaction(self._core, half, result))

        if self._middleware is None:
            return send((message,))
        return self._middleware.around((message,), send)

    def _run_around(
        self,
        messages: Sequence[Message],
        work: Callable[[Sequence[Message]], Coroutine[Any, Any, _T]],
    ) -> _T:
        """Run a send on the session's loop, with middleware around it on this thread."""
        host = self._host
        if self._middleware is None:
            return host.run(work(messages))
        return self._middleware.around(messages, lambda batch: host.run(work(batch)))

    def recall(self, topic: str, handle: str) -> str:
        """Take a timer message back before it is due; return its unique id.

        ``handle`` is the ``recall_handle`` of its receipt. The broker must allow it
        (``recallMessageEnable``). `IllegalOperation`: it is due, was delivered or is not known.
        """
        return self._host.run(self._core.recall(wrap(self._namespace, topic), handle))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic a message can be sent to."""
        return list(self._host.run(self._core.queues(wrap(self._namespace, topic))))


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
        self._host.run(_soon(self._core.pause))

    def resume(self) -> None:
        """Pull again."""
        self._host.run(self._core.resume())

    def seek(self, queue: MessageQueue, offset_or_time: int | Time) -> None:
        """Go on at another place of a queue that is held: an offset, or a datetime or its text."""
        self._host.run(seek_to(self._core, queue, offset_or_time))

    def assignment(self) -> set[MessageQueue]:
        """The queues of the subscribed topics that this consumer holds now."""
        return self._host.run(_soon(self._core.assignment))

    def stats(self) -> ConsumerStats:
        """Rates, counts and where each queue stands."""
        return self._host.run(_soon(consumer_stats, self._core))


class PullConsumer(Entered, PullConsumerFacade):
    """Hands out messages when asked.

    ``group``, ``namesrv``, ``start_from``, ``allocation`` and ``instance`` are as those of
    `PushConsumer`; with ``auto_commit`` (autoCommit) a poll commits what the one before brought,
    else `commit` does; ``batch_size`` (pullBatchSize) messages at most a poll.

    Messages are done when the next poll asks for more, or with `commit`, and in no other way.
    Leaving the ``with`` block or the loop, and `stop`, say nothing about the last ones: they come
    again, to the next reader of the group, unless `commit` was called after them.
    """

    def start(self) -> None:
        """Join the group and begin to read ahead."""
        lease = self._open()
        try:
            lease.host.run(self._start_core(lease))
        except BaseException:
            self._close()
            lease.release()
            raise

    def stop(self) -> None:
        """Commit what was consumed and leave; idempotent.

        What the last poll brought is not committed and comes again: `commit` first if it is done.
        """
        lease = self._close()
        if lease is None:
            return
        self._unread.clear()
        try:
            lease.host.run(self._core.stop())
        finally:
            lease.release()

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Share the queues of a topic with the other members of the group."""
        topic = self._want(topic, tags, sql)
        if self._lease is not None:
            self._host.run(self._core.subscribe(topic, tags=tags, sql=sql))

    def assign(self, queues: Iterable[MessageQueue] | MessageQueue) -> None:
        """Read exactly these queues, or this one, without regard to other members."""
        self._queues = self._check_assign(queues)
        if self._lease is not None:
            self._host.run(self._core.assign(self._queues))
            self._keep_unread(self._queues.__contains__)

    def poll_arrow(self, timeout: Duration = POLL_SECONDS) -> Any:
        """`poll` as a ``pyarrow.RecordBatch``, with no rows when none came within ``timeout``.

        Its columns are those of `penstock.arrow.read`. Needs the extra ``[arrow]``.
        """
        to_batch = arrow_rows()
        return to_batch(self.poll(timeout))

    def poll(self, timeout: Duration = POLL_SECONDS) -> list[StoredMessage]:
        """The next messages; an empty list when none came within ``timeout``."""
        limit = seconds(timeout)
        host = self._host
        # What an iteration was left with comes first.
        if unread := self._take_unread():
            return unread
        found: list[StoredMessage] = []
        try:
            return host.run(self._poll(limit, found))
        except KeyboardInterrupt:
            if self._lease is not None:
                host.call_soon(self._give_back, found)
            raise

    def __iter__(self) -> Iterator[StoredMessage]:
        """Message after message, until it is stopped; asking for the next one ends the one before.

        An iteration that was left can be resumed: a new one begins with the next message.
        """
        self._check_started()
        while self._lease is not None:
            while (message := self._next_unread()) is not None:
                yield message
            if self._lease is not None:
                self._unread.extend(self.poll())

    def seek(self, queue: MessageQueue, offset_or_time: int | Time) -> None:
        """Go on at another place of a queue that is read: an offset, or a datetime or its text."""
        self._host.run(seek_to(self._core, queue, offset_or_time))
        self._keep_unread(lambda unread: unread != queue)

    def pause(self, queues: Iterable[MessageQueue] | MessageQueue | None = None) -> None:
        """Have polls bring nothing of these queues, of all without ``queues``, until `resume`.

        Nothing is lost: what was read ahead waits, and the queues are kept. A queue that goes to
        another member and comes back is not paused any more.
        """
        self._host.run(_soon(self._core.pause, maybe_queue_set(queues)))

    def resume(self, queues: Iterable[MessageQueue] | MessageQueue | None = None) -> None:
        """Have polls bring these queues again, all without ``queues``."""
        self._host.run(_soon(self._core.resume, maybe_queue_set(queues)))

    def paused(self) -> set[MessageQueue]:
        """The queues that are paused now."""
        return self._host.run(_soon(self._core.paused))

    def commit(self) -> None:
        """Commit all messages handed out, and return when the brokers have it."""
        self._host.run(self._core.commit(list(self._unread)))

    def assignment(self) -> set[MessageQueue]:
        """The queues that are read now."""
        return self._host.run(_soon(self._core.assignment))


async def _soon(call: Callable[[*_Ts], _T], *args: *_Ts) -> _T:
    """Run a plain function on the session's loop."""
    return call(*args)


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
