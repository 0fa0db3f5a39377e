"""When an answer about pop consumption may leave: as soon as its record is stored as sends are."""

from __future__ import annotations

from penstock.broker.state import BrokerState
from penstock.errors import PenstockError
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import Command
from penstock.remoting import Promise


class _Unhurried:
    """The promise of a pop: when the disk takes long, its answer is as good as any.

    If the record is lost after all, so is the new offset, and the messages are handed out again.
    The end of a receipt would be lost silently: that answer says what happened.
    """

    def __init__(self, promise: Promise) -> None:
        self._promise = promise

    def resolve(self, answer: Command) -> bool:
        if answer.code == ResponseCode.FLUSH_DISK_TIMEOUT:
            answer.code = ResponseCode.SUCCESS
        return self._promise.resolve(answer)

    def fail(self, error: PenstockError) -> bool:
        return self._promise.fail(error)


def when_stored(
    broker: BrokerState,
    log_end: int,
    answer: Command,
    promise: Promise | None = None,
    *,
    is_pop: bool = False,
) -> Command | Promise:
    """Give ``answer`` when the log is stored up to ``log_end``, in the sense of the flush mode.

    With asynchronous flush that is the end of this turn, for which all answers wait anyway.
    """
    if broker.storage.is_sync_flush and log_end:
        waiting = promise or Promise()
        broker.storage.when_on_disk(log_end, _Unhurried(waiting) if is_pop else waiting, answer)
        return waiting
    if promise is None:
        return answer
    promise.resolve(answer)
    return promise
