"""Periodic work of a broker: drop silent clients and expired locks, delete old files.

It also looks after the store: whether its directory is still there, and whether messages that were
refused for now can be accepted again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.broker.state import BrokerState
from penstock.errors import StoreError
from penstock.runtime.service import Service

log = logging.getLogger(__name__)


class Housekeeping(Service):
    """The broker's periodic work."""

    PERIOD = 10.0
    RETRY = 1.0
    FIRST_CLEANING = 60.0

    def __init__(self, broker: BrokerState) -> None:
        self._broker = broker

    async def _run(self, ready: Callable[[], None]) -> None:
        ready()
        started = self._broker.clock.monotonic()
        while True:
            await self._wait()
            await self._broker.storage.check_held()
            now = self._broker.clock.monotonic()
            self._drop_silent_clients(now)
            self._broker.locks.drop_expired(now)
            if now - started >= self.FIRST_CLEANING:
                await self._clean_store()

    async def _wait(self) -> None:
        """One period; while messages are refused, try every second whether that can end."""
        store, clock = self._broker.storage.store, self._broker.clock
        end = clock.monotonic() + self.PERIOD
        while (left := end - clock.monotonic()) > 0:
            await clock.sleep(min(left, self.RETRY if store.is_blocked else self.PERIOD))
            if store.is_blocked and await self._broker.storage.unblock():
                log.info("store can be written again, messages are accepted")

    def _drop_silent_clients(self, now: float) -> None:
        for peer in self._broker.clients.expired(now):
            log.warning("client dropped, no heartbeat for two minutes remote=%s", peer.remote)
            # Before its connection is closed, so that its groups are not notified, as in RocketMQ:
            # the members that live notice at their next rebalance.
            self._broker.clients.drop_peer(peer)
            peer.close("no heartbeat for too long")

    async def _clean_store(self) -> None:
        try:
            deleted = await self._broker.storage.clean()
        except StoreError as error:
            log.error("old files not deleted error=%s", error)
            return
        if deleted:
            log.info("old files deleted count=%d first=%s", len(deleted), deleted[0])
