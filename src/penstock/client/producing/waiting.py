"""Waiting out a restart: failures that another attempt may cure, and the pauses between attempts.

A message that no broker has seen can be sent again without risk, so refused connections and missing
routes do not use up the retries of a send: they are tried again until its time is up. A message
whose answer is missing may be stored; sending it again may store it twice, so that is a retry.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from penstock.errors import (
    ConnectFailed,
    NameserverUnavailable,
    PenstockError,
    ServiceNotAvailable,
    TopicNotFound,
)
from penstock.remoting.pool import Backoff
from penstock.runtime.clock import Clock

_T = TypeVar("_T")

PAUSES: Final = Backoff(first=0.05, cap=0.5)
"""Short pauses: a restarted broker is back within seconds, and the send must find it before its
time is up."""
_UNSENT: Final = (ConnectFailed, NameserverUnavailable, ServiceNotAvailable, TopicNotFound)


def is_unsent(error: PenstockError) -> bool:
    """Whether the error, raised on this side, shows that no broker has seen the message."""
    return isinstance(error, _UNSENT)


async def patiently(
    work: Callable[[], Awaitable[_T]],
    seconds: float,
    clock: Clock,
    chance: Callable[[], float],
) -> _T:
    """The result of ``work``, tried again for so long while the cluster cannot be reached."""
    deadline = clock.monotonic() + seconds
    failures = 0
    while True:
        try:
            return await work()
        except PenstockError as error:
            failures += 1
            pause = PAUSES.delay(failures, chance())
            if not is_unsent(error) or clock.monotonic() + pause >= deadline:
                raise
        await clock.sleep(pause)


def tried(attempts: int, seconds: float) -> str:
    """How often and how long a send was tried, for its error."""
    often = f"after {attempts} attempts" if attempts > 1 else "in one attempt"
    return f"{often} within {seconds:.1f} s"
