"""The parts of pop consumption that a broker owns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.broker.pop.check_points import CheckPoints
from penstock.broker.pop.held_pops import ANY_QUEUE, HeldPops, PopKey
from penstock.broker.pop.journal import Journal
from penstock.broker.pop.orders import ORDERS_FILE, Orders
from penstock.broker.pop.request_modes import REQUEST_MODES_FILE, RequestModeTable
from penstock.broker.settings import Settings
from penstock.broker.storage import Storage
from penstock.broker.tables.offsets import Offsets
from penstock.broker.topic_routes import TopicRoutes
from penstock.model.names import revive_topic
from penstock.runtime.clock import Clock


def _no_reviver(due: int) -> None:
    """Before the reviver runs, nothing waits to be woken."""


@dataclass(slots=True, kw_only=True)
class PopState:
    """Open receipts, their journal, waiting pops, orderly batches and the modes of groups."""

    clock: Clock
    points: CheckPoints
    journal: Journal
    held: HeldPops
    """Pops that wait."""
    notified: HeldPops
    """Requests that ask only whether there is something to pop."""
    orders: Orders
    modes: RequestModeTable
    routes: TopicRoutes
    wake_reviver: Callable[[int], None] = field(default=_no_reviver)
    """To be called with the time a new check-point is due."""
    _freed_at: dict[PopKey, int] = field(default_factory=dict, init=False)
    """When timers look at blocked queues of orderly groups, so that each queue has one."""

    def wake_held(self, topic: str, group: str, queue_id: int) -> None:
        """A queue is free: waiting pops of the group may have its next messages."""
        for held in (self.held, self.notified):
            held.wake_soon((topic, group, queue_id))
            held.wake_soon((topic, group, ANY_QUEUE))

    def wake_orderly_at(self, topic: str, group: str, queue_id: int) -> None:
        """Wake the pops of an orderly group when the queue is free."""
        key = (topic, group, queue_id)
        until = self.orders.blocked_until(*key)
        if until and not 0 < self._freed_at.get(key, 0) <= until:
            self._freed_at[key] = until
            wait = max(0.0, (until - self.clock.time_ms()) / 1000)
            self.clock.call_later(wait, self._free, key, until)

    def _free(self, key: PopKey, until: int) -> None:
        if self._freed_at.get(key) == until:
            del self._freed_at[key]
        if self.held.is_released:
            return
        if self.orders.blocked_until(*key) <= self.clock.time_ms():
            self.wake_held(*key)
        else:
            # A member has asked for more time.
            self.wake_orderly_at(*key)

    def release(self) -> None:
        """Answer what waits: the broker is about to stop."""
        self.held.release()
        self.notified.release()

    def finish_all(self, *, group: str | None = None, topic: str | None = None) -> None:
        """End the receipts of a deleted group or topic: nothing of it comes again."""
        for queue in self.points.queues(group=group, topic=topic):
            for point in dict.fromkeys(queue.receipts.values()):
                self.journal.finish(point, point.open_offsets)
            self.points.forget(queue)
        self.orders.remove(group=group, topic=topic)


def build_pop_state(
    settings: Settings,
    clock: Clock,
    storage: Storage,
    offsets: Offsets,
    store_host: bytes,
    *,
    routes: TopicRoutes,
    changed: Callable[[str], None],
) -> PopState:
    """The parts of a broker; ``changed`` is called with the name of a file to save."""
    config = settings.broker
    points = CheckPoints()
    return PopState(
        clock=clock,
        points=points,
        journal=Journal(
            storage,
            offsets,
            points,
            clock,
            topic=revive_topic(config.broker_cluster_name),
            broker_name=config.broker_name,
            store_host=store_host,
        ),
        held=_held_pops(clock, settings, storage),
        notified=_held_pops(clock, settings, storage, is_newest_first=True),
        orders=Orders(now_ms=clock.time_ms, changed=lambda: changed(ORDERS_FILE)),
        modes=RequestModeTable(lambda: changed(REQUEST_MODES_FILE)),
        routes=routes,
    )


def _held_pops(
    clock: Clock, settings: Settings, storage: Storage, *, is_newest_first: bool = False
) -> HeldPops:
    def listen(held: HeldPops, is_wanted: bool) -> None:
        if is_wanted:
            storage.store.on_arrival(held.arrived, held.queues)
        else:
            storage.store.off_arrival(held.arrived)

    return HeldPops(
        clock,
        limit_at_key=lambda: settings.broker.pop_polling_size,
        limit=lambda: settings.broker.max_pop_polling_size,
        is_newest_first=is_newest_first,
        listen=listen,
    )
