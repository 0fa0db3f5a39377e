"""Where the half messages of transactions are, by topic and transaction id."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from penstock.proxy.backend import Backend, HalfPlace

MAX_REMEMBERED: Final = 100_000
MAX_BYTES: Final = 16 << 20
"""Of topics and ids, which are as long as their clients make them."""


class Halves:
    """The places of halves that were sent or asked about through this endpoint.

    They are kept after a decision, too: a decision that is repeated is answered as the first one.
    Of what is forgotten, or was sent before a restart, the broker still knows the open halves.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._places: OrderedDict[tuple[str, str], HalfPlace] = OrderedDict()
        self._bytes = 0

    def remember(self, topic: str, transaction_id: str, place: HalfPlace) -> None:
        key = topic, transaction_id
        if key not in self._places:
            self._bytes += sum(map(len, key))
        self._places[key] = place
        while len(self._places) > MAX_REMEMBERED or self._bytes > MAX_BYTES:
            oldest, _ = self._places.popitem(last=False)
            self._bytes -= sum(map(len, oldest))

    async def find(self, topic: str, transaction_id: str) -> HalfPlace | None:
        """The place of a half message; None if it is not known."""
        found = self._places.get((topic, transaction_id))
        return found or await self._backend.find_half(topic, transaction_id)
