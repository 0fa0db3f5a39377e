"""Where a topic is: what every client asks a name server, and often nothing else."""

from __future__ import annotations

from penstock.protocol.headers.codec import Header


class GetRouteInfo(Header):
    """Which brokers have a topic."""

    topic: str
    accept_standard_json_only: bool | None = None
