"""The bounds of a connection, each with a name."""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.errors import ConfigError

_KIB = 1024
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a connection, and of a server's number of them.

    Output is bounded in two steps. Above ``write_high`` unsent bytes, nothing more is read from the
    peer, so it cannot request more; reading resumes below ``write_low``. Other output (answers to
    held requests, our own requests) still adds up meanwhile: above ``write_cut``, or when the peer
    took no byte for ``stuck_seconds``, the connection is cut.
    """

    max_frame_bytes: int = 16 * _MIB
    """Longest frame, either way; RocketMQ's own limit."""
    max_in_flight: int = 65_535
    """Requests of ours without an answer; one more raises `TooManyRequests`."""
    max_promises: int = 16_384
    """Requests of the peer that wait for a promise; one more is answered SYSTEM_BUSY."""
    max_connections: int = 10_000
    """Connections of a server; one more is closed at once. A low ``ulimit -n`` allows fewer."""
    max_unfinished_bytes: int = 256 * _MIB
    """Of partly received frames, on all connections of a server; see `partial_frames`."""
    write_high: int = 1 * _MIB
    write_low: int = 256 * _KIB
    write_cut: int = 64 * _MIB
    stuck_seconds: float = 30.0
    idle_seconds: float = 120.0
    """A connection without traffic for this long is closed, as RocketMQ's peers do."""
    first_frame_seconds: float = 60.0
    """How long a server waits for the first whole frame of a connection."""
    close_seconds: float = 5.0
    """How long a closing connection may take to send its last bytes."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ConfigError(f"limit {field.name}={value!r}", expected="more than zero")
        if not self.write_low <= self.write_high <= self.write_cut:
            raise ConfigError(
                f"write_low={self.write_low}, write_high={self.write_high}, "
                f"write_cut={self.write_cut}",
                expected="write_low <= write_high <= write_cut",
            )
