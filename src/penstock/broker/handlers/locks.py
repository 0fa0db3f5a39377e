"""Orderly consumption: locking queues for one member of a group."""

from __future__ import annotations

import orjson

from penstock.broker.state import BrokerState
from penstock.broker.tables.queue_locks import LOCK_SECONDS, SHORTEST_LEASE, Binding
from penstock.errors import InvalidArgument
from penstock.protocol.bodies.clients import LockBatch, LockBatchReply
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command
from penstock.protocol.extensions import LOCK_LEASE, LOCK_OWNERS
from penstock.remoting.dispatch import Call, handles

_MAX_DIGITS = 12


@handles(RequestCode.LOCK_BATCH_MQ)
def lock_queues(broker: BrokerState, call: Call) -> Command:
    """Take or renew locks; the answer has the queues that the member holds now.

    It also names the owners of the other queues, so that a waiting client can log them.
    """
    ask = call.json(LockBatch)
    binding = _binding(call)
    now = broker.clock.monotonic()
    held = broker.locks.lock(ask.consumer_group, ask.client_id, ask.mq_set, now, binding)
    answer = Command(ResponseCode.SUCCESS, body=encode_body(LockBatchReply(tuple(held))))
    ext = {} if binding is None else {LOCK_LEASE: str(round(binding.lease * 1000))}
    if len(held) < len(ask.mq_set):
        owners = {
            str(queue): broker.locks.owner(ask.consumer_group, queue, now)
            for queue in set(ask.mq_set).difference(held)
        }
        ext[LOCK_OWNERS] = orjson.dumps(owners).decode()
    answer.ext = ext or None
    return answer


def _binding(call: Call) -> Binding | None:
    """What binds the locks to the connection; None for clients that do not ask for it."""
    text = (call.command.ext or {}).get(LOCK_LEASE)
    if text is None or call.peer.is_closed:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise InvalidArgument(f"{LOCK_LEASE} is {text[:100]!r}", expected="milliseconds")
    return Binding(call.peer, min(max(int(text) / 1000, SHORTEST_LEASE), LOCK_SECONDS))


@handles(RequestCode.UNLOCK_BATCH_MQ)
def unlock_queues(broker: BrokerState, call: Call) -> None:
    """Release locks."""
    ask = call.json(LockBatch)
    broker.locks.unlock(ask.consumer_group, ask.client_id, ask.mq_set)
