"""Operator actions on a cluster; `penstock.Admin` and `penstock.aio.Admin`."""

from penstock.admin.reports import (
    BrokerAddress,
    Client,
    DeadLetterQueue,
    DeadLetterRow,
    GroupLag,
    GroupMode,
    LetterEdit,
    Member,
    Move,
    Partial,
    QueueLag,
    QueueRange,
    QueueSlice,
    TopicRow,
    UndecidedTransaction,
    WaitingTimer,
)

__all__ = [
    "BrokerAddress",
    "Client",
    "DeadLetterRow",
    "DeadLetterQueue",
    "GroupLag",
    "GroupMode",
    "LetterEdit",
    "Member",
    "Move",
    "Partial",
    "QueueLag",
    "QueueRange",
    "QueueSlice",
    "TopicRow",
    "UndecidedTransaction",
    "WaitingTimer",
]
