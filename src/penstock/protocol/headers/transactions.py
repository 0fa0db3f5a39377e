"""The second half of a transactional send."""

from __future__ import annotations

from typing import Final

from msgspec import field

from penstock.protocol.headers.codec import Header, Int32, Int64


class TransactionDecision:
    """Values of ``EndTransaction.commit_or_rollback``: transaction bits of a message's flag."""

    UNKNOWN: Final = 0
    COMMIT: Final = 8
    ROLLBACK: Final = 12


class EndTransaction(Header):
    """What became of a half message: ``commit_or_rollback`` is a ``TransactionDecision``."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionState(Header):
    """The broker asks a producer of the group about a half message, which is the body."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = field(default=None, name="bname")


class ResumeCheckHalfMessage(Header):
    """Start checking a half message again that was given up."""

    msg_id: str
    topic: str | None = None
