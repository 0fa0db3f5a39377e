"""Periodic work of a broker: drop silent clients and expired locks, delete old files."""

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
    FIRST_CLEANING = 60.0

    def __init__(self, broker: BrokerState) -> None:
        self._broker = broker

    async def _run(self, ready: Callable[[], None]) -> None:
        ready()
        started = self._broker.clock.monotonic()
        while True:
            await self._broker.clock.sleep(self.PERIOD)
            now = self._broker.clock.monotonic()
            self._drop_silent_clients(now)
            self._broker.locks.drop_expired(now)
            if now - started >= self.FIRST_CLEANING:
                await self._clean_store()

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
