"""Which column of a table holds which part of a message to send."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Where in a row each part of a message is; None: the rows have no such column."""

    body: int
    topic: int | None = None
    keys: int | None = None
    tags: int | None = None
    properties: int | None = None
    sharding_key: int | None = None
    delay: int | None = None
    broker: int | None = None
    queue_id: int | None = None
