"""The settings and the core of a producer."""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Unpack

from penstock.client.arguments import (
    ProducerOptions,
    check_keywords,
    producer_settings,
    session_settings,
    split,
)
from penstock.client.facades.facade import Facade
from penstock.client.facades.values import (
    make_tracer,
    trace_topic,
)
from penstock.client.middleware import Middleware
from penstock.client.producing.producer import ProducerCore
from penstock.client.producing.send_middleware import SendMiddleware
from penstock.client.producing.transactions import (
    MAX_WAITING_CHECKS,
    CheckTransaction,
    decision_of,
    refuse_coroutine_function,
)
from penstock.client.session.members import TransactionAnswer
from penstock.client.session.namespaces import wrap
from penstock.client.session.session_registry import Lease
from penstock.errors import InvalidArgument
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.protocol.headers.transactions import TransactionDecision
from penstock.protocol.validation import check_topic
from penstock.runtime.durations import Duration

log = logging.getLogger(__name__)


class ProducerFacade(Facade):
    """The settings and the core of a producer."""

    _core: ProducerCore
    _may_await = False
    """Whether functions of the user may be coroutine functions."""

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Iterable[str] | None = None,
        send_timeout: Duration = 3,
        retries: int = 2,
        linger: Duration = 0,
        compress_over: int = 4096,
        instance: str | None = None,
        check_transaction: CheckTransaction | None = None,
        topics: Iterable[str] = (),
        trace: bool | str = False,
        middleware: Sequence[Middleware] = (),
        **options: Unpack[ProducerOptions],
    ) -> None:
        check_keywords(ProducerFacade.__init__, options, ProducerOptions.__optional_keys__)
        access, rest = split(
            {
                "send_timeout": send_timeout,
                "retries": retries,
                "linger": linger,
                "compress_over": compress_over,
                **options,
            }
        )
        session = session_settings(namesrv, instance, access)
        self._settings = producer_settings(group, session.access.namespace, rest)
        self._trace_topic = trace_topic(trace)
        self._middleware = SendMiddleware.of(group, middleware, may_await=self._may_await)
        if not self._may_await:
            refuse_coroutine_function(check_transaction, "check_transaction")
        self._check = check_transaction
        if isinstance(topics, str):
            raise InvalidArgument(f"topics is {topics!r}", expected="several names, as in a list")
        self._topics = tuple(topics)
        self._waiting_checks = 0
        self._checkers: concurrent.futures.ThreadPoolExecutor | None = None
        super().__init__(f"producer {group!r}", session, is_named=instance is not None)

    def _make_core(self, lease: Lease) -> ProducerCore:
        check = None if self._check is None else self._check_elsewhere
        tracer = make_tracer(lease, self._settings, self._trace_topic, "PRODUCE")
        topics = [wrap(self._namespace, check_topic(topic)) for topic in self._topics]
        return ProducerCore(
            lease.session, self._settings, check=check, tracer=tracer, topics=topics
        )

    def _check_elsewhere(self, message: StoredMessage, answer: TransactionAnswer) -> None:
        """Run the user's check on another thread, never on the session's loop."""
        check, host = self._check, self._host
        assert check is not None
        if self._waiting_checks >= MAX_WAITING_CHECKS:
            log.warning("too many transaction checks, one dropped msg_id=%s", message.msg_id)
            return
        self._waiting_checks += 1
        if self._checkers is None:
            self._checkers = concurrent.futures.ThreadPoolExecutor(
                1, thread_name_prefix=f"{self._what} transactions"
            )

        def run() -> None:
            try:
                decision = decision_of(check(message), message.msg_id)
            except BaseException:
                log.exception("transaction check failed msg_id=%s", message.msg_id)
                decision = TransactionDecision.UNKNOWN
            host.call_soon(done, decision)

        def done(decision: int) -> None:
            self._waiting_checks -= 1
            answer(decision)

        self._checkers.submit(run)

    def _named(self, message: Message) -> Message:
        """The message under the topic name brokers know."""
        if not self._namespace:
            return message
        return replace(message, topic=wrap(self._namespace, message.topic))

    def _known_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        # Safe from another thread: one lookup of an immutable tuple.
        return self._core.session.routes.publish_queues(topic)
