"""Orderly consumption: locking queues for one member of a group."""

from __future__ import annotations

import orjson

from penstock.broker.state import BrokerState
from penstock.protocol.bodies.clients import LockBatch, LockBatchReply
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.extensions import LOCK_OWNERS
from penstock.remoting.dispatch import Call, handles


@handles(RequestCode.LOCK_BATCH_MQ)
def lock_queues(broker: BrokerState, call: Call) -> Command:
    """Take or renew locks; the answer has the queues that the member holds now.

    It also names the owners of the other queues, so that a waiting client can log them.
    """
    ask = call.json(LockBatch)
    now = broker.clock.monotonic()
    held = broker.locks.lock(ask.consumer_group, ask.client_id, ask.mq_set, now)
    answer = Command(ResponseCode.SUCCESS, body=encode_body(LockBatchReply(tuple(held))))
    if len(held) < len(ask.mq_set):
        owners = {
            str(queue): broker.locks.owner(ask.consumer_group, queue, now)
            for queue in set(ask.mq_set).difference(held)
        }
        answer.ext = {LOCK_OWNERS: orjson.dumps(owners).decode()}
    return answer


@handles(RequestCode.UNLOCK_BATCH_MQ)
def unlock_queues(broker: BrokerState, call: Call) -> None:
    """Release locks."""
    ask = call.json(LockBatch)
    broker.locks.unlock(ask.consumer_group, ask.client_id, ask.mq_set)
