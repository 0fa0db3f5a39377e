"""Requests of administrators that cannot be repeated by a listener on the network.

RocketMQ's signature covers neither the time nor the code of a request, so a recorded one can be
sent again, even under another code. Our own clients add both to the signed fields of requests of
administrators; servers that do not know the fields ignore them. A server that demands them
(``penstockRequireFresh=admin``) takes each such request once, and only for two minutes.
"""

from __future__ import annotations

import time
from binascii import a2b_base64
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from penstock.errors import NoPermission, SystemBusy
from penstock.protocol import acl

TIME_FIELD: Final = "_PT"
CODE_FIELD: Final = "_PC"
WINDOW_MS: Final = 120_000
REMEMBERED_MS: Final = 300_000
MAX_REMEMBERED: Final = 65_536
_MAX_DIGITS: Final = 15


class Stamps:
    """Makes the fields for the requests of one process; no two have the same time."""

    def __init__(self) -> None:
        self._last_ms = 0

    def fields(self, code: int) -> dict[str, str]:
        """The fields to add before a request is signed."""
        self._last_ms = max(self._last_ms + 1, time.time_ns() // 1_000_000)
        return {TIME_FIELD: str(self._last_ms), CODE_FIELD: str(code)}


stamps: Final = Stamps()


class Freshness:
    """Remembers the requests of the last minutes."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def check(self, code: int, ext: Mapping[str, str], now_ms: int) -> None:
        """Refuse a request with a valid signature that is old, repeated or made for another code.

        Two processes may sign the same request in the same millisecond; the second one is refused.
        """
        stamp = ext.get(TIME_FIELD, "")
        if not (stamp.isascii() and stamp.isdecimal() and len(stamp) <= _MAX_DIGITS):
            raise NoPermission(
                "the request has no time",
                expected=f"a signed field {TIME_FIELD}, as Penstock's clients send it",
                hint="the command penstock, or penstockRequireFresh=off for mqadmin",
            )
        if ext.get(CODE_FIELD) != str(code):
            raise NoPermission("the request was signed for another code")
        if abs(now_ms - int(stamp)) > WINDOW_MS:
            raise NoPermission(
                f"the request is {abs(now_ms - int(stamp)) // 1000} s away from the server's time",
                expected=f"at most {WINDOW_MS // 1000} s",
                hint="set the clocks of both machines",
            )
        # Not the text: two of its bits are not used, so each signature has four spellings.
        signature = a2b_base64(ext.get(acl.SIGNATURE, ""))
        while self._seen and now_ms - next(iter(self._seen.values())) > REMEMBERED_MS:
            self._seen.popitem(last=False)
        if signature in self._seen:
            raise NoPermission("the request was sent before")
        if len(self._seen) >= MAX_REMEMBERED:
            raise SystemBusy(
                f"{len(self._seen)} requests of administrators within {REMEMBERED_MS // 1000} s"
            )
        self._seen[signature] = now_ms
