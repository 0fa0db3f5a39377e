"""Takes and gives up queues, so that the members of a group share them.

There is no leader: each member asks a broker for the list of members, runs the same strategy and
applies its own share. For each topic:

    share ─▶ give up   held, not in the share any more (or not pulled for two minutes: taken again)
          ─▶ take      in the share, not held: lock (orderly), find the start offset, pull

A member that the asked broker does not know (its heartbeat was lost, or the broker just restarted)
would have to give everything up. It sends a heartbeat first and keeps its queues for one round.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection
from typing import Protocol

from penstock.client import requests
from penstock.client.consuming.assignment import runs_user_code, share
from penstock.client.consuming.consumer_state import ConsumerState
from penstock.client.consuming.offset_stores import NONE_STORED, ReadFrom
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.consuming.pulling import PullCursor
from penstock.errors import PenstockError, ServiceNotAvailable
from penstock.model import MessageQueue
from penstock.model.names import RETRY_PREFIX
from penstock.runtime.repeated_logs import level_of_repeat

log = logging.getLogger(__name__)

LOCK_FAILED_DELAY = 0.5
WAIT_STEP = 0.02


class Locks(Protocol):
    """What giving up and taking orderly queues needs."""

    async def lock(self, queue: ProcessQueue) -> bool: ...

    def is_calling(self, queue: ProcessQueue) -> bool: ...


class Rebalancer:
    """The share of one consumer."""

    def __init__(
        self,
        state: ConsumerState,
        *,
        pull: Callable[[PullCursor, float], None],
        locks: Locks | None,
        on_change: Callable[[str, frozenset[MessageQueue]], None] | None = None,
        popped_topics: Collection[str] = (),
    ) -> None:
        """Of ``popped_topics``, a live view, no queues are held: they are not pulled."""
        self._state = state
        self._popped_topics = popped_topics
        self._pull = pull
        self._locks = locks
        self._on_change = on_change
        self._unlisted: set[str] = set()
        self._repeats: dict[MessageQueue | str, int] = {}
        """What failed how often in a row, by queue or topic: not every repetition is logged."""
        self._repairing: set[MessageQueue] = set()
        self._busy = asyncio.Lock()

    async def run(self) -> bool:
        """Bring what is held in line with the share; false: try again soon."""
        async with self._busy:
            state = self._state
            if state.is_paused or state.is_stopping:
                return True
            is_balanced = True
            for topic in state.subscriptions.topics:
                if state.is_stopping:
                    return True
                try:
                    is_balanced &= await self._rebalance(topic)
                except PenstockError as error:
                    is_balanced = False
                    # A stopping member is refused the list of members, and does not need it.
                    if not topic.startswith(RETRY_PREFIX) and not state.is_stopping:
                        self._log_repeat(topic, "rebalance failed", f"error={error}")
                else:
                    self._repeats.pop(topic, None)
            await self._give_up_unsubscribed()
            return is_balanced

    def _log_repeat(self, what: MessageQueue | str, phrase: str, detail: str) -> None:
        count = self._repeats[what] = self._repeats.get(what, 0) + 1
        log.log(
            level_of_repeat(count),
            "%s group=%s %s=%s times=%d %s",
            phrase,
            self._state.group,
            "topic" if isinstance(what, str) else "queue",
            what,
            count,
            detail,
        )

    async def come_to_rest(self, seconds: float) -> None:
        """Wait for a run that is under way, but not for long."""
        deadline = self._state.clock.monotonic() + seconds
        while self._busy.locked() and self._state.clock.monotonic() < deadline:
            await self._state.clock.sleep(WAIT_STEP)

    async def _rebalance(self, topic: str) -> bool:
        assigned = await self._assigned(topic)
        if assigned is None:
            return topic.startswith(
                RETRY_PREFIX
            ) or not self._state.session.routes.subscribe_queues(topic)
        if await self._apply(topic, assigned):
            log.info(
                "assignment changed group=%s topic=%s queues=%s",
                self._state.group,
                topic,
                ",".join(f"{q.broker_name}:{q.queue_id}" for q in sorted(assigned)) or "none",
            )
            await self._announce(topic)
        return assigned == {queue for queue in self._state.queues if queue.topic == topic}

    async def _assigned(self, topic: str) -> frozenset[MessageQueue] | None:
        """What this member should hold; None when that is unknown now."""
        state = self._state
        if topic in self._popped_topics:
            return frozenset()
        queues = state.session.routes.subscribe_queues(topic)
        if not queues:
            return None
        if not state.settings.is_clustering:
            return frozenset(queues)
        addresses = state.session.routes.addresses_of(topic)
        if not addresses:
            return None
        address = state.session.chance.choice(addresses)
        members = await state.session.calls.call(address, requests.members(state.group))
        if not members:
            return None
        if state.session.client_id not in members and topic not in self._unlisted:
            self._unlisted.add(topic)
            log.warning(
                "the broker does not know this member yet, keeping the queues group=%s broker=%s",
                state.group,
                address,
            )
            await state.session.heartbeat_all()
            return None
        if state.session.client_id in members:
            self._unlisted.discard(topic)
        allocation = state.settings.allocation
        work = functools.partial(
            share, allocation, state.group, state.session.client_id, queues, members
        )
        try:
            if runs_user_code(allocation):
                return await asyncio.get_running_loop().run_in_executor(None, _contained, work)
            return work()
        except Exception as error:
            log.exception("assignment failed group=%s topic=%s", state.group, topic)
            raise ServiceNotAvailable(
                f"the strategy failed for topic {topic!r}: {error}"
            ) from error

    async def _announce(self, topic: str) -> None:
        """The share changed: limits, brokers and the user's listener must know."""
        state = self._state
        state.share_limits()
        state.subscriptions.renew(topic)
        await state.session.heartbeat_all()
        state.subscriptions.accept(topic)
        if self._on_change is not None:
            held = (q for q, one in state.queues.items() if q.topic == topic and not one.is_dropped)
            self._on_change(topic, frozenset(held))

    # -------------------------------------------------------------------------------- applying

    async def _apply(self, topic: str, assigned: frozenset[MessageQueue]) -> bool:
        """Give up and take queues of one topic; whether anything changed."""
        state = self._state
        now = state.clock.monotonic()
        leaving: list[ProcessQueue] = []
        for queue, held in state.queues.items():
            if queue.topic != topic:
                continue
            # Given up before and not let go, and now ours again: begin anew.
            is_left_over = held.is_dropped and queue not in self._repairing
            if queue not in assigned or is_left_over:
                leaving.append(held)
            elif held.is_pull_expired(now):
                log.error("queue not pulled for too long, taking it again queue=%s", queue)
                leaving.append(held)
        gone = await asyncio.gather(*map(self.give_up, leaving))
        missing = sorted(queue for queue in assigned if queue not in state.queues)
        for queue in [q for q in state.refused_locks if q.topic == topic and q not in assigned]:
            del state.refused_locks[queue]
            self._repeats.pop(queue, None)
        taken = await asyncio.gather(*map(self._take, missing))
        return any(gone) or any(taken)

    async def _give_up_unsubscribed(self) -> None:
        wanted = set(self._state.subscriptions.topics)
        stray = [held for queue, held in self._state.queues.items() if queue.topic not in wanted]
        await asyncio.gather(*map(self.give_up, stray))

    async def give_up(self, held: ProcessQueue) -> bool:
        """Stop holding a queue; false: not yet, its handler still runs."""
        state = self._state
        held.is_dropped = True
        queue = held.queue
        if self._locks is not None and state.settings.is_clustering:
            held.is_leaving = True
            if not await self._release(held, self._locks):
                held.unlock_attempts += 1
                return False
        else:
            await state.offsets.persist(queue, wait=True)
        state.offsets.remove(queue)
        if state.queues.get(queue) is held:
            del state.queues[queue]
            # When the queue comes back, it is not paused.
            state.paused_queues.discard(queue)
        log.info("queue given up group=%s queue=%s", state.group, queue)
        return True

    async def _release(self, held: ProcessQueue, locks: Locks) -> bool:
        """Commit and unlock an orderly queue once no handler runs on it."""
        state = self._state
        await state.offsets.persist(held.queue)
        deadline = state.clock.monotonic() + state.profile.unlock_wait
        while locks.is_calling(held) and state.clock.monotonic() < deadline:
            await state.clock.sleep(WAIT_STEP)
        if locks.is_calling(held):
            since_lock = state.clock.monotonic() - held.last_lock_at
            if since_lock <= state.profile.unlock_force_after:
                log.log(
                    level_of_repeat(held.unlock_attempts + 1),
                    "queue kept until its handler ends group=%s queue=%s attempts=%d",
                    state.group,
                    held.queue,
                    held.unlock_attempts + 1,
                )
                return False
            log.error("queue given up under a running handler queue=%s", held.queue)
        held.is_leaving = False
        # Before the lock goes: the next owner asks where to begin as soon as it has it.
        await state.offsets.persist(held.queue, wait=True)
        if held.count and state.profile.unlock_later_when_cached:
            delay = state.profile.unlock_later_when_cached
            state.tasks.spawn(self._unlock_later(held.queue, delay), f"unlock {held.queue}")
        else:
            await self._unlock(held.queue)
        held.is_locked = False
        return True

    async def _unlock_later(self, queue: MessageQueue, delay: float) -> None:
        await self._state.clock.sleep(delay)
        await self._unlock(queue)

    async def _unlock(self, queue: MessageQueue) -> None:
        session = self._state.session
        try:
            replica = await session.find_broker(queue, only_this=True)
            await session.calls.tell(
                replica.address, requests.unlock(self._state.group, session.client_id, [queue])
            )
        except PenstockError as error:
            # The broker's lock ends by itself after a minute.
            log.warning("lock not given back queue=%s error=%s", queue, error)

    async def _take(self, queue: MessageQueue) -> bool:
        """Begin to hold a queue; false: not this time."""
        state = self._state
        now = state.clock.monotonic()
        held = ProcessQueue(queue, now)
        locks = self._locks if state.settings.is_clustering else None
        if locks is not None and not await locks.lock(held):
            self._log_repeat(queue, "lock refused", f"owner={state.refused_locks.get(queue, '')}")
            state.session.rebalance_later(LOCK_FAILED_DELAY)
            return False
        state.offsets.remove(queue)
        try:
            offset = await self.start_offset(queue)
        except PenstockError as error:
            # This one is tried again soon; the others must not wait for its broker.
            if not queue.topic.startswith(RETRY_PREFIX):
                self._log_repeat(queue, "queue not taken yet", f"error={error}")
            offset = NONE_STORED
        if state.is_stopping and held.is_locked:
            # Unless it is released here, this lock blocks the next owner for a minute.
            await self._unlock(queue)
        if offset < 0 or state.is_stopping or queue in state.queues:
            return False
        # Releases before 5.0 wait for the periodic lock task.
        held.is_locked = held.is_locked and state.profile.locked_when_created
        state.queues[queue] = held
        self._repeats.pop(queue, None)
        held.last_pull_at = state.clock.monotonic()
        self._pull(PullCursor(held, offset), state.profile.first_pull_delay)
        log.info("queue taken group=%s queue=%s offset=%d", state.group, queue, offset)
        return True

    # ---------------------------------------------------------------------------- where to begin

    async def start_offset(self, queue: MessageQueue) -> int:
        """Where to begin a queue: where the group stands, else where the settings say."""
        state = self._state
        stored = await state.offsets.read(queue, ReadFrom.STORE)
        if stored >= 0:
            return stored
        if stored != NONE_STORED:
            raise ServiceNotAvailable(f"the offset of group {state.group!r} in {queue} is unknown")
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        start = state.settings.start_from
        if start.where == "first":
            return 0
        if start.where == "last" and is_retry:
            return 0
        address = (await state.session.find_broker(queue)).address
        if start.where == "last" or is_retry:
            return await state.session.calls.call(address, requests.max_offset(queue))
        return await state.session.calls.call(
            address, requests.offset_at(queue, start.timestamp_ms)
        )

    def repair(self, cursor: PullCursor) -> None:
        """A queue was pulled at an illegal offset: set the right one, then take the queue anew."""
        held = cursor.process_queue
        held.is_dropped = True
        self._repairing.add(held.queue)
        self._state.tasks.spawn(self._repair(held, cursor.next_offset), f"repair {held.queue}")

    async def repair_now(self, held: ProcessQueue, offset: int) -> None:
        """Set the offset of a queue and let go of it; the next rebalance takes it again there."""
        state = self._state
        state.offsets.freeze(held.queue, offset)
        await state.offsets.persist(held.queue, wait=True)
        state.offsets.remove(held.queue)
        if state.queues.get(held.queue) is held:
            del state.queues[held.queue]

    async def _repair(self, held: ProcessQueue, offset: int) -> None:
        state = self._state
        try:
            if state.profile.offset_repair_delay:
                # Releases without frozen offsets gave handlers that still run time to end, so
                # that they cannot overwrite the corrected one.
                await state.clock.sleep(state.profile.offset_repair_delay)
            await self.repair_now(held, offset)
        finally:
            self._repairing.discard(held.queue)
        if not state.profile.offset_repair_delay:
            state.session.wake_rebalance()


def _contained(work: Callable[[], frozenset[MessageQueue]]) -> frozenset[MessageQueue]:
    """Run a user's strategy: what would end a loop that awaits it is an ordinary failure here."""
    try:
        return work()
    except (KeyboardInterrupt, SystemExit) as error:
        raise ServiceNotAvailable(f"the strategy raised {type(error).__name__}") from error
