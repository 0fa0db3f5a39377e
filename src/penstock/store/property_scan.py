"""Finding values in property strings without decoding them: on the way of every append.

A property string is *marked* when it has a separator on both sides; every name then has one before
it. What is found is what ``get_property`` finds: both keep RocketMQ's rules for odd strings.
"""

from __future__ import annotations

from typing import Final

TAGS: Final = b"\x02TAGS\x01"
KEYS: Final = b"\x02KEYS\x01"
UNIQUE_KEY: Final = b"\x02UNIQ_KEY\x01"
DELAY: Final = b"\x02DELAY\x01"


def find_value(marked: bytes, name: bytes) -> tuple[int, int]:
    """Where the last non-empty value of ``name`` is; (0, 0) without one."""
    end = len(marked)
    while True:
        at = marked.rfind(name, 0, end)
        if at < 0:
            return 0, 0
        start = at + len(name)
        stop = marked.find(b"\x02", start)
        if stop > start:
            return start, stop
        end = at + 1


def value_of(marked: bytes, name: bytes) -> bytes:
    """The last non-empty value of ``name``; empty without one."""
    start, stop = find_value(marked, name)
    return marked[start:stop]
