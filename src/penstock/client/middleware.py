"""Middleware: user code around sends and handler calls.

    class Timing(Middleware):
        def before_handle(self, call):
            call.notes["started"] = time.monotonic()

        def after_handle(self, call):
            record(call.queue.topic, time.monotonic() - call.notes["started"], call.error)

The same object works on both faces and in Spark's handlers. ``before_*`` runs in the order of
``middleware=(...)``, ``after_*`` in reverse. A ``before_send`` that raises fails the send. A
``before_handle`` may raise `RetryLater` or `DeadLetter` to decide about the messages without the
handler; anything else it raises, and what an ``after_*`` raises, is logged and changes nothing. On
the producers of `penstock.aio`, and around coroutine handlers, each method may also be a coroutine
function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.model import Message, MessageQueue, StoredMessage

if TYPE_CHECKING:
    from penstock.client.producing.receipts import Receipt


@dataclass(slots=True)
class SendCall:
    """One send of one message or of a batch.

    ``before_send`` may replace ``messages`` by as many others. When ``after_send`` runs,
    ``attempts`` and either ``receipt`` with its ``queue`` or ``error`` are set; a one-way send and
    a request have no receipt.
    """

    group: str
    messages: Sequence[Message]
    queue: MessageQueue | None = None
    attempts: int = 0
    receipt: Receipt | None = None
    error: BaseException | None = None
    notes: dict[str, object] = field(default_factory=dict)
    """Free for middleware to keep values between its two methods."""


@dataclass(slots=True)
class HandlerCall:
    """One call of a handler with one message or a batch.

    ``attempt`` is 1 on the first delivery. A ``before_handle`` that sets ``skip`` acknowledges the
    messages without calling the handler. When ``after_handle`` runs, ``outcome`` is the name of the
    `ConsumeResult`, ``return_type`` how the call ended (Java's ConsumeContextType: ``"SUCCESS"``,
    ``"FAILED"``, ``"EXCEPTION"``, ``"RETURNNULL"`` or ``"TIME_OUT"``), ``error`` what was raised.
    """

    group: str
    queue: MessageQueue
    messages: Sequence[StoredMessage]
    attempt: int = 1
    skip: bool = False
    outcome: str = ""
    return_type: str = ""
    error: BaseException | None = None
    namespace: str | None = None
    notes: dict[str, object] = field(default_factory=dict)
    """Free for middleware to keep values between its two methods."""

    @property
    def success(self) -> bool:
        """Whether the messages were acknowledged; false before the handler was called."""
        return self.outcome in ("SUCCESS", "COMMIT")


class Middleware:
    """Base class: override the methods you need."""

    __slots__ = ()

    def before_send(self, call: SendCall) -> Awaitable[None] | None:
        """Called before a message or a batch is sent."""

    def after_send(self, call: SendCall) -> Awaitable[None] | None:
        """Called when the send has succeeded or failed."""

    def before_handle(self, call: HandlerCall) -> Awaitable[None] | None:
        """Called before a handler is called."""

    def after_handle(self, call: HandlerCall) -> Awaitable[None] | None:
        """Called when the handler has returned or raised."""
