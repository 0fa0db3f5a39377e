"""The name servers of a cluster: one is asked; if it fails, the next one."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.client import requests
from penstock.client.session.calls import Calls
from penstock.errors import (
    NameserverUnavailable,
    NoPermission,
    ProtocolError,
    RemotingError,
    RequestRefused,
)
from penstock.model import TopicRoute

log = logging.getLogger(__name__)


class NameServers:
    """Asks one name server until it fails, then the next.

    Each client starts at a random one, which spreads the load.
    """

    def __init__(self, addresses: Sequence[str], calls: Calls, start: int = 0) -> None:
        self.addresses: tuple[str, ...] = tuple(addresses)
        self._calls = calls
        self._current = start % len(self.addresses)
        self._failing: set[str] = set()

    @property
    def current(self) -> str:
        """The name server that is asked first."""
        return self.addresses[self._current]

    async def route(self, topic: str) -> TopicRoute | None:
        """Where the topic's queues are; None when the topic has no route."""
        failures: list[str] = []
        refusal: NoPermission | None = None
        for _ in self.addresses:
            address = self.current
            try:
                route = await self._calls.call(address, requests.route(topic))
            except NoPermission as error:
                # Another name server may know this user, or another right of it, already.
                refusal = error
                self._current = (self._current + 1) % len(self.addresses)
            except (RemotingError, RequestRefused, ProtocolError) as error:
                failures.append(str(error))
                self._current = (self._current + 1) % len(self.addresses)
                # One warning per outage: every topic asks again and again.
                level = logging.DEBUG if address in self._failing else logging.WARNING
                self._failing.add(address)
                log.log(level, "name server failed address=%s error=%s", address, error)
            else:
                if address in self._failing:
                    self._failing.remove(address)
                    log.warning("name server answers again address=%s", address)
                return route
        if refusal is not None:
            raise refusal
        raise NameserverUnavailable(
            f"no route for topic {topic!r}: none of the name servers "
            f"{', '.join(self.addresses)} answered ({'; '.join(failures)})",
            hint="is a name server running there, and is the address right?",
        )
