"""Operator actions on a cluster; `penstock.Admin` and `penstock.aio.Admin`."""

from penstock.admin.reports import (
    BrokerAddress,
    Client,
    DeadLetterQueue,
    DeadLetterRow,
    Member,
    QueueLag,
    QueueRange,
    QueueSlice,
    UndecidedTransaction,
)

__all__ = [
    "BrokerAddress",
    "Client",
    "DeadLetterRow",
    "DeadLetterQueue",
    "Member",
    "QueueLag",
    "QueueRange",
    "QueueSlice",
    "UndecidedTransaction",
]
