"""The conditions of a search, each alone."""

from __future__ import annotations

import pytest

from penstock.console.message_filter import MessageFilter
from penstock.model import MessageQueue, StoredMessage

MESSAGE = StoredMessage(
    "orders", b"body", {"KEYS": "o-12 o-3"}, MessageQueue("orders", "broker-a", 0), 7
)


@pytest.mark.parametrize(
    ("key", "passes"), [("o-12", True), ("o-3", True), ("o-1", False), ("o-12 o-3", False)]
)
def test_a_key_is_a_whole_one(key: str, passes: bool) -> None:
    assert MessageFilter(key=key)(MESSAGE) == passes
