"""`Producer` for ordinary, blocking Python."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

from penstock.client.arrow_support import arrow_sends
from penstock.client.blocking.entered import Entered, soon
from penstock.client.facades.producer import ProducerFacade
from penstock.client.producing import request_reply
from penstock.client.producing.blocking_send import BlockingSends, blocking_sends
from penstock.client.producing.outgoing import as_message, as_messages
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
from penstock.client.session.namespaces import wrap
from penstock.errors import LifecycleError, PenstockError
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.runtime.durations import Duration, seconds

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


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
            lease.host.run(soon(self._core.start))
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
            as_messages(messages), lambda batch: self._core.send_batch([*map(self._named, batch)])
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
