"""The settings, handlers and the core of a push consumer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack, cast, overload

from penstock.client.arguments import (
    ConsumerOptions,
    Time,
    check_keywords,
    consumer_settings,
    session_settings,
    split,
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
from penstock.client.consuming.pulling import FilterHook
from penstock.client.consuming.push_consumer import PushConsumerCore
from penstock.client.consuming.subscriptions import Subscriptions
from penstock.client.facades.facade import Facade
from penstock.client.facades.values import (
    check_filter,
    make_tracer,
    trace_topic,
)
from penstock.client.middleware import Middleware
from penstock.client.session.namespaces import wrap
from penstock.client.session.session_registry import Lease
from penstock.client.settings import (
    Model,
)
from penstock.errors import InvalidArgument
from penstock.model import MessageQueue

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
        check_filter("on", topic, tags, tag)
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
