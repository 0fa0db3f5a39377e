"""RocketMQ for Python and Spark people.

These are the public names; `penstock.spark`, `penstock.admin`, `penstock.errors`, `penstock.otel`
and `penstock.testing` have further ones. Everything else, `penstock.client` above all, is internal.
Names are loaded when they are first used, so ``import penstock`` itself costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from penstock import aio
    from penstock.admin.blocking import Admin
    from penstock.client.blocking.producer import Producer
    from penstock.client.blocking.pull_consumer import PullConsumer
    from penstock.client.blocking.push_consumer import PushConsumer
    from penstock.client.blocking.simple_consumer import SimpleConsumer
    from penstock.client.consuming.assignment import (
        AssignmentStrategy,
        Average,
        Circle,
        Configured,
        ConsistentHash,
        MachineRoom,
        MachineRoomNearby,
    )
    from penstock.client.consuming.outcomes import (
        ConsumeContext,
        ConsumeResult,
        DeadLetter,
        RetryLater,
    )
    from penstock.client.middleware import HandlerCall, Middleware, SendCall
    from penstock.client.observing.consumer_stats import ConsumerStats
    from penstock.client.producing.outbox import Outbox
    from penstock.client.producing.receipts import Receipt, SendStatus
    from penstock.client.producing.transactions import PreparedMessage
    from penstock.errors import (
        ConfigError,
        ConnectFailed,
        ConnectionLost,
        IllegalMessage,
        InvalidArgument,
        LifecycleError,
        NameserverUnavailable,
        NoPermission,
        PenstockError,
        ReceiptExpired,
        RemotingError,
        RequestRefused,
        RequestTimeout,
        TopicNotFound,
    )
    from penstock.model import Message, MessageQueue, StoredMessage, TypedMessage
    from penstock.remoting.tls import Tls
    from penstock.testing.embedded import embedded

# Where each name is loaded from. Type checkers read the imports above and `__all__`; a test
# compares the three, and those of `aio`.
_NAMES = {
    "penstock.admin.blocking": ("Admin",),
    "penstock.client.blocking.producer": ("Producer",),
    "penstock.client.blocking.pull_consumer": ("PullConsumer",),
    "penstock.client.blocking.push_consumer": ("PushConsumer",),
    "penstock.client.blocking.simple_consumer": ("SimpleConsumer",),
    "penstock.client.consuming.assignment": (
        "AssignmentStrategy",
        "Average",
        "Circle",
        "Configured",
        "ConsistentHash",
        "MachineRoom",
        "MachineRoomNearby",
    ),
    "penstock.client.consuming.outcomes": (
        "ConsumeContext",
        "ConsumeResult",
        "DeadLetter",
        "RetryLater",
    ),
    "penstock.client.middleware": (
        "HandlerCall",
        "Middleware",
        "SendCall",
    ),
    "penstock.client.observing.consumer_stats": ("ConsumerStats",),
    "penstock.client.producing.outbox": ("Outbox",),
    "penstock.client.producing.receipts": (
        "Receipt",
        "SendStatus",
    ),
    "penstock.client.producing.transactions": ("PreparedMessage",),
    "penstock.errors": (
        "ConfigError",
        "ConnectFailed",
        "ConnectionLost",
        "IllegalMessage",
        "InvalidArgument",
        "LifecycleError",
        "NameserverUnavailable",
        "NoPermission",
        "PenstockError",
        "ReceiptExpired",
        "RemotingError",
        "RequestRefused",
        "RequestTimeout",
        "TopicNotFound",
    ),
    "penstock.model": (
        "Message",
        "MessageQueue",
        "StoredMessage",
        "TypedMessage",
    ),
    "penstock.remoting.tls": ("Tls",),
    "penstock.testing.embedded": ("embedded",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [
    "Admin",
    "AssignmentStrategy",
    "Average",
    "Circle",
    "ConfigError",
    "Configured",
    "ConnectFailed",
    "ConnectionLost",
    "ConsistentHash",
    "ConsumeContext",
    "ConsumeResult",
    "ConsumerStats",
    "DeadLetter",
    "HandlerCall",
    "IllegalMessage",
    "InvalidArgument",
    "LifecycleError",
    "MachineRoom",
    "MachineRoomNearby",
    "Message",
    "MessageQueue",
    "Middleware",
    "NameserverUnavailable",
    "NoPermission",
    "Outbox",
    "PenstockError",
    "PreparedMessage",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "Receipt",
    "ReceiptExpired",
    "RemotingError",
    "RequestRefused",
    "RequestTimeout",
    "RetryLater",
    "SendCall",
    "SendStatus",
    "SimpleConsumer",
    "StoredMessage",
    "Tls",
    "TopicNotFound",
    "TypedMessage",
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
