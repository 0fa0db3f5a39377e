"""The classes for asyncio: the same names as in `blocking`, with ``async``.

The session still has its own loop in its own thread, so that a handler that blocks the user's loop
cannot keep heartbeats from going out. Coroutine handlers run on the loop that called ``start``,
plain ones on threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from functools import partial
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
    Unpack,
    cast,
    overload,
)

from penstock.client.arguments import Time
from penstock.client.arrow_support import arrow_rows, arrow_sends
from penstock.client.consuming.listeners import is_coroutine_function
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
from penstock.client.producing.async_send_futures import AsyncSendFutures
from penstock.client.producing.outgoing import as_message
from penstock.client.producing.receipts import Receipt
from penstock.client.producing.selection import QueueSelector, chosen
from penstock.client.producing.send_middleware import SendMiddleware
from penstock.client.producing.send_queue import SendQueue
from penstock.client.producing.sending import SendDone
from penstock.client.producing.transactions import (
    NOT_RUN,
    LocalResult,
    PreparedMessage,
    decision_of,
    end_transaction,
    failed,
    send_half,
)
from penstock.client.session.members import TransactionAnswer
from penstock.client.session.namespaces import wrap
from penstock.client.session.session_registry import Lease
from penstock.client.session.tasks import Tasks
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.protocol.headers.transactions import TransactionDecision
from penstock.runtime.durations import Duration, seconds

log = logging.getLogger(__name__)

POLL_SECONDS = 5.0

AwaitedCheck: TypeAlias = Callable[[StoredMessage], Awaitable[bool | None]]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class Entered(ABC):
    """`start` and `stop` around a block."""

    @abstractmethod
    async def start(self) -> None:
        """Begin."""

    @abstractmethod
    async def stop(self) -> None:
        """End; idempotent."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()


