"""How the queues of a topic are shared: the two rules that clients and brokers both know.

For ``n`` queues, ``c`` members and the member at index ``i``, both sorted:

    average   0 0 0 1 1 1 2 2      blocks, the first n mod c members get one more
    circle    0 1 2 0 1 2 0 1      dealt like cards
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_Queue = TypeVar("_Queue")


def average_share(index: int, members: int, queues: Sequence[_Queue]) -> Sequence[_Queue]:
    """Neighbouring queues in blocks as equal as can be."""
    share, rest = divmod(len(queues), members)
    size = 1 if len(queues) <= members else share + (index < rest)
    start = index * size if index < rest else index * size + rest
    return queues[start : start + size]


def circle_share(index: int, members: int, queues: Sequence[_Queue]) -> Sequence[_Queue]:
    """Every c-th queue."""
    return queues[index::members]
