"""Templates, and how numbers, sizes and times are written on the pages."""

from __future__ import annotations

import time
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Any

import jinja2
from markupsafe import Markup, escape

NONE = "\N{EN DASH}"
"""In place of a value that does not exist."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """The templates of the console; every value is escaped."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("penstock.console", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
    )
    made.filters.update(
        number=number, size=size, duration=duration, counted=counted, rate=rate, share=share
    )
    return made


def number(value: float | None) -> str:
    """A whole number with separators; a question mark for what is not known."""
    return "?" if value is None else f"{round(value):,}"


def rate(value: float | None) -> str:
    """Messages a second."""
    if value is None:
        return "?"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def share(value: float | None) -> str:
    """A part of 1 in per cent."""
    return "?" if value is None else f"{value * 100:.0f} %"


def counted(count: int, noun: str, several: str | None = None) -> str:
    """``1 message``, ``1,200 messages``."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def size(count: float | None) -> str:
    """Bytes for people."""
    if count is None:
        return "?"
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit returns")


def duration(milliseconds: float | None) -> str:
    """A span of time: ``850 ms``, ``12 s``, ``3 min``, ``2.5 h``, ``4 d``."""
    if milliseconds is None:
        return "?"
    value = abs(milliseconds)
    if value < 1000:
        return f"{value:.0f} ms"
    seconds = value / 1000
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} d"


def moment(milliseconds: int, zone: tzinfo) -> datetime | None:
    """A time on the wire in a zone; None for what no calendar has."""
    if milliseconds <= 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone(zone)
    except (OverflowError, OSError, ValueError):
        return None


class Times:
    """Writes times in one zone: absolute, with the distance from now on hover, or the reverse."""

    def __init__(self, zone: tzinfo, now_ms: int | None = None) -> None:
        self.zone = zone
        self._now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms

    def at(self, milliseconds: int | None) -> Markup | str:
        """``14:02:31.120``, with the date if it is not today's."""
        when = moment(milliseconds or 0, self.zone)
        if when is None:
            return NONE
        today = moment(self._now_ms, self.zone)
        is_today = today is not None and when.date() == today.date()
        text = when.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")
        text += f".{when.microsecond // 1000:03d}"
        return self._element(when, text, f"{self._full(when)}, {self._distance(milliseconds)}")

    def ago(self, milliseconds: int | None) -> Markup | str:
        """``3 min ago``, with the time itself on hover."""
        when = moment(milliseconds or 0, self.zone)
        if when is None:
            return NONE
        return self._element(when, self._distance(milliseconds), self._full(when))

    def clock(self, milliseconds: int) -> str:
        """``14:02:31``, for the axis of a chart."""
        when = moment(milliseconds, self.zone)
        return NONE if when is None else when.strftime("%H:%M:%S")

    def _distance(self, milliseconds: int | None) -> str:
        distance = self._now_ms - (milliseconds or 0)
        if abs(distance) < 1000:
            return "now"
        return f"{duration(distance)} ago" if distance > 0 else f"in {duration(distance)}"

    def _full(self, when: datetime) -> str:
        return f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03d} {when:%Z}"

    def _element(self, when: datetime, text: str, title: str) -> Markup:
        return Markup('<time datetime="{}" title="{}">{}</time>').format(
            when.isoformat(timespec="milliseconds"), title, text
        )


def render(name: str, values: dict[str, Any]) -> str:
    """A template with its values."""
    return environment().get_template(name).render(values)


__all__ = ["Times", "environment", "escape", "render"]
