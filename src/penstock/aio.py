"""The names of `penstock` for asyncio: the same classes, with ``async`` methods."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock import (
        AssignmentStrategy,
        Average,
        Circle,
        ConfigError,
        Configured,
        ConnectFailed,
        ConnectionLost,
        ConsistentHash,
        ConsumeContext,
        ConsumeResult,
        ConsumerStats,
        DeadLetter,
        HandlerCall,
        IllegalMessage,
        InvalidArgument,
        LifecycleError,
        MachineRoom,
        MachineRoomNearby,
        Message,
        MessageQueue,
        Middleware,
        NameserverUnavailable,
        NoPermission,
        Outbox,
        PenstockError,
        PreparedMessage,
        Receipt,
        ReceiptExpired,
        RemotingError,
        RequestRefused,
        RequestTimeout,
        RetryLater,
        SendCall,
        SendStatus,
        StoredMessage,
        Tls,
        TopicNotFound,
        TypedMessage,
    )
    from penstock.admin.admin import Admin
    from penstock.client.nonblocking.producer import Producer
    from penstock.client.nonblocking.pull_consumer import PullConsumer
    from penstock.client.nonblocking.push_consumer import PushConsumer
    from penstock.client.nonblocking.simple_consumer import SimpleConsumer
    from penstock.testing.embedded import embedded_async as embedded

_HOMES = {
    "Admin": ("penstock.admin.admin", "Admin"),
    "Producer": ("penstock.client.nonblocking.producer", "Producer"),
    "PullConsumer": ("penstock.client.nonblocking.pull_consumer", "PullConsumer"),
    "PushConsumer": ("penstock.client.nonblocking.push_consumer", "PushConsumer"),
    "SimpleConsumer": ("penstock.client.nonblocking.simple_consumer", "SimpleConsumer"),
    "embedded": ("penstock.testing.embedded", "embedded_async"),
}
"""The names that are other objects here than in `penstock`."""

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
    "embedded",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, attribute = _HOMES.get(name, ("penstock", name))
    value = getattr(importlib.import_module(home), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
