"""The names of `penstock` for asyncio: the same classes, with ``async`` methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client.consuming.assignment import AssignmentStrategy
from penstock.client.consuming.outcomes import ConsumeContext, ConsumeResult, DeadLetter, RetryLater
from penstock.client.nonblocking import Producer, PullConsumer, PushConsumer
from penstock.client.producing.receipts import Receipt, SendStatus
from penstock.errors import PenstockError
from penstock.model import Message, MessageQueue, StoredMessage

if TYPE_CHECKING:
    from penstock.admin.admin import Admin
    from penstock.testing.embedded import embedded_async as embedded

__all__ = [
    "Admin",
    "AssignmentStrategy",
    "ConsumeContext",
    "ConsumeResult",
    "DeadLetter",
    "Message",
    "MessageQueue",
    "PenstockError",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "Receipt",
    "RetryLater",
    "SendStatus",
    "StoredMessage",
    "embedded",
]


def __getattr__(name: str) -> object:
    # These bring the servers and their tools with them, which most programs never need.
    value: object
    if name == "Admin":
        from penstock.admin.admin import Admin as value
    elif name == "embedded":
        from penstock.testing.embedded import embedded_async as value
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
