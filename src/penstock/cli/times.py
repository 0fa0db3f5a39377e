"""Times, positions and rates as users type them, and the options that take them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from penstock.cli.commands import F, Number, option
from penstock.errors import InvalidArgument
from penstock.model.queue_ends import queue_end
from penstock.runtime.durations import seconds

EARLIEST_MS = 10**11
"""A smaller number is not a time in epoch milliseconds: it would be before March 1973."""

_EXPECTED = "a time such as 2026-11-16T14:30, 14:30, 10m (ago), or epoch milliseconds"

rate_option = option(
    "--rate", type=Number(float, at_least=0.001), help="Maximum messages per second."
)


def end_option(help: str, **settings: Any) -> Callable[[F], F]:
    """``--to``, also accepted as ``--until``: the end of a range, exclusive."""
    return option("--to", "--until", "end", **{"metavar": "TIME", "help": help, **settings})


def moment_ms(text: str, *, option: str, now: float | None = None, also: str = "") -> int:
    """A time in epoch milliseconds; a time without a zone is local.

    ``14:30`` is today; ``90s``, ``10m``, ``2h`` and ``1d`` are that long ago. ``also`` is what the
    option accepts besides, for the error.
    """
    stripped = text.strip()
    present = time.time() if now is None else now
    expected = f"{also}, or {_EXPECTED}" if also else _EXPECTED
    refused = InvalidArgument(f"{option} {text!r}", expected=expected)
    if stripped.isascii() and stripped.isdigit():
        if int(stripped) < EARLIEST_MS:
            raise refused
        return int(stripped)
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        pass
    else:
        return round(moment.astimezone().timestamp() * 1000)
    try:
        clock = datetime.strptime(stripped, "%H:%M").time()  # noqa: DTZ007 - local time is meant
    except ValueError:
        pass
    else:
        today = datetime.fromtimestamp(present).astimezone().date()
        return round(datetime.combine(today, clock).astimezone().timestamp() * 1000)
    duration = stripped.removesuffix("ago").strip().removeprefix("-").strip()
    if duration.replace(".", "", 1).isdecimal():
        # -5 may mean the fifth from the end or five seconds ago.
        raise InvalidArgument(f"{option} {text!r} has no unit", expected=expected)
    try:
        ago = seconds(duration)
    except InvalidArgument:
        raise refused from None
    return max(0, round((present - ago) * 1000))


def start_ms(text: str | None) -> int | None:
    """The start of a range, for ``--from``; None if it was not given.

    ``first`` is 0, before every message; ``last`` is now. `queue_end` has their other words.
    """
    end = queue_end(text)
    if text is None or end == "first":
        return None if text is None else 0
    return time.time_ns() // 1_000_000 if end == "last" else moment_ms(text, option="--from")


def end_ms(text: str | None) -> int | None:
    """The end of a range, exclusive, for ``--to``; None: not given, or ``last``."""
    end = queue_end(text)
    if text is None or end == "last":
        return None
    if end == "first":
        raise InvalidArgument(f"--to {text}", expected=f"last, or {_EXPECTED}")
    return moment_ms(text, option="--to")


def position(text: str, *, option: str) -> str | int | datetime:
    """A place in a queue: ``"first"``, ``"last"``, an offset, or a time.

    ``earliest`` and ``latest`` are accepted for ``first`` and ``last``.
    """
    word = text.strip().lower()
    if (end := queue_end(word)) is not None:
        return end
    if word.isascii() and word.isdigit() and int(word) < EARLIEST_MS:
        return int(word)
    also = "first, last, an offset"
    milliseconds = moment_ms(text, option=option, also=also)
    try:
        return datetime.fromtimestamp(milliseconds / 1000).astimezone()
    except (OverflowError, OSError, ValueError):
        raise InvalidArgument(f"{option} {text!r}", expected=f"{also}, or {_EXPECTED}") from None