class Producer(Entered, ProducerFacade):
    """Sends messages; the keywords are those of `penstock.Producer`.

    ``check_transaction`` and the methods of ``middleware`` may be coroutine functions, which then
    run on the loop of ``start``.
    """

    _send_queue: SendQueue
    _futures: AsyncSendFutures
    _may_await = True
    _loop: asyncio.AbstractEventLoop
    _checks: Tasks

    async def start(self) -> None:
        """Join the cluster; the first send finds the brokers."""
        lease = self._open()
        try:
            self._core = self._make_core(lease)
            self._send_queue = SendQueue(self._core, lease.host)
            self._loop = asyncio.get_running_loop()
            self._futures = AsyncSendFutures(self._loop)
            self._checks = Tasks(self._what)
            self._finishing: set[asyncio.Task[None]] = set()
            await lease.host.await_(_soon(self._core.start))
        except BaseException:
            self._close()
            await lease.release_async()
            raise

    async def stop(self) -> None:
        """Wait for the answers to open sends, then leave the cluster; idempotent."""
        lease = self._close()
        if lease is None:
            return
        try:
            await lease.host.await_(self._core.stop())
            # Not when an after_send calls this: it would wait for itself.
            if finishing := self._finishing - {asyncio.current_task()}:
                await asyncio.wait(finishing)
        finally:
            await self._checks.close()
            await lease.release_async()
            if self._checkers is not None:
                self._checkers.shutdown(wait=False)

    def _check_elsewhere(self, message: StoredMessage, answer: TransactionAnswer) -> None:
        if self._check is not None and is_coroutine_function(self._check):
            self._loop.call_soon_threadsafe(self._begin_check, message, answer)
        else:
            super()._check_elsewhere(message, answer)

    def _begin_check(self, message: StoredMessage, answer: TransactionAnswer) -> None:
        self._checks.spawn(self._await_check(message, answer), "transaction check")

    async def _await_check(self, message: StoredMessage, answer: TransactionAnswer) -> None:
        check, host = cast(AwaitedCheck, self._check), self._host
        try:
            decision = decision_of(await check(message), message.msg_id)
        except Exception:
            log.exception("transaction check failed msg_id=%s", message.msg_id)
            decision = TransactionDecision.UNKNOWN
        host.call_soon(answer, decision)

    async def send(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        queue: MessageQueue | QueueSelector | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109  it covers all attempts
    ) -> Receipt:
        """Send a message and return when a broker has it; see `penstock.Producer.send`."""
        if body is not None or type(message) is not Message:
            message = as_message(message, body)
        if self._middleware is None:
            return await self._send(message, queue, timeout)
        return await self._middleware.around_async(
            (message,), lambda messages: self._send(messages[0], queue, timeout), queue
        )

    async def _send(
        self,
        message: Message,
        queue: MessageQueue | QueueSelector | None,
        timeout: Duration | None,  # noqa: ASYNC109
    ) -> Receipt:
        if queue is not None and not isinstance(queue, MessageQueue):
            queue = await self._choose(queue, message)
        return await self._put(message, queue, timeout, retry=True)

    async def submit(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        queue: MessageQueue | QueueSelector | None = None,
    ) -> asyncio.Future[Receipt]:
        """Send a message and return at once; the future gets the receipt.

        Waits while ``max_in_flight`` sends wait for their answers.
        """
        if body is not None or type(message) is not Message:
            message = as_message(message, body)
        if self._middleware is not None:
            return await self._submit_around(self._middleware, message, queue)
        if queue is not None and not isinstance(queue, MessageQueue):
            queue = await self._choose(queue, message)
        if self._futures.unanswered >= self._settings.max_in_flight:
            await self._room()
        return self._put(message, queue, None, retry=False)

    async def _room(self) -> None:
        while self._futures.unanswered >= self._settings.max_in_flight:
            await self._futures.room()

    async def _submit_around(
        self,
        middleware: SendMiddleware,
        message: Message,
        queue: MessageQueue | QueueSelector | None,
    ) -> asyncio.Future[Receipt]:
        """A submit whose future gets its result after every ``after_send``."""
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        try:
            call = await middleware.begin_async((message,), queue)
        except Exception as error:
            future.set_exception(error)
            return future
        try:
            message = call.messages[0]
            if queue is not None and not isinstance(queue, MessageQueue):
                queue = await self._choose(queue, message)
            await self._room()
            sent = self._put(message, queue, None, retry=False)
        except BaseException as error:
            await middleware.finish_async(call, error)
            raise

        async def finish() -> None:
            try:
                result: Receipt | Exception = await sent
            except Exception as error:
                result = error
            await middleware.finish_async(call, result)
            if future.done():
                return
            if isinstance(result, Receipt):
                future.set_result(result)
            else:
                future.set_exception(result)

        task = asyncio.get_running_loop().create_task(finish(), name=f"{self._what} after_send")
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return future

    async def _choose(self, queue: QueueSelector, message: Message) -> MessageQueue | None:
        named = self._named(message)
        queues = self._known_queues(named.topic)
        if not queues:
            queues = await self._host.await_(
                self._core.wait_for_queues(named.topic, self._settings.send_timeout)
            )
        return chosen(queue, queues, named)

    def _put(
        self,
        message: Message,
        queue: MessageQueue | None,
        timeout: Duration | None,
        *,
        retry: bool,
    ) -> asyncio.Future[Receipt]:
        if self._namespace:
            message = self._named(message)
        limit = None if timeout is None else seconds(timeout)
        host = self._host
        send = self._futures.expect()
        done: SendDone = send  # type: ignore[assignment]  # mypy calls no tuple
        self._send_queue.put((message, host.expect(done), queue, limit, retry))
        return send.future

    async def send_oneway(self, message: Message | str, body: bytes | None = None) -> None:
        """Send a message without waiting for an answer: one attempt, no receipt."""
        message = as_message(message, body)
        await self._await_around(
            (message,), lambda batch: self._core.send_oneway(self._named(batch[0]))
        )

    async def send_batch(self, messages: Iterable[Message]) -> Receipt:
        """Send messages of one topic in one request: all are stored, or none."""
        return await self._await_around(
            tuple(messages), lambda batch: self._core.send_batch([*map(self._named, batch)])
        )

    async def send_arrow(self, data: Any, topic: str | None = None) -> int:
        """Send the rows of an Arrow table and return their number, when all are stored.

        ``data`` is a pyarrow table, batch or reader, or a frame of Polars, pandas or DuckDB. The
        column ``body`` is required; ``topic``, ``keys``, ``tags``, ``properties``, ``sharding_key``
        and ``delay`` are used if they are there. The argument ``topic`` overrides the column. Rows
        without a sharding key go to any queue. Middleware is not called. Needs ``[arrow]``.
        """
        send_table = arrow_sends()
        named = partial(wrap, self._namespace)
        return await self._host.await_(send_table(self._core, data, topic, named))

    async def request(self, message: Message, timeout: Duration) -> StoredMessage:  # noqa: ASYNC109
        """Send a message and wait for the reply of its consumer."""
        limit = seconds(timeout)
        return await self._await_around(
            (message,),
            lambda batch: request_reply.request(self._core, self._named(batch[0]), limit),
        )

    async def reply(self, request: StoredMessage, body: bytes) -> Receipt:
        """Answer a message that was sent with `request`."""
        return await self._host.await_(request_reply.reply(self._core, request, body))

    async def send_in_transaction(
        self, message: Message, execute: Callable[[PreparedMessage], Awaitable[bool | None]]
    ) -> Receipt:
        """Send a message that becomes visible only if ``execute`` returns True.

        See `penstock.Producer.send_in_transaction`.
        """

        async def send(messages: Sequence[Message]) -> Receipt:
            [message] = messages
            host = self._host
            half = await host.await_(send_half(self._core, self._named(message)))
            result = NOT_RUN
            if half.is_safe:
                msg_id = half.receipt.msg_id
                try:
                    decision = await execute(half.prepared(message))
                    result = LocalResult(decision_of(decision, msg_id))
                except Exception as error:
                    result = failed(error, msg_id)
            return await host.await_(end_transaction(self._core, half, result))

        if self._middleware is None:
            return await send((message,))
        return await self._middleware.around_async((message,), send)

    async def _await_around(
        self,
        messages: Sequence[Message],
        work: Callable[[Sequence[Message]], Coroutine[Any, Any, _T]],
    ) -> _T:
        """Run a send on the session's loop, with middleware around it on the caller's loop."""
        host = self._host
        if self._middleware is None:
            return await host.await_(work(messages))
        return await self._middleware.around_async(messages, lambda batch: host.await_(work(batch)))

    async def recall(self, topic: str, handle: str) -> str:
        """Take a timer message back before it is due; return its unique id.

        ``handle`` is the ``recall_handle`` of its receipt. The broker must allow it
        (``recallMessageEnable``). `IllegalOperation`: it is due, was delivered or is not known.
        """
        return await self._host.await_(self._core.recall(wrap(self._namespace, topic), handle))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic a message can be sent to."""
        return list(await self._host.await_(self._core.queues(wrap(self._namespace, topic))))


class PushConsumer(Entered, PushConsumerFacade[Handled]):
    """Calls handlers with the messages of its topics; keywords as in `penstock.PushConsumer`."""

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

    _stopping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Join the group and begin to consume; coroutine handlers run on this loop."""
        lease = self._open()
        loop = asyncio.get_running_loop()
        self._stop_asked = asyncio.Event()
        try:
            await lease.host.await_(self._start(lease, loop))
        except BaseException:
            self._close()
            await lease.release_async()
            raise

    async def _start(self, lease: Lease, loop: asyncio.AbstractEventLoop) -> None:
        self._core = self._make_core(lease, lambda: loop)
        await self._core.start()

    async def run(self) -> None:
        """Consume until cancelled, SIGTERM or `stop`; then finish what runs and leave.

        It returns when everything is committed and the group left.
        """
        await self.start()
        try:
            with _sigterm_sets(self._stop_asked):
                await self._stop_asked.wait()
        finally:
            await self.stop()

    async def stop(self, timeout: Duration = 30) -> None:  # noqa: ASYNC109  how long to drain
        """Take no new work, wait for running handlers, commit, leave; idempotent.

        Cancelling it skips the wait. A second call waits for the first. Called by a handler of
        this consumer it only begins the stop and returns at once: the handler is among what is
        waited for, and its message is committed.
        """
        lease = self._close()
        if lease is not None:
            self._stopping = asyncio.ensure_future(self._stop_now(lease, seconds(timeout)))
            self._stop_asked.set()
        stopping = self._stopping
        if stopping is None or self._core.is_calling:
            return
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            stopping.cancel()
            await asyncio.wait([stopping])
            raise

    async def _stop_now(self, lease: Lease, timeout: float) -> None:  # noqa: ASYNC109
        leaving = asyncio.ensure_future(lease.host.await_(self._core.stop(timeout)))
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError:
            lease.host.call_soon(self._core.hurry)
            await leaving
            raise
        finally:
            await lease.release_async()

    async def pause(self) -> None:
        """Pull nothing more until `resume`; what is cached is still consumed."""
        await self._host.await_(_soon(self._core.pause))

    async def resume(self) -> None:
        """Pull again."""
        await self._host.await_(self._core.resume())

    async def seek(self, queue: MessageQueue, offset_or_time: int | Time) -> None:
        """Go on at another place of a queue that is held: an offset, or a datetime or its text."""
        await self._host.await_(seek_to(self._core, queue, offset_or_time))

    async def assignment(self) -> set[MessageQueue]:
        """The queues of the subscribed topics that this consumer holds now."""
        return await self._host.await_(_soon(self._core.assignment))

    async def stats(self) -> ConsumerStats:
        """Rates, counts and where each queue stands."""
        return await self._host.await_(_soon(consumer_stats, self._core))


