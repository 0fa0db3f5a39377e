"""Fields of our own, which only Penstock writes and only Penstock reads.

RocketMQ's peers ignore ext fields and properties they do not know, so nothing has to be negotiated.
"""

from __future__ import annotations

from typing import Final

from penstock.model.names import Failure

PULL_BYTES: Final = "penstockPullBytes"
"""On a pull: how many bytes of records the client takes; lifts the caps of 32 and 256 KiB."""

PULL_COUNT: Final = "penstockPullCount"
"""Beside `PULL_BYTES`: how many messages the client takes, instead of ``maxMsgNums``, which applies
to brokers that know neither field."""

REGISTRATION_KEY: Final = "penstockRegistrationKey"
"""On REGISTER_BROKER, UNREGISTER_BROKER and REGISTER_TOPIC_IN_NAMESRV: a random text that only the
brokers have which were started together with the name server (``penstock up``)."""

REASON_FIELDS: Final = {
    "penstockReasonType": Failure.TYPE,
    "penstockReasonMessage": Failure.MESSAGE,
    "penstockReasonHost": Failure.HOST,
    "penstockReasonAttempt": Failure.ATTEMPT,
}
"""On a send-back: why the message failed, and the properties that keep it."""

TOPIC_EPOCH: Final = "penstockTopicEpoch"
"""The log position at which a topic of this name was last deleted; 0, or no field, if never.

On the answer to a pull, to QUERY_CONSUMER_OFFSET (also if nothing is committed), GET_MAX_OFFSET and
GET_MIN_OFFSET: the epoch of the queue that was asked for. It only grows, and it has grown exactly
if the topic was deleted and created again: offsets that a client knows from a smaller epoch belong
to messages that are gone.

On a pull and on UPDATE_CONSUMER_OFFSET: the epoch that the client's offset belongs to (``0`` is
written, too). If the topic was created again since, the broker ignores the commit, and answers the
pull with PULL_OFFSET_MOVED, the first offset of the new queue and its epoch. Requests without the
field have RocketMQ's rules.
"""

LOCK_LEASE: Final = "penstockLockLease"
"""On a lock request: binds the locks to this connection, in milliseconds.

A lock lives for a minute after its last renewal, as in RocketMQ. If the connection over which it
was renewed closes, it lives only this long after that renewal, and the other members are notified
when it ends; renewing it over another connection in time keeps it. In return the client begins no
handler call later than half of this time after it sent a renewal that was granted, so that calls
that take less than the other half have ended when another member gets the queue.

On the answer: the time the broker applies, from 1,000 to 60,000. An answer without the field comes
from a broker that binds nothing: the client has RocketMQ's times then.
"""

LOCK_OWNERS: Final = "penstockLockOwners"
"""On the answer to a lock request: the holders of the refused queues, as a JSON object of client
ids by queue."""


POP_RETRY_TOPICS: Final = "penstockPopRetryTopics"
"""On the answer to a heartbeat: the pop retry topics that this broker has of the groups and topics
in it, joined by commas; absent if there are none. Members that pull read them, too, so that nothing
stays there when a group changes from popping to pulling."""

EXPIRED_STATISTIC: Final = "PENSTOCK_EXPIRED_NUMS"
"""A statistic of VIEW_BROKER_STATS_DATA, by group: popped messages whose invisible time was up."""

LATE_ACK_STATISTIC: Final = "PENSTOCK_LATE_ACK_NUMS"
"""The same for acknowledgements that came after it."""


class RunningExtension:
    """Further keys of ``ConsumerRunningInfo.properties``: what Java's consumers do not report.

    Tools print properties they do not know; brokers pass them on.
    """

    MODE: Final = "penstock.mode"
    """How it gets messages: pull, pop, or as the broker says (auto)."""
    CLOCK: Final = "penstock.clockMs"
    """The clock of this member."""
    PAUSED: Final = "penstock.paused"
    """Whether its program has paused it."""
    PAUSED_QUEUES: Final = "penstock.pausedQueues"
    """A JSON list of the single queues that are paused."""
    LONGEST_RUNNING: Final = "penstock.longestRunning"
    """The message whose handler has been running longest, as a JSON object: ``queue``, ``offset``,
    ``msgId``, ``runningMs``; left out when no handler runs."""
    RUNNING: Final = "penstock.runningHandlers"
    """How many handler calls are under way."""
    FLOW_STOPS: Final = "penstock.flowStops"
    """How often a limit kept a queue from being pulled, as a JSON object by limit."""
    STOPPED_QUEUES: Final = "penstock.stoppedQueues"
    """Which queues a limit keeps from being pulled now, as a JSON object of limits by queue."""
    LAST_FAILURE: Final = "penstock.lastFailure"
    """The newest message whose handler failed, as a JSON object: ``queue``, ``msgId``, ``reason``,
    ``agoMs``; left out where none did."""
    REFUSED_LOCKS: Final = "penstock.refusedLocks"
    """Queues it should consume in order and cannot lock, as a JSON object by queue of the client
    that holds the lock; an empty text where the broker does not report it."""


REPEAT: Final = "PENSTOCK_REPEAT"
"""A property of a send, or of the envelope of a batch: an earlier request with the same unique id
(of a batch: the same first id) may have been stored. The broker looks for it and, if it is there,
answers with its receipt. The property itself is not stored. Clients set it only where the broker is
a Penstock broker, because others would store it."""

REPEAT_MARK: Final = f"{REPEAT}\x01true\x02"
"""`REPEAT` as a part of a property text."""

RECENT_REPEAT_MARK: Final = f"{REPEAT}\x01recent\x02"
"""The same for a request that is sent for the first time, by a task of which another attempt may be
running: only messages of the last hour are compared, which are in the newest index files."""

EACH_REPEAT_MARK: Final = f"{REPEAT}\x01each\x02"
"""The same on a batch whose messages may have been stored in other batches: each is looked for by
its own unique id, and only those that are not there are stored."""

ROW_NAME: Final = "PENSTOCK_ROW"
"""On a message of Spark's sink: ``QUERY/BATCH/PARTITION/ROW``, or ``QUERY/BATCH/id/ID`` for a row
that has an id of its own. A repeat of the latter is known by its name, also if its body differs."""

ROW_BY_ID: Final = "id"

SHORT_RECEIPT: Final = "penstockShortReceipt"
"""On a batch send: an answer with the id of the first message only is enough."""
