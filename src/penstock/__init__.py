"""RocketMQ for Python and Spark people.

The public names are loaded when they are first used: ``import penstock`` itself costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from penstock import aio
    from penstock.admin.blocking import Admin
    from penstock.client.blocking import Producer, PullConsumer, PushConsumer
    from penstock.client.consuming.assignment import AssignmentStrategy
    from penstock.client.consuming.outcomes import (
        ConsumeContext,
        ConsumeResult,
        DeadLetter,
        RetryLater,
    )
    from penstock.client.producing.receipts import Receipt, SendStatus
    from penstock.errors import PenstockError
    from penstock.model import Message, MessageQueue, StoredMessage
    from penstock.testing.embedded import embedded

_HOMES = {
    "Admin": "penstock.admin.blocking",
    "AssignmentStrategy": "penstock.client.consuming.assignment",
    "ConsumeContext": "penstock.client.consuming.outcomes",
    "ConsumeResult": "penstock.client.consuming.outcomes",
    "DeadLetter": "penstock.client.consuming.outcomes",
    "Message": "penstock.model",
    "MessageQueue": "penstock.model",
    "PenstockError": "penstock.errors",
    "Producer": "penstock.client.blocking",
    "PullConsumer": "penstock.client.blocking",
    "PushConsumer": "penstock.client.blocking",
    "Receipt": "penstock.client.producing.receipts",
    "RetryLater": "penstock.client.consuming.outcomes",
    "SendStatus": "penstock.client.producing.receipts",
    "StoredMessage": "penstock.model",
    "embedded": "penstock.testing.embedded",
}

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
    "aio",
    "embedded",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name == "aio":
        return importlib.import_module("penstock.aio")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
