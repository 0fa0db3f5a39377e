"""The common part of the blocking and the asyncio classes: settings, sessions, handlers.

Both create a core on the session's loop and forward calls to it; they differ only in how they wait.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import os
import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack, cast, overload

from penstock.client.arguments import (
    ConsumerOptions,
    ProducerOptions,
    PullConsumerOptions,
    Time,
    check_keywords,
    consumer_settings,
    producer_settings,
    session_settings,
    split,
    timestamp_ms,
)
from penstock.client.arguments import (
    start_from as parse_start_from,
)
from penstock.client.consuming.assignment import AssignmentStrategy
from penstock.client.consuming.executors import Executor, Finished
from penstock.client.consuming.handler_middleware import check_handler_middleware
from penstock.client.consuming.listeners import (
    Caller,
    HandlerFunction,
    is_coroutine_function,
)
from penstock.client.consuming.outcomes import ConsumeContext
from penstock.client.consuming.pull_consumer import BATCH_SIZE, PullConsumerCore
from penstock.client.consuming.pulling import FilterHook
from penstock.client.consuming.push_consumer import PushConsumerCore
from penstock.client.consuming.subscriptions import Subscriptions
from penstock.client.middleware import Middleware
from penstock.client.observing.tracing import Tracer
from penstock.client.options import check_count, check_flag
from penstock.client.producing.producer import ProducerCore
from penstock.client.producing.send_middleware import SendMiddleware
from penstock.client.producing.transactions import (
    MAX_WAITING_CHECKS,
    CheckTransaction,
    decision_of,
    refuse_coroutine_function,
)
from penstock.client.session import session_registry
from penstock.client.session.client_ids import renamed
from penstock.client.session.host import Host
from penstock.client.session.members import TransactionAnswer
from penstock.client.session.namespaces import wrap
from penstock.client.session.session_registry import Lease
from penstock.client.settings import (
    ConsumerSettings,
    Model,
    ProducerSettings,
    SessionSettings,
)
from penstock.errors import ConfigError, InvalidArgument, LifecycleError
from penstock.model import Message, MessageQueue, StoredMessage
from penstock.model.names import TRACE_TOPIC
from penstock.protocol.headers.transactions import TransactionDecision
from penstock.protocol.validation import check_topic
from penstock.runtime.durations import Duration

log = logging.getLogger(__name__)

QueueListener = Callable[[str, frozenset[MessageQueue]], None]
"""Called when the queues of a topic change, with the topic and the queues held now."""

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=HandlerFunction)
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Handled = TypeVarWithDefault("Handled", default=Any)
    """What a handler gets: one message, or a list of them; any of the two where it is not known."""
else:
    Handled = TypeVar("Handled")
_Given = TypeVar("_Given")


class Facade:
    """A client with a lease on its session, from start to stop."""

    _lease: Lease | None = None
    _was_stopped = False

    def __init_subclass__(cls) -> None:
        """Have Python name the public class, not a base class, when arguments are wrong."""
        super().__init_subclass__()
        init = cls.__init__
        if "__init__" in cls.__dict__ or not isinstance(init, types.FunctionType):
            return
        named = types.FunctionType(
            init.__code__, init.__globals__, "__init__", init.__defaults__, init.__closure__
        )
        functools.update_wrapper(named, init)
        del named.__wrapped__  # type: ignore[attr-defined]  # it is a copy, not a wrapper
        named.__kwdefaults__ = init.__kwdefaults__
        named.__qualname__ = cls.__name__
        cls.__init__ = named  # type: ignore[method-assign]

    def __init__(self, what: str, session: SessionSettings, *, is_named: bool) -> None:
        self._what = what
        self._session_settings = session
        self._namespace = session.access.namespace
        self._is_named = is_named
        self._process = os.getpid()

    @property
    def client_id(self) -> str:
        """The name by which brokers know this client."""
        return self._session_settings.client_id

    def _open(self) -> Lease:
        if self._lease is not None or self._was_stopped:
            raise LifecycleError(
                f"{self._what} was started twice", hint="a client is started once; make a new one"
            )
        if self._process != os.getpid() and not self._is_named:
            # Made before a fork, as in servers with workers. Members need different client ids.
            session = self._session_settings
            by_process = session.profile.instance_by_process
            new_id = renamed(session.client_id, by_process=by_process)
            self._session_settings = replace(session, client_id=new_id)
        self._lease = session_registry.lease(self._session_settings)
        return self._lease

    def _close(self) -> Lease | None:
        """Take the lease from this client; the caller releases it."""
        lease, self._lease = self._lease, None
        self._was_stopped = self._was_stopped or lease is not None
        return lease

    @property
    def _host(self) -> Host:
        if self._lease is None:
            raise self._not_running()
        return self._lease.host

    def _not_running(self) -> LifecycleError:
        return LifecycleError(
            f"{self._what} is not running", hint="start() it, or use it in a with block"
        )


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


class RegisterHandler(Protocol[_Given]):
    """A decorator for a handler: a function of one message or, in batches, of a list of them."""

    @overload
    def __call__(self, function: Callable[[_Given], _T]) -> Callable[[_Given], _T]: ...

    @overload
    def __call__(
        self, function: Callable[[_Given, ConsumeContext], _T]
    ) -> Callable[[_Given, ConsumeContext], _T]: ...


class PushConsumerKeywords(ConsumerOptions, total=False):
    """The keywords of push consumers but ``batch_size``, which decides what handlers get."""

    namesrv: str | Iterable[str] | None
    model: Model
    start_from: str | Time
    orderly: bool
    allocation: str | AssignmentStrategy
    threads: int
    max_retries: int | None
    instance: str | None
    middleware: Sequence[Middleware]
    filter_hooks: Sequence[FilterHook]
    on_queues_changed: QueueListener | None
    trace: bool | str


class PushConsumerFacade(Facade, Generic[Handled]):
    """The settings, the handlers and the core of a push consumer."""

    _core: PushConsumerCore

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Iterable[str] | None = None,
        model: Model = "clustering",
        start_from: str | Time = "last",
        orderly: bool = False,
        batch_size: int = 1,
        allocation: str | AssignmentStrategy = "average",
        threads: int = 20,
        max_retries: int | None = None,
        instance: str | None = None,
        middleware: Sequence[Middleware] = (),
        filter_hooks: Sequence[FilterHook] = (),
        on_queues_changed: QueueListener | None = None,
        trace: bool | str = False,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        check_keywords(PushConsumerFacade.__init__, options, ConsumerOptions.__optional_keys__)
        access, rest = split(dict(options))
        session = session_settings(
            namesrv, instance, access, keeps_default_instance=model == "broadcasting"
        )
        namespace = session.access.namespace
        self._settings = consumer_settings(
            group,
            namespace,
            model=model,
            start_from=parse_start_from(start_from),
            allocation=allocation,
            options={
                "orderly": orderly,
                "batch_size": batch_size,
                "threads": threads,
                "max_retries": max_retries,
                **rest,
            },
        )
        self._trace_topic = trace_topic(trace)
        self._middleware = tuple(middleware)
        check_handler_middleware(self._middleware, is_async=True)
        self._filter_hooks = tuple(filter_hooks)
        self._on_queues_changed = on_queues_changed
        self._handlers: list[tuple[str, HandlerFunction, str, str | None, object]] = []
        # Checked when a handler is given, not when the consumer starts.
        self._dry_run = Subscriptions(
            self._settings.group, with_retry=False, now_ms=lambda: 0, namespace=namespace
        )
        super().__init__(
            f"consumer {group!r}",
            session,
            # A broadcasting client keeps its offsets under its name.
            is_named=instance is not None or model == "broadcasting",
        )

    @overload
    def on(
        self, topic: str, *, tags: str = "*", sql: str | None = None
    ) -> RegisterHandler[Handled]: ...

    @overload
    def on(
        self, topic: str, *, tags: str = "*", sql: str | None = None, body: object
    ) -> RegisterHandler[Any]: ...

    def on(
        self,
        topic: str,
        *,
        tags: str = "*",
        sql: str | None = None,
        body: object = None,
        tag: object = None,
    ) -> RegisterHandler[Any]:
        """Register the decorated function as the handler of a topic.

        ``tags`` is ``*`` or ``"a || b"``; ``sql`` is an SQL92 expression over message properties
        instead. The function gets one message, or with a ``batch_size`` above one a list of them,
        and a `ConsumeContext` if it takes a second argument. It may be a coroutine function.

        With ``body``, a type, bodies are parsed as JSON, and the function gets `TypedMessage`
        objects: their ``value`` is a dataclass, a ``msgspec.Struct``, a pydantic model or what else
        the type is. A message whose body does not parse becomes a dead letter with the reason.
        """
        if tag is not None:
            raise InvalidArgument(
                f"on({topic!r}, tag={tag!r}): a filter selects one or several tags",
                expected="tags",
                hint=f"on({topic!r}, tags={tag!r})",
            )
        if not isinstance(topic, str):
            raise InvalidArgument(
                f"the topic of a handler is {topic!r}", expected='text, as in @consumer.on("topic")'
            )
        wrapped = wrap(self._namespace, topic)

        def register(function: _Function) -> _Function:
            takes_batch = self._settings.batch_size > 1
            is_async = is_coroutine_function(function)
            check_handler_middleware(self._middleware, is_async=is_async)
            self._dry_run.add(
                wrapped, function, tags=tags, sql=sql, takes_batch=takes_batch, body=body
            )
            self._handlers.append((wrapped, function, tags, sql, body))
            if self._lease is not None:
                self._host.call_soon(self._subscribe, wrapped, function, tags, sql, body)
            return function

        return cast("RegisterHandler[Handled]", register)

    def _subscribe(
        self, topic: str, function: HandlerFunction, tags: str, sql: str | None, body: object
    ) -> None:
        self._core.subscribe(topic, function, tags=tags, sql=sql, body=body)

    def _make_core(
        self, lease: Lease, handler_loop: Callable[[], asyncio.AbstractEventLoop]
    ) -> PushConsumerCore:
        settings = self._settings

        def make_executor(caller: Caller, finished: Finished, is_async: bool) -> Executor:
            return lease.host.executor(
                caller,
                finished,
                handler_loop=handler_loop() if is_async else None,
                limit=settings.threads,
                name=f"{settings.group} handler",
                task_limit=settings.task_limit,
            )

        core = PushConsumerCore(
            lease.session,
            settings,
            make_executor,
            middleware=self._middleware,
            filter_hooks=self._filter_hooks,
            on_change=None if self._on_queues_changed is None else self._call_queue_listener,
            tracer=make_tracer(lease, settings, self._trace_topic, "CONSUME"),
        )
        for topic, function, tags, sql, body in self._handlers:
            core.subscribe(topic, function, tags=tags, sql=sql, body=body)
        return core

    def _call_queue_listener(self, topic: str, queues: frozenset[MessageQueue]) -> None:
        """The user's listener runs on a thread, not on the session's loop."""
        tell = self._on_queues_changed
        assert tell is not None

        def run() -> None:
            try:
                tell(topic, queues)
            except BaseException:
                log.exception("queue listener failed topic=%s", topic)

        asyncio.get_running_loop().run_in_executor(None, run)


class PullConsumerFacade(Facade):
    """The settings and the core of a pull consumer."""

    _core: PullConsumerCore

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Iterable[str] | None = None,
        start_from: str | Time = "last",
        auto_commit: bool = True,
        batch_size: int = BATCH_SIZE,
        allocation: str | AssignmentStrategy = "average",
        instance: str | None = None,
        **options: Unpack[PullConsumerOptions],
    ) -> None:
        check_keywords(PullConsumerFacade.__init__, options, PullConsumerOptions.__optional_keys__)
        check_flag("auto_commit", auto_commit)
        check_count("batch_size", batch_size, 1, 1024)
        access, rest = split(dict(options))
        session = session_settings(namesrv, instance, access)
        self._settings = consumer_settings(
            group,
            session.access.namespace,
            model="clustering",
            start_from=parse_start_from(start_from),
            allocation=allocation,
            # The filter rides along with each pull, so assigned queues need no heartbeat.
            options={"pull_batch_size": batch_size, "post_subscription": True, **rest},
        )
        self._auto_commit = auto_commit
        self._wanted: list[tuple[str, str, str | None]] = []
        self._queues: frozenset[MessageQueue] | None = None
        # Polled by an iteration that has not come to them. They are here and not in the iterator,
        # so that one that is left early takes nothing with it.
        self._unread: deque[StoredMessage] = deque()
        super().__init__(f"pull consumer {group!r}", session, is_named=instance is not None)

    def _make_core(self, lease: Lease) -> PullConsumerCore:
        return PullConsumerCore(lease.session, self._settings, auto_commit=self._auto_commit)

    async def _start_core(self, lease: Lease) -> None:
        self._core = self._make_core(lease)
        for topic, tags, sql in self._wanted:
            await self._core.subscribe(topic, tags=tags, sql=sql)
        if self._queues is not None:
            await self._core.assign(self._queues)
        await self._core.start()

    def _want(self, topic: str, tags: str, sql: str | None) -> str:
        """Note a subscription; the topic under the name brokers know."""
        if self._queues is not None:
            raise self._either_or()
        topic = wrap(self._namespace, topic)
        self._wanted.append((topic, tags, sql))
        return topic

    def _check_assign(
        self, queues: Iterable[MessageQueue] | MessageQueue
    ) -> frozenset[MessageQueue]:
        if self._wanted:
            raise self._either_or()
        return queue_set(queues)

    def _check_started(self) -> None:
        """An iteration ends when the consumer is stopped; one that never began is a mistake."""
        if self._lease is None and not self._was_stopped:
            raise self._not_running()

    async def _poll(self, limit: float, found: list[StoredMessage]) -> list[StoredMessage]:
        found += await self._core.poll(limit)
        return found

    def _give_back(self, found: list[StoredMessage]) -> None:
        """On the session's loop: the poll was interrupted, perhaps after it found something.

        The next poll would count it as consumed.
        """
        if found:
            self._core.take_back()

    def _next_unread(self) -> StoredMessage | None:
        try:
            return self._unread.popleft()
        except IndexError:
            return None

    def _take_unread(self) -> list[StoredMessage]:
        unread: list[StoredMessage] = []
        while (message := self._next_unread()) is not None:
            unread.append(message)
        return unread

    def _keep_unread(self, keep: Callable[[MessageQueue], bool]) -> None:
        self._unread.extend([m for m in self._take_unread() if keep(m.queue)])

    def _either_or(self) -> InvalidArgument:
        return InvalidArgument(
            f"{self._what} both subscribes and is assigned queues", expected="one of them"
        )


def trace_topic(trace: bool | str) -> str | None:
    """The topic of traces: none, RocketMQ's own, or the one named."""
    if isinstance(trace, str):
        return check_topic(trace)
    if not isinstance(trace, bool):
        raise ConfigError(f"trace is {trace!r}", expected="True, False, or the name of a topic")
    return TRACE_TOPIC if trace else None


