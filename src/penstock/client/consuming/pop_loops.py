"""Popping for handlers: which sources a member has, and one loop of pops for each.

The broker assigns. In mode ``pop`` a member always pops: if the broker's setting for a topic is to
pull, it pops from every broker of the topic. In mode ``auto`` the setting decides, topic by topic.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.client.consuming.consumer_state import ConsumerState
from penstock.client.consuming.pop_receipts import PopRequests, Source
from penstock.client.consuming.pop_runner import PopRunner
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.consuming.subscriptions import passes
from penstock.client.requests import Request, body_bytes
from penstock.errors import PenstockError, RequestCodeNotSupported
from penstock.model import MessageQueue
from penstock.model.names import RETRY_PREFIX
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.common import RequestMode
from penstock.protocol.codes import RequestCode

log = logging.getLogger(__name__)

WAIT_SECONDS: Final = 15.0
PAUSE_SECONDS: Final = 1.0
"""After a failed or refused pop."""
FULL_SECONDS: Final = 0.05
"""Between two looks whether handlers have finished enough."""
_STRATEGIES: Final = ("AVG", "AVG_BY_CIRCLE")


class PopLoops:
    """The sources of one member and the loops that pop from them."""

    def __init__(self, state: ConsumerState, requests: PopRequests, runner: PopRunner) -> None:
        self._state = state
        self._requests = requests
        self._runner = runner
        self._held: dict[Source, ProcessQueue] = {}
        self.popped_topics: set[str] = set()
        """The topics that are popped, not pulled."""

    @property
    def queues(self) -> set[MessageQueue]:
        """What is popped; queue -1 stands for all queues of a broker."""
        return {held.queue for held in self._held.values() if not held.is_dropped}

    # Assignment

    async def rebalance(self) -> bool:
        """Bring the loops in line with what the broker assigns; false: try again soon."""
        state = self._state
        if state.is_paused or state.is_stopping:
            return True
        is_balanced = True
        topics = [t for t in state.subscriptions.topics if not t.startswith(RETRY_PREFIX)]
        for topic in topics:
            try:
                sources = await self._sources(topic)
            except PenstockError as error:
                if isinstance(error, RequestCodeNotSupported) and state.settings.mode == "auto":
                    # A broker that does not assign is pulled from, as before.
                    continue
                log.warning("not assigned group=%s topic=%s error=%s", state.group, topic, error)
                is_balanced = False
                continue
            if sources is not None:
                self._apply(topic, sources)
        for source in [one for one in self._held if one.topic not in topics]:
            self._drop(source)
        self.popped_topics &= set(topics)
        return is_balanced

    async def check(self) -> None:
        """Refuse to start where brokers cannot do what the mode needs."""
        if self._state.settings.mode != "pop":
            return
        for topic in self._state.subscriptions.topics:
            try:
                await self._sources(topic)
            except RequestCodeNotSupported as error:
                raise RequestCodeNotSupported(
                    f"consumer {self._state.group!r} cannot pop: {error.what}",
                    expected="Penstock, or RocketMQ 5.0 or newer; 4.9 has no pop consumption",
                    hint='mode="pull"',
                ) from error
            except PenstockError as error:
                log.warning("not assigned yet topic=%s error=%s", topic, error)

    async def _sources(self, topic: str) -> frozenset[Source] | None:
        """Where to pop a topic; none: it is pulled; None: the broker gives no valid answer."""
        # Only those that pop load it.
        from penstock.protocol.bodies.pop import QueryAssignment, QueueAssignments

        state, session = self._state, self._state.session
        addresses = session.routes.addresses_of(topic)
        if not addresses:
            return None
        name = state.settings.allocation.name
        ask = QueryAssignment(
            topic, state.group, session.client_id, name if name in _STRATEGIES else _STRATEGIES[0]
        )
        request = Request(
            code=RequestCode.QUERY_ASSIGNMENT,
            about=f"topic {topic!r}",
            body=encode_body(ask),
            read=lambda answer: decode_body(QueueAssignments, body_bytes(answer)),
        )
        address = session.chance.choice(addresses)
        found = (await session.calls.call(address, request)).message_queue_assignments
        if found is None:
            return None
        pops = [one.message_queue for one in found if one.mode is RequestMode.POP]
        if not pops and state.settings.mode == "pop":
            brokers = {queue.broker_name for queue in session.routes.subscribe_queues(topic)}
            return frozenset(Source(topic, name) for name in brokers)
        return frozenset(Source(topic, queue.broker_name, queue.queue_id) for queue in pops)

    def _apply(self, topic: str, sources: frozenset[Source]) -> None:
        held = {source for source in self._held if source.topic == topic}
        for source in held - sources:
            self._drop(source)
        for source in sorted(sources - held):
            queue = ProcessQueue(MessageQueue(*source), self._state.clock.monotonic())
            self._held[source] = queue
            self._state.tasks.spawn(self._pop_forever(source, queue), f"pop {source}")
        if sources:
            self.popped_topics.add(topic)
        else:
            self.popped_topics.discard(topic)
        if held != sources:
            log.info(
                "assignment changed group=%s topic=%s popped=%s",
                self._state.group,
                topic,
                ",".join(f"{s.broker_name}:{s.queue_id}" for s in sorted(sources)) or "none",
            )

    def _drop(self, source: Source) -> None:
        self._held.pop(source).is_dropped = True

    # Popping

    async def _pop_forever(self, source: Source, queue: ProcessQueue) -> None:
        state, settings = self._state, self._state.settings
        while not queue.is_dropped and not state.is_stopping:
            wanted = state.subscriptions[source.topic]
            if wanted is None or state.is_paused:
                await state.clock.sleep(PAUSE_SECONDS)
                continue
            if self._runner.counts.get(queue, 0) > settings.pop_limit:
                await state.clock.sleep(FULL_SECONDS)
                continue
            queue.last_pull_at = state.clock.monotonic()
            try:
                popped = await self._requests.take(
                    source,
                    wanted,
                    count=settings.pop_batch_size,
                    invisible=settings.invisible,
                    wait=WAIT_SECONDS,
                    starts_first=settings.start_from.where == "first",
                )
            except PenstockError as error:
                if not queue.is_dropped and not state.is_stopping:
                    log.warning("pop failed source=%s error=%s", source, error)
                await state.clock.sleep(PAUSE_SECONDS)
                continue
            if popped.is_busy:
                await state.clock.sleep(PAUSE_SECONDS)
            if popped.messages:
                kept = passes(wanted, popped.messages)
                known = {id(one) for one in kept}
                unwanted = [one for one in popped.messages if id(one) not in known]
                if unwanted:
                    self._runner.acknowledge_unwanted(queue, unwanted, popped.arrived)
                if kept:
                    self._runner.submit(queue, kept, popped.arrived)
