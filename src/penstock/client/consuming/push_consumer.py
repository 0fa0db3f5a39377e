"""A push consumer: wires pulling, rebalancing and the runner of handlers together.

It lives on its session's loop. Handlers run where the executors are: on threads, or on the loop
that started the consumer.

    start    offsets loaded ─▶ joins the session ─▶ routes ─▶ SQL filters checked
             ─▶ heartbeat ─▶ rebalance at once
    stop     no new work ─▶ running handlers end ─▶ offsets committed ─▶ locks given back
             ─▶ leaves the group
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from penstock.client import requests
from penstock.client.consuming.concurrent import ConcurrentRunner
from penstock.client.consuming.consumer_core import ConsumerCore
from penstock.client.consuming.executors import Executor
from penstock.client.consuming.listeners import Caller, HandlerFunction, Job, Listener
from penstock.client.consuming.offset_stores import (
    BrokerOffsetStore,
    FileOffsetStore,
    OffsetStore,
    ReadFrom,
)
from penstock.client.consuming.orderly import OrderlyRunner
from penstock.client.consuming.pop_loops import PopLoops
from penstock.client.consuming.pop_receipts import PopRequests
from penstock.client.consuming.pop_retries import PopRetries
from penstock.client.consuming.pop_runner import PopRunner
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.consuming.pulling import FilterHook, Puller
from penstock.client.consuming.rebalance import Rebalancer
from penstock.client.consuming.send_back import FailedMessages
from penstock.client.middleware import Middleware
from penstock.client.observing.running_info import consume_once, running_info
from penstock.client.observing.tracing import Tracer
from penstock.client.producing.producer import ProducerCore
from penstock.client.session.client_session import INNER_PRODUCER, ClientSession
from penstock.client.settings import ConsumerSettings, ProducerSettings
from penstock.errors import InvalidArgument, LifecycleError, PenstockError
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import RETRY_PREFIX
from penstock.model.subscription import SQL92
from penstock.protocol.bodies.common import (
    ConsumeType,
)
from penstock.protocol.bodies.running import ConsumeDirectlyResult, ConsumerRunningInfo

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0
DRAIN_STEP = 0.01
RESET_SECONDS = 10.0
REST_SECONDS = 1.0
"""How long a stop waits for a rebalance that may just have been given locks."""

MakeExecutor = Callable[[Caller, Callable[[list[Job]], None], bool], Executor]
"""Makes the executor of plain (False) or coroutine (True) handlers."""


class PushConsumerCore(ConsumerCore):
    """A consumer group of one session that calls handlers."""

    consume_type = ConsumeType.CONSUME_PASSIVELY

    def __init__(
        self,
        session: ClientSession,
        settings: ConsumerSettings,
        make_executor: MakeExecutor,
        *,
        middleware: Sequence[Middleware] = (),
        filter_hooks: Sequence[FilterHook] = (),
        offset_store: OffsetStore | None = None,
        on_change: Callable[[str, frozenset[MessageQueue]], None] | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        super().__init__(
            session,
            settings,
            offset_store or _default_offset_store(session, settings),
            with_retry=settings.is_clustering,
        )
        state = self.state
        self.tracer = tracer
        self._inner = ProducerCore(session, ProducerSettings(group=INNER_PRODUCER))
        failed = FailedMessages(session, settings, self._inner)
        self.caller = Caller(
            settings.group,
            session.clock,
            timeout=settings.consume_timeout,
            orderly=settings.orderly,
            needs_lock=settings.orderly and settings.is_clustering,
            middleware=middleware if tracer is None else (*middleware, tracer),
            namespace=settings.namespace,
        )
        self.make_executor = make_executor
        self._executors: dict[tuple[bool, bool], Executor] = {}
        """By whether handlers are coroutines, and whether their messages were popped."""
        runner_type = OrderlyRunner if settings.orderly else ConcurrentRunner
        self.runner: OrderlyRunner | ConcurrentRunner = runner_type(
            state, failed, listener=self.listener_for, executor=self._executor
        )
        pops = PopRequests(session, settings.group, settings.namespace)
        self.pop_runner = PopRunner(
            state, pops, failed, listener=self.listener_for, executor=self._pop_executor
        )
        self.pop_loops = PopLoops(state, pops, self.pop_runner)
        self._pop_retries = PopRetries(state, self.pop_loops.popped_topics)
        self.rebalancer = Rebalancer(
            state,
            popped_topics=self.pop_loops.popped_topics,
            pull=lambda cursor, delay: self.puller.begin(cursor, delay),
            locks=self.runner if isinstance(self.runner, OrderlyRunner) else None,
            on_change=on_change,
        )
        self.puller = Puller(
            state,
            self.runner,
            start_offset=self.rebalancer.start_offset,
            on_illegal_offset=self.rebalancer.repair,
            filter_hooks=filter_hooks,
        )
        self._phase = "new"
        self._is_hurried = False

    def subscribe(
        self,
        topic: str,
        function: HandlerFunction,
        *,
        tags: str = "*",
        sql: str | None = None,
        body: object = None,
    ) -> None:
        """Have ``function`` handle a topic; a running consumer tells the brokers at once."""
        takes_batch = self.settings.batch_size > 1
        self.state.subscriptions.add(
            topic, function, tags=tags, sql=sql, takes_batch=takes_batch, body=body
        )
        if self._phase == "running":
            self.state.tasks.spawn(self._join_topic(topic), f"subscribe {topic}")

    def unsubscribe(self, topic: str) -> None:
        """End a subscription; its queues are given up in order, not just dropped."""
        self.state.subscriptions.remove(topic)
        if self._phase == "running":
            self.session.wake_rebalance()

    async def _join_topic(self, topic: str) -> None:
        try:
            await self.session.refresh_route(topic)
        except PenstockError as error:
            log.warning("route not found yet topic=%s error=%s", topic, error)
        await self.session.heartbeat_all()
        self.session.wake_rebalance()

    # --------------------------------------------------------------------------- lifecycle

    async def start(self) -> None:
        """Join the group and begin to consume."""
        if self._phase != "new":
            raise LifecycleError(
                f"consumer {self.group!r} was started twice",
                hint="a consumer is started once; make a new one",
            )
        if not self.state.subscriptions.has_handlers:
            raise InvalidArgument(
                f"consumer {self.group!r} has no subscription",
                hint='decorate a function with @consumer.on("topic")',
            )
        self._phase = "starting"
        await self.state.offsets.load()
        try:
            self.session.add_consumer(self)
        except LifecycleError:
            self._phase = "new"
            raise
        try:
            await self._begin()
        except BaseException:
            self._phase = "failed"
            await self._leave()
            raise

    async def _begin(self) -> None:
        state, session = self.state, self.session
        session.start()
        self._inner.join_quietly()
        await state.statistics.start()
        if self.tracer is not None:
            self.tracer.start()
        self.runner.start()
        if self.settings.mode != "pull":
            self.pop_runner.start()
        self.started_ms = session.clock.time_ms()
        state.is_running = True
        self._phase = "running"
        await session.refresh_all_routes()
        for subscription in state.subscriptions.all:
            if subscription.expression_type == SQL92:
                await self._check_filter(subscription.topic)
        await session.heartbeat_all()
        await self.pop_loops.check()
        session.wake_rebalance()
        log.info(
            "consumer started group=%s client=%s model=%s orderly=%s topics=%s",
            self.group,
            session.client_id,
            self.settings.model,
            self.settings.orderly,
            ",".join(topic for topic in self.topics if not topic.startswith(RETRY_PREFIX)),
        )

    async def _check_filter(self, topic: str) -> None:
        subscription = self.state.subscriptions[topic]
        addresses = self.session.routes.addresses_of(topic)
        if subscription is not None and addresses:
            await self.session.calls.call(
                self.session.chance.choice(addresses),
                requests.check_filter(self.session.client_id, self.group, subscription),
            )

    async def stop(self, seconds: float = DRAIN_SECONDS) -> list[StoredMessage]:
        """Finish what runs, commit, leave; return the messages whose handlers did not end.

        Nothing that was not started is started. What ends in time is committed, so the next owner
        sees none of it again; what does not is named in the log and delivered again.
        """
        if self._phase != "running":
            return []
        self._phase = "stopping"
        state = self.state
        state.is_stopping = True
        for (_, is_popped), executor in self._executors.items():
            # Returned to the runner unfinished, so that it does not wait for them.
            finished = self.pop_runner.finished if is_popped else self.runner.finished
            finished(executor.discard())
        unfinished = await self._drain(seconds)
        for job in unfinished:
            log.warning(
                "handler still runs, its messages are redelivered group=%s queue=%s offsets=%s",
                self.group,
                job.process_queue.queue,
                ",".join(str(message.queue_offset) for message in job.messages),
            )
        await self._leave()
        log.info("consumer stopped group=%s unfinished=%d", self.group, len(unfinished))
        return [message for job in unfinished for message in job.messages]

    async def _drain(self, seconds: float) -> list[Job]:
        """Wait for running handlers and for what their results lead to."""
        clock = self.session.clock
        deadline = clock.monotonic() + seconds
        while True:
            running = self.running
            if not running and not self._is_settling():
                return []
            if self._is_hurried or clock.monotonic() >= deadline:
                return running
            await clock.sleep(DRAIN_STEP)

    @property
    def is_calling(self) -> bool:
        """Whether the caller is one of its handlers; from any thread."""
        return any(executor.is_calling for executor in list(self._executors.values()))

    def hurry(self) -> None:
        """Stop waiting for handlers: a stop that is under way goes on at once."""
        self._is_hurried = True

    def _is_settling(self) -> bool:
        """Whether results are still on their way: to the loop, or back to the broker."""
        if any(executor.is_settling for executor in self._executors.values()):
            return True
        return self.state.tasks.is_running("send back") or self._is_in_order_settling()

    def _is_in_order_settling(self) -> bool:
        return isinstance(self.runner, OrderlyRunner) and self.runner.is_busy

    async def _leave(self) -> None:
        state, session = self.state, self.session
        for executor in self._executors.values():
            await executor.close()
        held = list(state.queues.values())
        await state.tasks.close()
        state.is_running = False
        if state.queues:
            await state.offsets.persist_all(set(state.queues), wait=True)
        if self.settings.orderly and self.settings.is_clustering:
            await self.rebalancer.come_to_rest(REST_SECONDS)
            await self._unlock_all(held)
        await session.remove_consumer(self.group)
        for queue in held:
            queue.is_dropped = True
        state.queues.clear()
        await state.statistics.stop()
        if self.tracer is not None:
            await self.tracer.stop()
        self._phase = "stopped"

    async def _unlock_all(self, held: Sequence[ProcessQueue]) -> None:
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in held:
            by_broker.setdefault(queue.queue.broker_name, []).append(queue.queue)
        for queues in by_broker.values():
            try:
                replica = await self.session.find_broker(queues[0], only_this=True)
                await self.session.calls.call(
                    replica.address, requests.unlock(self.group, self.session.client_id, queues)
                )
            except PenstockError as error:
                log.warning("locks not given back group=%s error=%s", self.group, error)

    # --------------------------------------------------------------------- as its session sees it

    async def rebalance(self) -> bool:
        is_balanced = True
        if self.settings.mode != "pull":
            is_balanced = await self.pop_loops.rebalance()
            if self.settings.mode == "pop":
                # All topics are popped; the retry topic of earlier pulls is still pulled.
                self.pop_loops.popped_topics |= self._own_topics()
        await self._pop_retries.rebalance()
        return await self.rebalancer.run() and is_balanced

    def _own_topics(self) -> set[str]:
        return {topic for topic in self.topics if not topic.startswith(RETRY_PREFIX)}

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        return running_info(self, with_stacks=with_stacks)

    @property
    def running(self) -> list[Job]:
        """The handler calls under way; some may have ended this moment."""
        return [job for executor in self._executors.values() for job in executor.running]

    async def consume_directly(self, message: StoredMessage) -> ConsumeDirectlyResult:
        self.state.subscriptions.restore_topic(message)
        return await consume_once(self, message)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Start over at the offsets an operator has set."""
        state = self.state
        affected = [
            held
            for queue, held in state.queues.items()
            if queue.topic == topic and queue in offsets
        ]
        self.pause()
        try:
            for held in affected:
                held.is_dropped = True
                held.clear()
            # Handlers that still run on the old messages get time to end.
            await state.clock.sleep(RESET_SECONDS)
            for held in affected:
                state.offsets.update(held.queue, offsets[held.queue], increase_only=False)
                await self.rebalancer.give_up(held)
        finally:
            await self.resume()

    # ------------------------------------------------------------------------------- control

    def pause(self) -> None:
        """Pull nothing and keep the queues; what is cached is still consumed."""
        self.state.is_paused = True
        log.info("consumer paused group=%s", self.group)

    async def resume(self) -> None:
        """Pull again."""
        self.state.is_paused = False
        log.info("consumer resumed group=%s", self.group)
        if self._phase == "running":
            await self.rebalancer.run()

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset of a queue that is held.

        When its broker does not take the offset this raises, and the queue goes on where it is.
        """
        state = self.state
        held = state.queues.get(queue)
        if held is None:
            raise InvalidArgument(
                f"consumer {self.group!r} does not hold {queue}",
                expected="one of the queues of assignment()",
            )
        before = await state.offsets.read(queue, ReadFrom.MEMORY)
        # Handlers that still run must not overwrite it, neither here nor at the broker.
        state.offsets.freeze(queue, offset)
        try:
            await state.offsets.commit_to_broker(queue, offset, oneway=False)
        except BaseException:
            state.offsets.remove(queue)
            if before >= 0 and state.queues.get(queue) is held:
                state.offsets.update(queue, before, increase_only=False)
            raise
        held.is_dropped = True
        await self.rebalancer.repair_now(held, offset)
        await self.rebalancer.run()

    def assignment(self) -> set[MessageQueue]:
        """The queues held now, those of the retry topic left out."""
        pulled = {
            queue
            for queue, held in self.state.queues.items()
            if not held.is_dropped and not queue.topic.startswith(RETRY_PREFIX)
        }
        return pulled | self.pop_loops.queues

    async def committed(self, queue: MessageQueue) -> int:
        """Where the group stands in a queue, as far as this consumer knows."""
        return await self.state.offsets.read(queue, ReadFrom.MEMORY_FIRST)

    # ------------------------------------------------------------------------------- handlers

    def listener_for(self, topic: str) -> Listener:
        """The handler of a topic; without one, a handler that fails every message."""
        listener = self.state.subscriptions.listener(topic)
        if listener is None:
            # A retried message of a topic that has no handler here any more.
            return Listener(topic, _no_handler(topic), takes_batch=True)
        return listener

    def _executor(self, listener: Listener) -> Executor:
        return self._executor_of(listener, self.runner.finished, is_popped=False)

    def _pop_executor(self, listener: Listener) -> Executor:
        return self._executor_of(listener, self.pop_runner.finished, is_popped=True)

    def _executor_of(
        self, listener: Listener, finished: Callable[[list[Job]], None], *, is_popped: bool
    ) -> Executor:
        key = (listener.is_async, is_popped)
        executor = self._executors.get(key)
        if executor is None:
            executor = self._executors[key] = self.make_executor(
                self.caller, finished, listener.is_async
            )
        return executor


def _default_offset_store(session: ClientSession, settings: ConsumerSettings) -> OffsetStore:
    if settings.is_clustering:
        return BrokerOffsetStore(session, settings.group)
    directory = settings.offsets_dir or Path.home() / ".rocketmq_offsets"
    return FileOffsetStore(
        directory,
        session.client_id,
        settings.group,
        merge=session.settings.profile.merge_local_offsets,
    )


def _no_handler(topic: str) -> HandlerFunction:
    def refuse(messages: object) -> None:
        raise InvalidArgument(
            f"no handler for topic {topic!r}", hint="subscribe to the topic to retry its messages"
        )

    return refuse
