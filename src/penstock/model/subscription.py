"""What a consumer group wants of a topic."""

from __future__ import annotations

from dataclasses import dataclass

TAG = "TAG"
SQL92 = "SQL92"
EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic with a filter expression; ``version`` orders changes of the same subscription."""

    topic: str
    expression: str = EVERYTHING
    version: int = 0
    expression_type: str = TAG
    tags: frozenset[str] = frozenset()
    tag_codes: frozenset[int] = frozenset()
    class_filter_mode: bool = False
