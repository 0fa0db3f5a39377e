"""Delay levels: a message waits for one of a fixed list of times, not for any time.

RocketMQ's list has 18; a broker can be configured with another, written the same way:
``1s 5s 10s 30s 1m ... 1h 2h``. Level 1 is the first; 0 and below mean no delay, and a level
beyond the last is the last.
"""

from __future__ import annotations

from penstock.errors import ConfigError, InvalidArgument

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MAX_DIGITS = 10


class DelayLevels:
    """One list of delay levels."""

    def __init__(self, text: str = DEFAULT_DELAY_LEVELS) -> None:
        self.texts = tuple(text.lower().split())
        if not self.texts:
            raise ConfigError("messageDelayLevel is empty", expected=f"{DEFAULT_DELAY_LEVELS!r}")
        self._ms = tuple(_milliseconds(item, text) for item in self.texts)
        self._levels: dict[str, int] = {}
        for level, item in enumerate(self.texts, start=1):
            self._levels.setdefault(item, level)

    @property
    def max_level(self) -> int:
        """The last level."""
        return len(self.texts)

    def clamp(self, level: int) -> int:
        """The level that is used for ``level``: 0 for none, at most the last."""
        return min(max(level, 0), self.max_level)

    def delay_ms(self, level: int) -> int:
        """How long a message of this level waits."""
        level = self.clamp(level)
        return self._ms[level - 1] if level else 0

    def level_of(self, delay: int | str) -> int:
        """The level a user means by a number or by the text of a level such as ``"10s"``."""
        if isinstance(delay, str):
            level = self._levels.get(delay.strip().lower())
        else:
            is_number = isinstance(delay, int) and not isinstance(delay, bool)
            level = delay if is_number and 0 <= delay <= self.max_level else None
        if level is None:
            raise InvalidArgument(
                f"delay {delay!r} is none of the {self.max_level} delay levels",
                expected=f"a number, 1 to {self.max_level}, or one of: {', '.join(self.texts)}",
            )
        return level

    def text_of(self, level: int) -> str:
        """The text of a level, ``"0s"`` for no delay."""
        level = self.clamp(level)
        return self.texts[level - 1] if level else "0s"


def _milliseconds(item: str, text: str) -> int:
    number, unit = item[:-1], _UNIT_MS.get(item[-1])
    if unit is None or not (number.isascii() and number.isdigit()) or len(number) > _MAX_DIGITS:
        raise ConfigError(
            f"messageDelayLevel {text!r} has {item!r}",
            expected="numbers with a unit of s, m, h or d, separated by spaces",
        )
    return int(number) * unit


DELAY_LEVELS = DelayLevels()


def delay_ms(level: int) -> int:
    """How long a message of this level of RocketMQ's own list waits."""
    return DELAY_LEVELS.delay_ms(level)
