"""What a subscription expression lets through: tags by hash, properties by SQL92."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import SubscriptionIllegal
from penstock.model.java_hash import java_hash
from penstock.model.subscription import EVERYTHING, SQL92, TAG, Subscription

if TYPE_CHECKING:
    from penstock.protocol.filters.sql92.parser import CompiledFilter

MAX_TAG_CHARACTERS = 65_536
"""The longest tag expression, some ten thousand tags."""

_CACHED_TAGS = 4096
_CACHED_TAG_CHARACTERS = 128
_CACHED_EXPRESSIONS = 100
_TAG_SEPARATOR = "||"


_cached_hash = functools.lru_cache(maxsize=_CACHED_TAGS)(java_hash)


def tag_code(tag: str | None) -> int:
    """The number a consume queue keeps of a tag, signed; no tag or an empty one is 0."""
    if not tag:
        return 0
    # Producers use few tags and short ones; long ones would only fill the cache's memory.
    return _cached_hash(tag) if len(tag) <= _CACHED_TAG_CHARACTERS else java_hash(tag)


class TagFilter(NamedTuple):
    """The tags of an expression and their codes; both are empty when every message passes."""

    tags: frozenset[str]
    codes: frozenset[int]


def parse_tags(expression: str | None) -> TagFilter:
    """The tags of ``"A || B"``; ``*``, an empty text or none lets everything through."""
    text = EVERYTHING if expression is None else expression.strip()
    if text in ("", EVERYTHING):
        return TagFilter(frozenset(), frozenset())
    if len(text) > MAX_TAG_CHARACTERS:
        raise SubscriptionIllegal(
            f"tag expression of {len(text)} characters", expected=f"at most {MAX_TAG_CHARACTERS}"
        )
    tags = frozenset(tag for part in text.split(_TAG_SEPARATOR) if (tag := part.strip()))
    if not tags:
        raise SubscriptionIllegal(
            f"tag expression {text[:200]!r} names no tag",
            expected="'*', or tags separated by ||, such as 'created || paid'",
        )
    return TagFilter(tags, frozenset(map(tag_code, tags)))


def subscription(
    topic: str, expression: str | None, expression_type: str | None = TAG, version: int = 0
) -> Subscription:
    """A checked subscription, with the tags and codes of its expression.

    Codes are always computed here: some clients send wrong ones, or none.
    """
    text = (expression or "").strip() or EVERYTHING
    if expression_type in (None, "", TAG):
        tags, codes = parse_tags(text)
        return Subscription(topic, text, version, TAG, tags, codes)
    if expression_type != SQL92:
        raise SubscriptionIllegal(
            f"expression type {expression_type!r} of topic {topic!r}", expected=f"{TAG} or {SQL92}"
        )
    compile_sql(text)
    return Subscription(topic, text, version, SQL92)


@functools.lru_cache(maxsize=_CACHED_EXPRESSIONS)
def compile_sql(expression: str) -> CompiledFilter:
    """The test a SQL92 expression makes of a message's properties; see ``sql92``.

    Raises ``SubscriptionIllegal``, which names the place of the mistake.
    """
    # Few need it, and every client loads this module for its hash.
    from penstock.protocol.filters.sql92.parser import compile_expression

    return compile_expression(expression)
