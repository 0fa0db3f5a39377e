"""What is known of a call besides its message."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, from where, and until when the answer is wanted."""

    client_id: str = ""
    address: str = "127.0.0.1:0"
    """``ip:port`` of the client."""
    language: str = ""
    version: str = ""
    deadline: float | None = None
    """On the monotonic clock; None: the client waits for ever."""
    date_time: str = ""
    """The text that is signed."""
    authorization: str = ""