def make_tracer(
    lease: Lease, settings: ProducerSettings | ConsumerSettings, topic: str | None, role: str
) -> Tracer | None:
    """The tracer for a trace topic, if there is one."""
    if topic is None:
        return None
    return Tracer(
        lease.session, settings.group, role=role, topic=topic, namespace=settings.namespace
    )


def queue_set(queues: Iterable[MessageQueue] | MessageQueue) -> frozenset[MessageQueue]:
    """The queues of a call, read where the caller is; a queue is a tuple itself, meant as one."""
    if isinstance(queues, MessageQueue):
        return frozenset([queues])
    found = list(queues) if isinstance(queues, Iterable) else [queues]
    for queue in found:
        if not isinstance(queue, MessageQueue):
            raise InvalidArgument(f"{queue!r} is not a queue", expected="a MessageQueue or several")
    return frozenset(found)


def maybe_queue_set(
    queues: Iterable[MessageQueue] | MessageQueue | None,
) -> frozenset[MessageQueue] | None:
    """The same, where none means all."""
    return None if queues is None else queue_set(queues)


async def seek_to(
    core: PushConsumerCore | PullConsumerCore, queue: MessageQueue, place: int | Time
) -> None:
    """Go on elsewhere in a queue: an int is an offset; a datetime or text is a time."""
    if not isinstance(place, int) or isinstance(place, bool):
        await core.seek_time(queue, timestamp_ms(place))
        return
    if place < 0:
        raise InvalidArgument(f"offset {place}", expected="0 or more, or a time")
    await core.seek(queue, place)
