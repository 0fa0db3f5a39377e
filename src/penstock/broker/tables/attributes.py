"""Attributes of topics and groups, which 5.x keeps beside their other settings.

A request brings changes of attributes: ``+key`` with a value sets one, ``-key`` removes one, and
the others stay. Code 17 has the changes in a line,
``+k=v,+k2=v2,-k3``; the bodies of 18, 200 and 225 have them as a map, ``{"+k": "v", "-k3": ""}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from penstock.errors import InvalidArgument
from penstock.protocol.bodies.topics import MESSAGE_TYPE

Allowed: TypeAlias = frozenset[str] | range | None
"""The values of an attribute: some words, numbers of a range, or anything."""

_ANY_LONG = range(-1, 1 << 63)

TOPIC_ATTRIBUTES: Final[Mapping[str, Allowed]] = {
    # RocketMQ also has BatchCQ and COMPACTION. This store has neither, and another broker that
    # opens it would read such a topic wrongly.
    "queue.type": frozenset({"SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE"}),
    # For proxies and people; a broker accepts messages of any type.
    MESSAGE_TYPE: frozenset(
        {"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE", "MIXED"}
    ),
    "reserve.time": _ANY_LONG,
    "lite.topic.expiration": _ANY_LONG,
}
GROUP_ATTRIBUTES: Final[Mapping[str, Allowed]] = {
    "priority.factor": range(101),
    "lite.bind.topic": None,
    "lite.sub.client.max.event.cnt": _ANY_LONG,
    "lite.sub.client.quota": _ANY_LONG,
    "lite.sub.model": None,
    "lite.sub.reset.offset.exclusive": None,
    "lite.sub.reset.offset.unsubscribe": None,
    "lite.sub.wildcard": None,
}

_CHANGE = re.compile(r"([+-][^=,+-][^=,]*)(?:=([^,]*))?")
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_SHOWN_CHARACTERS = 100


def parse_changes(text: str) -> dict[str, str]:
    """The changes of a line; those of ``+k=v,-k2`` are ``{"+k": "v", "-k2": ""}``."""
    changes: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = _CHANGE.fullmatch(item)
        if match is None or item.startswith("+") != (match[2] is not None):
            raise InvalidArgument(
                f"attribute change {item[:_SHOWN_CHARACTERS]!r}",
                expected="+key=value or -key, joined by commas",
            )
        if match[1] in changes:
            raise _named_twice(match[1][1:])
        changes[match[1]] = match[2] or ""
    return changes


def changed_attributes(
    before: Mapping[str, str] | None,
    changes: Mapping[str, str] | None,
    known: Mapping[str, Allowed],
) -> dict[str, str]:
    """The attributes after some changes; `InvalidArgument` for one that cannot be made."""
    before = before or {}
    after = dict(before)
    named: set[str] = set()
    for change, value in (changes or {}).items():
        sign, key = change[:1], change[1:]
        if sign not in ("+", "-") or not key:
            # A client that changes another setting may send back the attributes that it read.
            if before.get(change) == value:
                continue
            raise InvalidArgument(
                f"attribute change {change[:_SHOWN_CHARACTERS]!r}", expected="+key or -key"
            )
        if key in named:
            raise _named_twice(key)
        named.add(key)
        if sign == "-":
            after.pop(key, None)
        else:
            after[key] = _checked(key, value, known)
    return after


def _checked(key: str, value: str, known: Mapping[str, Allowed]) -> str:
    if key not in known:
        raise InvalidArgument(
            f"attribute {key[:_SHOWN_CHARACTERS]!r}", expected=f"one of {', '.join(sorted(known))}"
        )
    allowed = known[key]
    if isinstance(allowed, range):
        fits = _NUMBER.fullmatch(value) is not None and int(value) in allowed
        expected = f"{allowed[0]} to {allowed[-1]}"
    elif allowed is not None:
        fits, expected = value in allowed, " or ".join(sorted(allowed))
    else:
        fits, expected = bool(value), "a value"
    if not fits:
        raise InvalidArgument(f"attribute {key}={value[:_SHOWN_CHARACTERS]!r}", expected=expected)
    return value


def _named_twice(key: str) -> InvalidArgument:
    return InvalidArgument(
        f"attribute {key[:_SHOWN_CHARACTERS]!r} is changed twice", expected="one change of each"
    )
