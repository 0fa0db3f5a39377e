"""Which queue a message goes to: one for each message group, any for the others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, TypeVar

from penstock.model.java_hash import java_hash

_MASK: Final = (1 << 64) - 1
_MULTIPLIER: Final = 2862933555777941757
_Queue = TypeVar("_Queue")


def jump_hash(key: int, buckets: int) -> int:
    """The bucket of a key by jump consistent hashing, as Guava computes it."""
    state, bucket, after = key & _MASK, 0, 0
    while True:
        state = (state * _MULTIPLIER + 1) & _MASK
        after = int((bucket + 1) * ((1 << 31) / ((state >> 33) + 1)))
        if after >= buckets:
            return bucket
        bucket = after


def choose_queue(
    queues: Sequence[_Queue], message_group: str | None, chance: random.Random
) -> _Queue:
    """A queue of those that can be written, in their order."""
    if message_group is None:
        return queues[chance.randrange(len(queues))]
    return queues[jump_hash(java_hash(message_group), len(queues))]
