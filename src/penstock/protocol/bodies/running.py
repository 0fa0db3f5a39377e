"""The state that a running consumer reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model import MessageQueue
from penstock.protocol.bodies.codec import wire
from penstock.protocol.bodies.common import SubscriptionData
from penstock.protocol.bodies.values import Int32, WireEnum


@dataclass(frozen=True, slots=True)
class ProcessQueueInfo:
    """What a member holds of a queue between pull and commit."""

    commit_offset: int = 0
    cached_min_offset: int = field(default=0, metadata=wire("cachedMsgMinOffset"))
    cached_max_offset: int = field(default=0, metadata=wire("cachedMsgMaxOffset"))
    cached_count: Int32 = field(default=0, metadata=wire("cachedMsgCount"))
    cached_mib: Int32 = field(default=0, metadata=wire("cachedMsgSizeInMiB"))
    transaction_min_offset: int = field(default=0, metadata=wire("transactionMsgMinOffset"))
    transaction_max_offset: int = field(default=0, metadata=wire("transactionMsgMaxOffset"))
    transaction_count: Int32 = field(default=0, metadata=wire("transactionMsgCount"))
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = field(default=False, metadata=wire("droped"))
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class PopProcessQueueInfo:
    """What a member that pops holds of a queue."""

    wait_ack_count: Int32 = 0
    dropped: bool = field(default=False, metadata=wire("droped"))
    last_pop_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeStatus:
    """How fast a member consumes a topic."""

    pull_rt: float = field(default=0.0, metadata=wire("pullRT"))
    pull_tps: float = field(default=0.0, metadata=wire("pullTPS"))
    consume_rt: float = field(default=0.0, metadata=wire("consumeRT"))
    consume_ok_tps: float = field(default=0.0, metadata=wire("consumeOKTPS"))
    consume_failed_tps: float = field(default=0.0, metadata=wire("consumeFailedTPS"))
    consume_failed_count: int = field(default=0, metadata=wire("consumeFailedMsgs"))


class RunningProperty:
    """Keys of ``ConsumerRunningInfo.properties`` that tools look for."""

    NAMESRV = "PROP_NAMESERVER_ADDR"
    CONSUME_TYPE = "PROP_CONSUME_TYPE"
    CLIENT_VERSION = "PROP_CLIENT_VERSION"
    THREADS = "PROP_THREADPOOL_CORE_SIZE"
    ORDERLY = "PROP_CONSUMEORDERLY"
    START_TIMESTAMP = "PROP_CONSUMER_START_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo:
    """The whole state of a member; ``mq_pop_table`` and ``user_consumer_info`` are 5.x's."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] | None = None
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] | None = None
    stack_trace: str | None = field(default=None, metadata=wire("jstack"))


class DirectResult(WireEnum):
    """How a listener took a message that an administrator handed to it."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyResult:
    """The answer to CONSUME_MESSAGE_DIRECTLY."""

    consume_result: DirectResult
    order: bool = False
    auto_commit: bool = True
    spent_time_ms: int = field(default=0, metadata=wire("spentTimeMills"))
    remark: str | None = None
