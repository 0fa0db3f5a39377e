"""The name servers of a cluster: one is asked at a time, the next one when it fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.client import requests
from penstock.client.session.calls import Calls
from penstock.errors import NameserverUnavailable, ProtocolError, RemotingError, RequestRefused
from penstock.model import TopicRoute

log = logging.getLogger(__name__)


class NameServers:
    """Asks whichever name server answers, and stays with it.

    Clients start at different ones, so that they share the load.
    """

    def __init__(self, addresses: Sequence[str], calls: Calls, start: int = 0) -> None:
        self.addresses: tuple[str, ...] = tuple(addresses)
        self._calls = calls
        self._current = start % len(self.addresses)
        self._failing: set[str] = set()

    @property
    def current(self) -> str:
        """The one that is asked first."""
        return self.addresses[self._current]

    async def route(self, topic: str) -> TopicRoute | None:
        """Where the topic's queues are; None when nobody knows the topic."""
        failures: list[str] = []
        for _ in self.addresses:
            address = self.current
            try:
                route = await self._calls.call(address, requests.route(topic))
            except (RemotingError, RequestRefused, ProtocolError) as error:
                failures.append(str(error))
                self._current = (self._current + 1) % len(self.addresses)
                # Once per outage: every topic asks again and again meanwhile.
                level = logging.DEBUG if address in self._failing else logging.WARNING
                self._failing.add(address)
                log.log(level, "name server failed address=%s error=%s", address, error)
            else:
                if address in self._failing:
                    self._failing.remove(address)
                    log.warning("name server answers again address=%s", address)
                return route
        raise NameserverUnavailable(
            f"no route for topic {topic!r}: none of the name servers "
            f"{', '.join(self.addresses)} answered ({'; '.join(failures)})",
            hint="is a name server running there, and is the address right?",
        )
