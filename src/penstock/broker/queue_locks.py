"""Which member of a group may consume a queue in order.

A lock belongs to a client id, not to a connection, and lives for a minute after it was taken or
renewed. It is kept in memory only, as in RocketMQ (RebalanceLockManager): after a restart the
members simply lock again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.model import MessageQueue

LOCK_SECONDS = 60.0


class _Lock(NamedTuple):
    client_id: str
    renewed: float


class QueueLocks:
    """The locks of all groups; different groups never meet."""

    def __init__(self, lock_seconds: float = LOCK_SECONDS) -> None:
        self._lock_seconds = lock_seconds
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now: float
    ) -> list[MessageQueue]:
        """Take or renew what is free, expired or already held; return what is held now."""
        locks = self._groups.setdefault(group, {})
        held: list[MessageQueue] = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None or lock.client_id == client_id or self._is_expired(lock, now):
                locks[queue] = _Lock(client_id, now)
                held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give back what this client holds; what another holds stays."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
        if not locks:
            del self._groups[group]

    def owner(self, group: str, queue: MessageQueue, now: float) -> str | None:
        """The client id that holds a queue at the moment."""
        lock = self._groups.get(group, {}).get(queue)
        return None if lock is None or self._is_expired(lock, now) else lock.client_id

    def is_orderly(self, group: str, now: float) -> bool:
        """Whether the group holds any lock that has not expired."""
        locks = self._groups.get(group)
        return locks is not None and any(not self._is_expired(lock, now) for lock in locks.values())

    def drop_group(self, group: str) -> None:
        """Forget a deleted group."""
        self._groups.pop(group, None)

    def _is_expired(self, lock: _Lock, now: float) -> bool:
        return now - lock.renewed > self._lock_seconds
