"""Orderly consumption: locking queues for one member of a group."""

from __future__ import annotations

from penstock.broker.state import BrokerState
from penstock.protocol.bodies import LockBatch, LockBatchReply, decode_body
from penstock.protocol.codes import RequestCode
from penstock.remoting.dispatch import Call, Reply, handles


@handles(RequestCode.LOCK_BATCH_MQ)
def lock_queues(broker: BrokerState, call: Call) -> Reply:
    """Take or renew locks; the answer has what the member holds now."""
    ask = decode_body(LockBatch, call.body)
    held = broker.locks.lock(
        ask.consumer_group, ask.client_id, ask.mq_set, broker.clock.monotonic()
    )
    return Reply(body=LockBatchReply(tuple(held)))


@handles(RequestCode.UNLOCK_BATCH_MQ)
def unlock_queues(broker: BrokerState, call: Call) -> None:
    """Give locks back."""
    ask = decode_body(LockBatch, call.body)
    broker.locks.unlock(ask.consumer_group, ask.client_id, ask.mq_set)