class PullConsumer(Entered, PullConsumerFacade):
    """Hands out messages when asked; the keywords are those of `penstock.PullConsumer`."""

    async def start(self) -> None:
        """Join the group and begin to read ahead."""
        lease = self._open()
        try:
            await lease.host.await_(self._start_core(lease))
        except BaseException:
            self._close()
            await lease.release_async()
            raise

    async def stop(self) -> None:
        """Commit what was consumed and leave; idempotent.

        What the last poll brought is not committed and comes again: `commit` first if it is done.
        """
        lease = self._close()
        if lease is None:
            return
        self._unread.clear()
        try:
            await lease.host.await_(self._core.stop())
        finally:
            await lease.release_async()

    async def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Share the queues of a topic with the other members of the group."""
        topic = self._want(topic, tags, sql)
        if self._lease is not None:
            await self._host.await_(self._core.subscribe(topic, tags=tags, sql=sql))

    async def assign(self, queues: Iterable[MessageQueue] | MessageQueue) -> None:
        """Read exactly these queues, or this one, without regard to other members."""
        self._queues = self._check_assign(queues)
        if self._lease is not None:
            await self._host.await_(self._core.assign(self._queues))
            self._keep_unread(self._queues.__contains__)

    async def poll_arrow(self, timeout: Duration = POLL_SECONDS) -> Any:  # noqa: ASYNC109
        """`poll` as a ``pyarrow.RecordBatch``, with no rows when none came within ``timeout``.

        Its columns are those of `penstock.arrow.read`. Needs the extra ``[arrow]``.
        """
        to_batch = arrow_rows()
        return to_batch(await self.poll(timeout))

    async def poll(self, timeout: Duration = POLL_SECONDS) -> list[StoredMessage]:  # noqa: ASYNC109
        """The next messages; an empty list when none came within ``timeout``."""
        limit = seconds(timeout)
        host = self._host
        # What an iteration was left with comes first.
        if unread := self._take_unread():
            return unread
        found: list[StoredMessage] = []
        try:
            return await host.await_(self._poll(limit, found))
        except asyncio.CancelledError:
            if self._lease is not None:
                host.call_soon(self._give_back, found)
            raise

    async def __aiter__(self) -> AsyncIterator[StoredMessage]:
        """Message after message, until it is stopped; asking for the next one ends the one before.

        An iteration that was left can be resumed: a new one begins with the next message.
        """
        self._check_started()
        while self._lease is not None:
            while (message := self._next_unread()) is not None:
                yield message
            if self._lease is not None:
                self._unread.extend(await self.poll())

    async def seek(self, queue: MessageQueue, offset_or_time: int | Time) -> None:
        """Go on at another place of a queue that is read: an offset, or a datetime or its text."""
        await self._host.await_(seek_to(self._core, queue, offset_or_time))
        self._keep_unread(lambda unread: unread != queue)

    async def pause(self, queues: Iterable[MessageQueue] | MessageQueue | None = None) -> None:
        """Have polls bring nothing of these queues, of all without ``queues``, until `resume`.

        Nothing is lost: what was read ahead waits, and the queues are kept. A queue that goes to
        another member and comes back is not paused any more.
        """
        await self._host.await_(_soon(self._core.pause, maybe_queue_set(queues)))

    async def resume(self, queues: Iterable[MessageQueue] | MessageQueue | None = None) -> None:
        """Have polls bring these queues again, all without ``queues``."""
        await self._host.await_(_soon(self._core.resume, maybe_queue_set(queues)))

    async def paused(self) -> set[MessageQueue]:
        """The queues that are paused now."""
        return await self._host.await_(_soon(self._core.paused))

    async def commit(self) -> None:
        """Commit all messages handed out, and return when the brokers have it."""
        await self._host.await_(self._core.commit(list(self._unread)))

    async def assignment(self) -> set[MessageQueue]:
        """The queues that are read now."""
        return await self._host.await_(_soon(self._core.assignment))


async def _soon(call: Callable[[*_Ts], _T], *args: *_Ts) -> _T:
    """Run a plain function on the session's loop."""
    return call(*args)


@contextlib.contextmanager
def _sigterm_sets(event: asyncio.Event) -> Iterator[None]:
    """Let SIGTERM end a `run`, where the loop can handle signals and the program does not."""
    loop = asyncio.get_running_loop()
    is_handled = False
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # Loops of other threads, and of other systems than Unix, have no signals.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(signal.SIGTERM, event.set)
            is_handled = True
    try:
        yield
    finally:
        if is_handled:
            loop.remove_signal_handler(signal.SIGTERM)
