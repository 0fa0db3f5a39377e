"""Which member of a group may consume a queue in order.

A lock belongs to a client id and lives for a minute after it was taken or renewed. It is kept in
memory only, as in RocketMQ (RebalanceLockManager): after a restart the members lock again.

A member of ours may bind its locks to its connection (`extensions.LOCK_LEASE`). When the connection
closes, the lock lives only for the lease, counted from its last renewal. So a dead member is
replaced within seconds. The connection alone proves no death: a member that is cut off may still
run a handler. It relies on a lock for half of the lease only, so the lock ends after its calls do.
A member that is alive renews its locks over a new connection and keeps them.

As in RocketMQ, any queue can be locked for any group: a member may ask before the topic is there.
RocketMQ keeps all of them for ever; here expired locks are removed, and their number is bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeAlias

from penstock.model import MessageQueue

log = logging.getLogger(__name__)

LOCK_SECONDS = 60.0
SHORTEST_LEASE = 1.0
"""Renewals would be late with a shorter one."""
MAX_LOCKS = 1 << 18
"""More than the members of all groups need; bounds memory against invented names."""


class Binding(NamedTuple):
    """The connection of a lock, and how many seconds after a renewal the lock outlives it."""

    connection: Hashable
    lease: float


class _Lock(NamedTuple):
    client_id: str
    renewed: float
    binding: Binding | None = None
    lifetime: float = LOCK_SECONDS
    """Seconds after the last renewal; the lease once the connection is closed."""

    def is_expired(self, now: float) -> bool:
        return now - self.renewed > self.lifetime


_Key: TypeAlias = tuple[str, MessageQueue]


class QueueLocks:
    """The locks of all groups; groups do not affect each other."""

    def __init__(self, max_locks: int = MAX_LOCKS) -> None:
        self._max_locks = max_locks
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._bound: dict[Hashable, set[_Key]] = {}
        """The locks of each connection, so that closing it costs only its own."""
        self._count = 0
        self._has_logged_full = False

    def __len__(self) -> int:
        return self._count

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        now: float,
        binding: Binding | None = None,
    ) -> list[MessageQueue]:
        """Take free and expired locks, renew own ones; return the queues that are held now."""
        locks = self._groups.get(group, {})
        held: list[MessageQueue] = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None and not self._has_room():
                continue
            if lock is None or lock.client_id == client_id or lock.is_expired(now):
                self._count += lock is None
                self._bind((group, queue), lock and lock.binding, binding)
                locks[queue] = _Lock(client_id, now, binding)
                held.append(queue)
        if locks:
            self._groups[group] = locks
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the locks of this client; those of others stay."""
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                self._release(group, queue)

    def owner(self, group: str, queue: MessageQueue, now: float) -> str | None:
        """The client id that holds a queue at the moment."""
        lock = self._groups.get(group, {}).get(queue)
        return None if lock is None or lock.is_expired(now) else lock.client_id

    def is_orderly(self, group: str, now: float) -> bool:
        """Whether the group holds any lock that has not expired."""
        locks = self._groups.get(group)
        return locks is not None and any(not lock.is_expired(now) for lock in locks.values())

    def connection_closed(self, connection: Hashable) -> dict[str, float]:
        """Let the locks of a closed connection end with their lease.

        Returns when the last lock of each group ends.
        """
        ends: dict[str, float] = {}
        for group, queue in self._bound.pop(connection, ()):
            lock = self._groups[group][queue]
            assert lock.binding is not None, "a lock of a connection is bound"
            lease = min(lock.binding.lease, LOCK_SECONDS)
            self._groups[group][queue] = lock._replace(binding=None, lifetime=lease)
            ends[group] = max(ends.get(group, 0.0), lock.renewed + lease)
        return ends

    def drop_group(self, group: str) -> None:
        """Remove the locks of a deleted group."""
        for queue in list(self._groups.get(group, ())):
            self._release(group, queue)

    def drop_expired(self, now: float) -> None:
        """Remove expired locks; called periodically."""
        for group, locks in list(self._groups.items()):
            for queue in [q for q, lock in locks.items() if lock.is_expired(now)]:
                self._release(group, queue)
        self._has_logged_full = False

    def _release(self, group: str, queue: MessageQueue) -> None:
        locks = self._groups[group]
        self._bind((group, queue), locks.pop(queue).binding, None)
        self._count -= 1
        if not locks:
            del self._groups[group]

    def _bind(self, key: _Key, before: Binding | None, after: Binding | None) -> None:
        if before is not None and (after is None or after.connection != before.connection):
            keys = self._bound[before.connection]
            keys.discard(key)
            if not keys:
                del self._bound[before.connection]
        if after is not None:
            self._bound.setdefault(after.connection, set()).add(key)

    def _has_room(self) -> bool:
        if self._count < self._max_locks:
            return True
        if not self._has_logged_full:
            self._has_logged_full = True
            log.warning("queue locks refused, there are too many count=%d", self._count)
        return False
