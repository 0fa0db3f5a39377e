"""An answer that comes later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import RESPONSE, Command

if TYPE_CHECKING:
    from penstock.remoting.peer import Peer

MAX_REMARK_CHARACTERS = 1000


class Promise:
    """Returned by a handler that cannot answer yet; resolving it sends the answer.

    It may be resolved before the handler returns it. The first call to resolve it wins (an arrival
    and a deadline compete for a held pull); later ones return ``False`` and have no effect.
    It keeps the number of the request, not the request, whose body may be large.
    """

    __slots__ = ("_answer", "_peer", "_request_id", "_serializer", "check", "is_resolved")

    def __init__(self) -> None:
        self._peer: Peer | None = None
        self._answer: Command | None = None
        self._request_id = 0
        self._serializer = 0
        self.is_resolved = False
        self.check: Callable[[Command], Command] | None = None
        """Replaces the answer just before it is sent: rights may have changed meanwhile, and a user
        may see a part of it only. Set before the promise is attached."""

    def resolve(self, answer: Command) -> bool:
        """Send ``answer``; return whether it could still be sent."""
        if self.is_resolved:
            return False
        self.is_resolved = True
        peer = self._peer
        if peer is None:
            self._answer = answer  # The handler has not returned yet; `attach` sends it.
            return True
        if self.check is not None:
            answer = self.check(answer)
        self._peer = None
        return peer.fulfil(answer, self._request_id, self._serializer)

    def fail(self, error: PenstockError) -> bool:
        """Answer with the code and the text of ``error``."""
        return self.resolve(error_answer(error))

    def attach(self, peer: Peer, request: Command) -> Command | None:
        """Tie the promise to the connection; return the answer if it is already there."""
        if self.is_resolved:
            answer = self._answer
            return answer if self.check is None or answer is None else self.check(answer)
        self._peer = peer
        self._request_id = request.request_id
        self._serializer = request.serializer
        return None

    def detach(self) -> None:
        """The request was one-way: resolving does nothing."""
        self.is_resolved = True


def error_answer(error: Exception, ext: dict[str, str] | None = None) -> Command:
    """The answer for an error; the connection adds the number of the request.

    Where a success has fields, Java's clients read ``ext`` of a refusal, too; it must not be null.
    """
    if isinstance(error, PenstockError):
        code, text = error.code, str(error)
    else:
        # RocketMQ's clients show the remark to their users; the traceback is for our log.
        code, text = ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"
    return Command(code, flag=RESPONSE, ext=ext, remark=text[:MAX_REMARK_CHARACTERS])
