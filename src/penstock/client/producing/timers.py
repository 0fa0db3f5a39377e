"""When a message is to be delivered, as users say it and as brokers take it.

Brokers of RocketMQ 5 and Penstock's deliver at any time (timer messages). Older ones have 18 delay
levels and nothing in between. Which of both a broker is, its answers tell, so the properties are
made for each attempt.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from penstock.errors import IllegalMessage, InvalidArgument
from penstock.model import Message
from penstock.model.names import Property
from penstock.model.properties import format_properties
from penstock.protocol.delays import DELAY_LEVELS
from penstock.runtime.durations import milliseconds

TIMERS_SINCE: Final = 413
"""The version of RocketMQ 5.0.0, as brokers state it."""
_MAX_MS: Final = (1 << 62) - 1


class DeliveryTime(NamedTuple):
    """The time of a message; one of the first two is set."""

    delay_ms: int | None
    deliver_ms: int | None
    level: int
    """The delay level that is the same as the delay; 0: none."""
    text: str
    """As the user wrote it, for errors."""

    def properties(self, broker_version: int, broker_name: str) -> str:
        """The property text for a broker; a version of 0 is not known yet."""
        # A broker without timers delivers such a message at once. Every broker knows the levels.
        has_timers = broker_version >= TIMERS_SINCE or (not broker_version and not self.level)
        if has_timers:
            if self.delay_ms is not None:
                return format_properties({Property.TIMER_DELAY_MS: str(self.delay_ms)})
            return format_properties({Property.TIMER_DELIVER_MS: str(self.deliver_ms)})
        if not self.level:
            raise IllegalMessage(
                f"a message with {self.text} for broker {broker_name!r}, which has no timers: "
                "its version is below 5.0",
                expected=f"one of the delay levels: {', '.join(DELAY_LEVELS.texts)}",
                hint="deliver it later by a job of your own, or use a broker with timers",
            )
        return format_properties({Property.DELAY: str(self.level)})


def delivery_time(message: Message) -> DeliveryTime | None:
    """The time of a delayed message; None if it is one of a level, or not delayed at all."""
    delay, deliver_at = message.delay, message.deliver_at
    if deliver_at is not None:
        if delay is not None:
            raise IllegalMessage(
                f"a message with delay {delay!r} and deliver_at {deliver_at!r}",
                expected="one of both",
            )
        deliver_ms = _time_ms(deliver_at)
        return DeliveryTime(None, deliver_ms, 0, f"deliver_at {deliver_at!r}")
    if not isinstance(delay, str | timedelta):
        return None  # A number is a level.
    delay_ms = _delay_ms(delay)
    if not delay_ms:
        return None
    levels = range(1, DELAY_LEVELS.max_level + 1)
    level = next((level for level in levels if DELAY_LEVELS.delay_ms(level) == delay_ms), 0)
    return DeliveryTime(delay_ms, None, level, f"delay {delay!r}")


def _delay_ms(delay: str | timedelta) -> int:
    if isinstance(delay, str) and delay.strip().isdecimal():
        raise InvalidArgument(
            f"delay {delay!r}",
            expected='a level as a number, a timedelta, or text with a unit such as "7m30s"',
        )
    try:
        return milliseconds(delay)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"delay {delay!r}",
            expected='a timedelta, text such as "7m30s", or a delay level, 1 to 18',
        ) from error


def _time_ms(deliver_at: object) -> int:
    if isinstance(deliver_at, datetime):
        if deliver_at.tzinfo is None:
            raise InvalidArgument(
                f"deliver_at {deliver_at!r} has no time zone",
                expected="an aware datetime, or seconds since 1970",
                hint="deliver_at.astimezone() takes it for local time",
            )
        seconds = deliver_at.timestamp()
    elif isinstance(deliver_at, int | float) and not isinstance(deliver_at, bool):
        seconds = deliver_at
    else:
        raise InvalidArgument(
            f"deliver_at {deliver_at!r} of type {type(deliver_at).__name__}",
            expected="an aware datetime, or seconds since 1970",
        )
    if not 0 <= seconds < 1e11:
        hint = "milliseconds? divide by 1000" if seconds >= 1e11 else None
        raise InvalidArgument(
            f"deliver_at {deliver_at!r}", expected="seconds since 1970", hint=hint
        )
    return round(seconds * 1000)
