"""What the requests for the tables of topics and groups have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping
from typing import Final, TypeVar

from penstock.broker.state import BrokerState
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.commands import Command
from penstock.remoting import Promise

MAX_LIST_BYTES: Final = 2 << 20
"""A list of settings that an operator sends: about ten thousand topics or five thousand groups."""

ROWS_AT_ONCE: Final = 256
"""The text of more rows is made in a thread: that of 30,000 topics takes most of a second."""

_Row = TypeVar("_Row")


def answer_when_saved(broker: BrokerState, file: str, promise: Promise | None = None) -> Promise:
    """Answer with success when a table is on the disk."""
    promise = promise or Promise()
    broker.tables.when_saved(file, lambda: promise.resolve(Command(0)), promise.fail)
    return promise


def page_of(
    table: Mapping[str, _Row], first: int | None, count: int | None
) -> dict[str, _Row] | None:
    """The rows that a request for a page asks for; None if it asks for the whole table."""
    if first is None or count is None or count <= 0:
        return None
    first = max(0, first)
    return {name: table[name] for name in list(table)[first : first + count]}


def table_text(table: object, rows: int) -> Generator[Callable[[], bytes], bytes, bytes]:
    """The text of a table that is not changed any more, for a handler in steps."""
    encode = functools.partial(encode_body, table)
    return encode() if rows <= ROWS_AT_ONCE else (yield encode)
