"""The two ends of a queue, in the words users may write for them."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

QueueEnd: TypeAlias = Literal["first", "last"]

_WORDS: Final[dict[str, QueueEnd]] = {
    "first": "first",
    "earliest": "first",
    "last": "last",
    "latest": "last",
}


def queue_end(word: object) -> QueueEnd | None:
    """``"first"`` or ``"last"`` as either of its two words; None: something else is meant."""
    return _WORDS.get(word.strip().lower()) if isinstance(word, str) else None
