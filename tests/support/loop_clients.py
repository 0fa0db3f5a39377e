"""Clients whose sessions and handlers all live on the running loop, usually a virtual one.

The public classes put each session on a thread. For a whole cluster in virtual time there is one
thread and one loop, and nothing may leave it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec

from tests.support.scripted import ScriptedBroker, ScriptedCluster

from penstock.client.cluster_access import ClusterAccess, Credentials
from penstock.client.consuming.executors import CoroutineExecutor, Executor, InlineExecutor
from penstock.client.consuming.listeners import Caller, HandlerFunction, Job
from penstock.client.consuming.pulling import FilterHook
from penstock.client.consuming.push_consumer import PushConsumerCore
from penstock.client.middleware import Middleware
from penstock.client.producing.producer import ProducerCore
from penstock.client.session.client_session import ClientSession
from penstock.client.settings import (
    ConsumerSettings,
    ProducerSettings,
    SessionSettings,
    profile,
)
from penstock.model import MessageQueue
from penstock.runtime.clock import Clock
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual

P = ParamSpec("P")


def loop_session(
    namesrv: str,
    clock: Clock,
    name: str = "c1",
    *,
    seed: int = 0,
    credentials: Credentials | None = None,
    **settings: Any,
) -> ClientSession:
    """A session called ``127.0.0.1@name``; ``profile`` may be given by name."""
    chosen = profile(settings.pop("profile", "current"))
    return ClientSession(
        SessionSettings(
            access=ClusterAccess(namesrv=tuple(namesrv.split(";")), credentials=credentials),
            client_id=f"127.0.0.1@{name}",
            profile=chosen,
            **settings,
        ),
        clock=clock,
        chance=random.Random(f"{seed} {name}"),
    )


def loop_consumer(
    session: ClientSession,
    group: str,
    handlers: Mapping[str, HandlerFunction],
    *,
    tags: str = "*",
    sql: str | None = None,
    middleware: Sequence[Middleware] = (),
    filter_hooks: Sequence[FilterHook] = (),
    on_change: Callable[[str, frozenset[MessageQueue]], None] | None = None,
    **settings: Any,
) -> PushConsumerCore:
    """A push consumer; coroutine handlers run on this loop, plain ones as events of it."""
    loop = asyncio.get_running_loop()
    chosen = ConsumerSettings(group=group, **settings)

    def make_executor(
        caller: Caller, finished: Callable[[list[Job]], None], is_async: bool
    ) -> Executor:
        if is_async:
            return CoroutineExecutor(
                loop,
                loop,
                caller.call_async,
                finished,
                limit=chosen.threads,
                name=f"{group} handler",
                task_limit=chosen.task_limit,
            )
        return InlineExecutor(
            loop, caller.call, finished, threads=chosen.threads, task_limit=chosen.task_limit
        )

    consumer = PushConsumerCore(
        session,
        chosen,
        make_executor,
        middleware=middleware,
        filter_hooks=filter_hooks,
        on_change=on_change,
    )
    for topic, handler in handlers.items():
        consumer.subscribe(topic, handler, tags=tags, sql=sql)
    return consumer


def loop_producer(session: ClientSession, group: str, **settings: Any) -> ProducerCore:
    """A started producer."""
    producer = ProducerCore(session, ProducerSettings(group=group, **settings))
    producer.start()
    return producer


class Bench:
    """A scripted cluster with clients around it, on one virtual loop; ends what it began."""

    def __init__(self, loop: VirtualLoop, cluster: ScriptedCluster) -> None:
        self.loop = loop
        self.clock = loop.clock
        self.cluster = cluster
        self.sessions: dict[str, ClientSession] = {}
        self._consumers: list[PushConsumerCore] = []

    @property
    def broker(self) -> ScriptedBroker:
        """The first broker."""
        return next(iter(self.cluster.brokers.values()))

    def session(self, name: str = "c1", **settings: Any) -> ClientSession:
        """The session of that name, made at its first use."""
        if name not in self.sessions:
            self.sessions[name] = loop_session(
                self.cluster.namesrv, self.clock, name, seed=self.loop.seed, **settings
            )
        return self.sessions[name]

    async def consumer(
        self,
        handlers: Mapping[str, HandlerFunction] | HandlerFunction,
        *,
        group: str = "billing",
        name: str = "c1",
        profile: str = "current",
        start: bool = True,
        **settings: Any,
    ) -> PushConsumerCore:
        """A running consumer; a bare handler is one of topic T."""
        if not isinstance(handlers, Mapping):
            handlers = {"T": handlers}
        session = self.session(name, profile=profile)
        consumer = loop_consumer(session, group, handlers, **settings)
        self._consumers.append(consumer)
        if start:
            await consumer.start()
        return consumer

    def producer(self, *, group: str = "shop", name: str = "p1", **settings: Any) -> ProducerCore:
        """A running producer."""
        return loop_producer(self.session(name), group, **settings)

    async def end(self) -> None:
        """Stop all that was started, without waiting for handlers."""
        for consumer in self._consumers:
            consumer.hurry()
            await consumer.stop(0.0)
        for session in self.sessions.values():
            await session.stop()


def on_bench(
    *,
    brokers: Sequence[str] = ("broker-a",),
    topics: Mapping[str, int] = MappingProxyType({"T": 4, "U": 2}),
    seed: int = 0,
) -> Callable[[Callable[Concatenate[Bench, P], Awaitable[None]]], Callable[P, None]]:
    """Turn ``async def test(bench, ...)`` into a test that runs in virtual time.

    The cluster has ``topics`` with so many queues on each broker.
    """

    def decorate(test: Callable[Concatenate[Bench, P], Awaitable[None]]) -> Callable[P, None]:
        @functools.wraps(test)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            async def main(loop: VirtualLoop) -> None:
                async with ScriptedCluster(loop.clock, brokers=brokers) as cluster:
                    for topic, queues in topics.items():
                        cluster.add_topic(topic, queues)
                    bench = Bench(loop, cluster)
                    try:
                        await test(bench, *args, **kwargs)
                    finally:
                        await bench.end()

            run_virtual(main, seed=seed)

        # pytest must not look for a fixture called bench.
        signature = inspect.signature(test)
        parameters = list(signature.parameters.values())[1:]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        del run.__wrapped__
        return run

    return decorate
