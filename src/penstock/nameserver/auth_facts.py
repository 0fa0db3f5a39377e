"""What a name server knows that decides about rights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NameServerFacts:
    """See `penstock.auth.needs.Facts`; a name server has no groups and no messages."""

    cluster: str

    def has_topic(self, topic: str) -> bool:
        return True

    def has_group(self, group: str) -> bool:
        return True

    def topic_at(self, log_position: int) -> str | None:
        return None
