"""Filters of subscriptions: by tag or by SQL92.

Tags are compared by the 32-bit code in the queue entry only; consumers compare the text. SQL92
needs the properties of the record. The filter is always compiled from the expression, because some
clients send wrong codes.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import SubscriptionIllegal
from penstock.model.properties import parse_properties
from penstock.model.subscription import SQL92
from penstock.protocol.filters.tags import compile_sql, parse_tags
from penstock.protocol.records.codec import decode_record
from penstock.store import RecordTest

log = logging.getLogger(__name__)

_CACHED = 1024
# Longer expressions are not cached: a remote client could exhaust memory with them.
_CACHED_CHARACTERS = 2048


class Filter(NamedTuple):
    """What a pull accepts: by tag code, by properties, or everything when both are None."""

    codes: frozenset[int] | None = None
    takes: Callable[[bytes], bool] | None = None
    steps: int = 1
    """The cost of ``takes``, in steps as the store counts them."""

    @property
    def of_record(self) -> frozenset[int] | RecordTest | None:
        """The filter as the store applies it, to a tags code and a stored record."""
        takes = self.takes
        if takes is None:
            return self.codes
        return RecordTest(
            lambda tags_code, record: takes(decode_record(record).properties), self.steps
        )

    def takes_record(self, tags_code: int, record: memoryview) -> bool:
        """Whether a stored message passes."""
        if self.codes is not None:
            return tags_code in self.codes
        return self.takes is None or self.takes(decode_record(record).properties)

    def matches(self, tags_code: int, properties: bytes) -> bool:
        """Whether a message passes."""
        if self.codes is not None:
            return tags_code in self.codes
        return self.takes is None or self.takes(properties)


EVERYTHING = Filter()


class Filters:
    """Compiles expressions and caches the most recent ones."""

    def __init__(self) -> None:
        self._cached = functools.lru_cache(_CACHED)(_compile)

    def compile(self, expression: str, expression_type: str) -> Filter:
        """The filter of an expression; `SubscriptionIllegal` if it does not compile."""
        compiled = self._cached if len(expression) <= _CACHED_CHARACTERS else _compile
        return compiled(expression, expression_type)

    def of_pull(self, expression: str, expression_type: str) -> Filter:
        """The filter of a running pull: without a filter if SQL92 does not compile, as in RocketMQ.

        The error is reported when the consumer starts (CHECK_CLIENT_CONFIG).
        """
        try:
            return self.compile(expression, expression_type)
        except SubscriptionIllegal as error:
            if expression_type != SQL92:
                raise
            log.debug("filter does not compile, all messages pass error=%s", error)
            return EVERYTHING


def _compile(expression: str, expression_type: str) -> Filter:
    if expression_type != SQL92:
        codes = parse_tags(expression).codes
        return Filter(codes=codes) if codes else EVERYTHING
    takes = compile_sql(expression)
    return Filter(takes=lambda properties: takes(parse_properties(properties)), steps=takes.steps)
