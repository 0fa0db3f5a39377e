"""Operator actions on a cluster; `penstock.Admin` and `penstock.aio.Admin`."""

from penstock.admin.reports import (
    BrokerAddress,
    Client,
    DeadLetterQueue,
    DeadLetterRow,
    GroupMode,
    Member,
    QueueLag,
    QueueRange,
    QueueSlice,
    UndecidedTransaction,
    WaitingTimer,
)

__all__ = [
    "BrokerAddress",
    "Client",
    "DeadLetterRow",
    "DeadLetterQueue",
    "GroupMode",
    "Member",
    "QueueLag",
    "QueueRange",
    "QueueSlice",
    "UndecidedTransaction",
    "WaitingTimer",
]
