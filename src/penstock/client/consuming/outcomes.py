"""The result of a handler call, and what it means for the messages.

If a handler returns, its messages are acknowledged; if it raises, they are redelivered, and
`RetryLater` or `DeadLetter` choose how. For the whole Java contract a handler takes a second
argument, a `ConsumeContext`, and returns a `ConsumeResult`; then a missing result is a failure, as
it is in Java.

    handler                     concurrent                     orderly
    ------------------------    ---------------------------    -------------------------------
    returns                     SUCCESS                        SUCCESS
    raises                      RECONSUME_LATER                SUSPEND
    RetryLater("1m")            RECONSUME_LATER, level 5       SUSPEND, for a minute at most 30 s
    DeadLetter("why")           sent to the dead letters       sent to the dead letters, goes on
    returns nonsense            RECONSUME_LATER                SUSPEND
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.model import MessageQueue
from penstock.protocol.delays import DELAY_LEVELS

ALL_ACKNOWLEDGED = 2**31 - 1
DEAD_LETTER_LEVEL = -1
USE_SETTING = -1.0


class ConsumeResult(Enum):
    """How a handler dealt with its messages."""

    SUCCESS = "SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"
    COMMIT = "COMMIT"
    """Orderly with ``auto_commit`` off: everything since the last commit is done."""
    ROLLBACK = "ROLLBACK"
    """Orderly with ``auto_commit`` off: everything since the last commit comes again."""
    SUSPEND = "SUSPEND"
    """Orderly: the same messages come again after a pause; the queue waits."""


_CONCURRENT = frozenset({ConsumeResult.SUCCESS, ConsumeResult.RECONSUME_LATER})
_ORDERLY = frozenset(
    {
        ConsumeResult.SUCCESS,
        ConsumeResult.COMMIT,
        ConsumeResult.ROLLBACK,
        ConsumeResult.SUSPEND,
    }
)
_FAILED = frozenset({ConsumeResult.RECONSUME_LATER, ConsumeResult.SUSPEND})


class ReturnType(Enum):
    """How a listener call ended, as middleware sees it; the names are Java's."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    EXCEPTION = "EXCEPTION"
    RETURNNULL = "RETURNNULL"
    FAILED = "FAILED"


class RetryLater(PenstockError):
    """Raised by a handler: try these messages again after ``delay``.

    ``delay`` is one of RocketMQ's 18 levels, as a number or as its text; without one the broker
    waits longer after every failure. The reason that is kept with the message is ``reason``, and
    the error it was raised from.
    """

    def __init__(self, delay: int | str | None = None, reason: str = "") -> None:
        self.level: int = 0 if delay is None else DELAY_LEVELS.level_of(delay)
        self.reason = reason
        waits = f"after {DELAY_LEVELS.text_of(self.level)}" if self.level else "later"
        super().__init__(f"retry {waits}" + (f": {reason}" if reason else ""))


class DeadLetter(PenstockError):
    """Raised by a handler: give these messages up, they go to the dead letters with ``reason``."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "given up by the handler")


def cause_of(error: BaseException) -> BaseException | None:
    """The error from which, or during the handling of which, this one was raised."""
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


class ConsumeContext:
    """What a handler that takes two arguments may look at and set.

    ``ack_index`` is the place of the last good message of a batch, for ``SUCCESS``;
    ``delay_level`` the level of what is retried (0: the broker chooses, below 0: dead letters).
    Orderly handlers set ``auto_commit`` and ``suspend_time`` (seconds) instead.
    """

    __slots__ = ("ack_index", "auto_commit", "delay_level", "group", "queue", "suspend_time")

    def __init__(self, group: str, queue: MessageQueue) -> None:
        self.group: str = group
        self.queue: MessageQueue = queue
        self.ack_index: int = ALL_ACKNOWLEDGED
        self.delay_level: int = 0
        self.auto_commit: bool = True
        self.suspend_time: float = USE_SETTING


class Outcome(NamedTuple):
    """How one listener call ended."""

    result: ConsumeResult
    return_type: ReturnType
    error: BaseException | None = None


PLAIN_SUCCESS = Outcome(ConsumeResult.SUCCESS, ReturnType.SUCCESS)
"""A handler that returned None: the usual case."""


def judge(
    returned: object,
    error: BaseException | None,
    elapsed: float,
    timeout: float,
    *,
    orderly: bool,
    strict: bool,
) -> Outcome:
    """What a listener call means.

    ``strict`` handlers (those with a context) must return a result; others may return nothing.
    """
    failure = ConsumeResult.SUSPEND if orderly else ConsumeResult.RECONSUME_LATER
    if error is not None and not isinstance(error, RetryLater | DeadLetter):
        return Outcome(failure, ReturnType.EXCEPTION, error)
    if error is not None:
        result = failure
    elif returned is None and not strict:
        result = ConsumeResult.SUCCESS
    elif isinstance(returned, ConsumeResult) and returned in (_ORDERLY if orderly else _CONCURRENT):
        result = returned
    else:
        return Outcome(failure, ReturnType.RETURNNULL, error)
    if elapsed >= timeout:
        return Outcome(result, ReturnType.TIME_OUT, error)
    return Outcome(result, ReturnType.FAILED if result in _FAILED else ReturnType.SUCCESS, error)


def acknowledged(result: ConsumeResult, ack_index: int, size: int) -> int:
    """How many messages of a batch are done, counted from its start."""
    if result is not ConsumeResult.SUCCESS:
        return 0
    return max(0, min(ack_index, size - 1) + 1)
