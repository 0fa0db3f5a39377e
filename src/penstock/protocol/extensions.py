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

REASON_FIELDS: Final = {
    "penstockReasonType": Failure.TYPE,
    "penstockReasonMessage": Failure.MESSAGE,
    "penstockReasonHost": Failure.HOST,
    "penstockReasonAttempt": Failure.ATTEMPT,
}
"""On a send-back: why the message failed, and the properties that keep it."""

LOCK_OWNERS: Final = "penstockLockOwners"
"""On the answer to a lock request: the holders of the refused queues, as a JSON object of client
ids by queue."""


class RunningExtension:
    """Further keys of ``ConsumerRunningInfo.properties``: what Java's consumers do not report.

    Tools print properties they do not know; brokers pass them on.
    """

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


SHORT_RECEIPT: Final = "penstockShortReceipt"
"""On a batch send: an answer with the id of the first message only is enough."""
