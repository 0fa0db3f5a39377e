"""The answer to the send that creates a topic."""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.protocol.commands import Command
from penstock.remoting import Promise


class TopicMade:
    """Holds an answer until the topic that the message made is saved and has a route.

    If the topic were not saved, a broker that dies right now would come back with the message, but
    with no more queues of the topic than it finds messages in. And a client that has the answer
    may start a consumer, which must find the topic at the name servers that can be reached. If
    it cannot be saved, on a full disk say, the sender gets an error at once and may try again.
    """

    __slots__ = ("_answer", "_is_known", "_is_saved", "_promise")

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self._answer: Command | None = None
        self._is_saved = False
        self._is_known = False

    def resolve(self, answer: Command) -> bool:
        self._answer = answer
        return self._is_saved and self._is_known and self._promise.resolve(answer)

    def fail(self, error: PenstockError) -> bool:
        return self._promise.fail(error)

    def saved(self) -> None:
        self._is_saved = True
        self._continue()

    def known(self) -> None:
        self._is_known = True
        self._continue()

    def _continue(self) -> None:
        if self._answer is not None:
            self.resolve(self._answer)
