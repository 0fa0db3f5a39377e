"""Reads give runs of records that lie side by side; this separates them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def record_views(slices: Iterable[memoryview]) -> Iterator[memoryview]:
    """One view for each record of a read."""
    for run in slices:
        position = 0
        while position < len(run):
            size = int.from_bytes(run[position : position + 4], "big")
            yield run[position : position + size]
            position += size
