"""The two ids of a message, both upper-case hexadecimal.

    offset id   ip:4 or 16 | port:4 | log_position:8                       given by the broker
    unique id   ip:4 or 16 | pid:2 | constant:4 | elapsed_ms:4 | counter:2  given by the producer

``elapsed_ms`` counts from midnight, local time, of the first of the month. Peers treat the unique
id as opaque; only tools read the time out of it.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta, timezone
from typing import NamedTuple

from penstock.errors import InvalidArgument
from penstock.model.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES, offset_message_id

__all__ = [
    "OffsetId",
    "UniqueId",
    "UniqueIds",
    "offset_message_id",
    "parse_offset_message_id",
    "parse_unique_id",
    "unique_id_time",
]

_POSITION_BYTES = 8
_IPV4_BYTES = 4
_IPV6_BYTES = 16
_UNIQUE_TAIL_BYTES = 12


class OffsetId(NamedTuple):
    """What an offset id says: the packed address of the broker, and where the record is."""

    host: bytes
    log_position: int


class UniqueId(NamedTuple):
    """What a unique id says."""

    ip: bytes
    process_id: int
    constant: int
    elapsed_ms: int
    counter: int


def parse_offset_message_id(text: str) -> OffsetId:
    """The broker and log position in an offset id."""
    data = _from_hex(text)
    host = data[:-_POSITION_BYTES]
    if len(host) not in (IPV4_HOST_BYTES, IPV6_HOST_BYTES):
        raise _no_id(text)
    return OffsetId(host, int.from_bytes(data[-_POSITION_BYTES:], "big", signed=True))


def parse_unique_id(text: str) -> UniqueId:
    """The parts of a unique id made by RocketMQ's scheme; other producers may use another."""
    data = _from_hex(text)
    ip, tail = data[:-_UNIQUE_TAIL_BYTES], data[-_UNIQUE_TAIL_BYTES:]
    if len(ip) not in (_IPV4_BYTES, _IPV6_BYTES):
        raise _no_id(text)
    numbers = (tail[0:2], tail[2:6], tail[6:10], tail[10:12])
    return UniqueId(ip, *(int.from_bytes(number, "big") for number in numbers))


def unique_id_time(unique_id: UniqueId, now_ms: int, utc_offset_seconds: int = 0) -> int:
    """When an id was made, in epoch ms, assuming that it is less than a month old."""
    start, _ = _month_bounds_ms(now_ms, utc_offset_seconds)
    if start + unique_id.elapsed_ms > now_ms:
        start, _ = _month_bounds_ms(start - 1, utc_offset_seconds)
    return start + unique_id.elapsed_ms


class UniqueIds:
    """Makes the unique ids of one process from its address, process id and a random constant.

    Safe to share between threads: the counter is one atomic step, the rest may be computed twice.
    """

    def __init__(
        self, ip: bytes, process_id: int, constant: int, *, utc_offset_seconds: int = 0
    ) -> None:
        if len(ip) not in (_IPV4_BYTES, _IPV6_BYTES):
            raise InvalidArgument(
                f"ip {ip.hex()!r} of {len(ip)} bytes", expected="4 (IPv4) or 16 (IPv6)"
            )
        self._prefix = f"{ip.hex().upper()}{process_id & 0xFFFF:04X}{constant & 0xFFFF_FFFF:08X}"
        self.length = len(self._prefix) + 12
        """Characters of each id."""
        self._utc_offset_seconds = utc_offset_seconds
        self._month = (0, 0)
        self._counter = itertools.count()

    def next(self, now_ms: int) -> str:
        """A new id, at this time."""
        return f"{self._head(now_ms)}{next(self._counter) & 0xFFFF:04X}"

    def several(self, now_ms: int, count: int) -> list[str]:
        """New ids at this time; faster than one by one."""
        head = self._head(now_ms)
        return [f"{head}{n & 0xFFFF:04X}" for n in itertools.islice(self._counter, count)]

    def _head(self, now_ms: int) -> str:
        start, end = self._month
        if not start <= now_ms < end:
            start, end = self._month = _month_bounds_ms(now_ms, self._utc_offset_seconds)
        # A long month has more milliseconds than a signed 32-bit number; they wrap, as in Java.
        elapsed = (now_ms - start) & 0xFFFF_FFFF
        return f"{self._prefix}{elapsed:08X}"


def _month_bounds_ms(time_ms: int, utc_offset_seconds: int) -> tuple[int, int]:
    """Start and end of the month ``time_ms`` is in, on a clock that far ahead of UTC."""
    zone = timezone(timedelta(seconds=utc_offset_seconds)) if utc_offset_seconds else UTC
    now = datetime.fromtimestamp(time_ms / 1000, zone)
    start = datetime(now.year, now.month, 1, tzinfo=zone)
    end = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=zone)
    return int(start.timestamp()) * 1000, int(end.timestamp()) * 1000


def _from_hex(text: str) -> bytes:
    try:
        # fromhex also takes spaces, which no id has.
        return bytes.fromhex(text) if text.isalnum() else b""
    except ValueError as error:
        raise _no_id(text) from error


def _no_id(text: str) -> InvalidArgument:
    return InvalidArgument(
        f"message id {text[:80]!r} of {len(text)} characters",
        expected="32 (IPv4) or 56 (IPv6) hexadecimal digits",
    )
