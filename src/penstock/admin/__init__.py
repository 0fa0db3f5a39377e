"""Operator actions on a cluster; `penstock.Admin` and `penstock.aio.Admin`."""

from penstock.admin.reports import (
    BrokerAddress,
    Client,
    DeadLetter,
    DeadLetterQueue,
    QueueLag,
    QueueRange,
    QueueSlice,
)

__all__ = [
    "BrokerAddress",
    "Client",
    "DeadLetter",
    "DeadLetterQueue",
    "QueueLag",
    "QueueRange",
    "QueueSlice",
]
