"""`Producer` for asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Sequence,
)
from functools import partial
from typing import (
    Any,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
    cast,
)

from penstock.client.arrow_support import arrow_sends
from penstock.client.consuming.listeners import is_coroutine_function
from penstock.client.facades.producer import ProducerFacade
from penstock.client.nonblocking.entered import Entered, soon
from penstock.client.producing import request_reply
from penstock.client.producing.async_send_futures import AsyncSendFutures
from penstock.client.producing.outgoing import as_message, as_messages
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
from penstock.client.session.tasks import Tasks
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.protocol.headers.transactions import TransactionDecision
from penstock.runtime.durations import Duration, seconds

log = logging.getLogger(__name__)

AwaitedCheck: TypeAlias = Callable[[StoredMessage], Awaitable[bool | None]]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


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
            await lease.host.await_(soon(self._core.start))
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
            as_messages(messages), lambda batch: self._core.send_batch([*map(self._named, batch)])
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
