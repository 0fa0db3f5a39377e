"""Targets of answers that change memory first: when what was appended is written, or lost."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.storage import Answered
from penstock.errors import PenstockError
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import Command


class TurnEnd:
    """Changes memory when all that was appended in a loop turn is written, or lost."""

    __slots__ = ("_lost", "_written")

    def __init__(self, written: Callable[[], None], lost: Callable[[], None]) -> None:
        self._written = written
        self._lost = lost

    def resolve(self, answer: Command) -> bool:
        self._written()
        return True

    def fail(self, error: PenstockError) -> bool:
        self._lost()
        return True


class Then:
    """Changes memory when something is written, then answers."""

    __slots__ = ("_done", "_failed", "_target")

    def __init__(
        self,
        target: Answered,
        done: Callable[[], object],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._target = target
        self._done = done
        self._failed = failed

    def resolve(self, answer: Command) -> bool:
        self._done()
        return self._target.resolve(answer)

    def fail(self, error: PenstockError) -> bool:
        self._failed()
        return self._target.fail(error)


class DecidedThen(Then):
    """The same for a decision, which stands even if the disk is slow."""

    __slots__ = ()

    def resolve(self, answer: Command) -> bool:
        answer.code = ResponseCode.SUCCESS
        return super().resolve(answer)
