"""Finds one message by its id, within bounds: without a topic, every topic may have to be asked."""

from __future__ import annotations

import asyncio
import re

from penstock.console.view import View
from penstock.errors import InvalidArgument
from penstock.model import StoredMessage

SEARCH_SECONDS = 10.0
_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{34}|[0-9A-Fa-f]{56}")
"""An address of version 4, an id of a gRPC client, an address of version 6."""


def is_id(text: str) -> bool:
    """Whether a text has the form of the ids that brokers and clients make."""
    return _ID.fullmatch(text) is not None


async def find_message(view: View, msg_id: str, topic: str | None = None) -> StoredMessage:
    """The message with an id; `TimeoutError` if the search takes too long."""
    if topic is None and not is_id(msg_id):
        raise InvalidArgument(
            f"{msg_id[:100]!r} is not the id of a message",
            expected="32, 34 or 56 hexadecimal digits; for any other id, also ?topic=",
        )
    async with asyncio.timeout(SEARCH_SECONDS):
        if topic is not None:
            return await view.admin.message(msg_id, topic=topic)
        # Each search has many requests under way, so searches wait for each other.
        async with view.searches:
            return await view.admin.message(msg_id)
