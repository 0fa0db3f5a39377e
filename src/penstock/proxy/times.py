"""Durations and timestamps of the API in milliseconds, and back."""

from __future__ import annotations

from penstock.proxy.wire.messages import Duration, Timestamp


def to_ms(value: Duration | Timestamp) -> int:
    """Milliseconds of a duration, or since 1970."""
    return value.seconds * 1000 + value.nanos // 1_000_000


def duration(seconds: float) -> Duration:
    whole_ms = round(seconds * 1000)
    return Duration(seconds=whole_ms // 1000, nanos=whole_ms % 1000 * 1_000_000)


def timestamp(time_ms: int) -> Timestamp:
    return Timestamp(seconds=time_ms // 1000, nanos=time_ms % 1000 * 1_000_000)
