"""Every error Penstock raises, as one tree.

    PenstockError
    ├── InvalidArgument (also ValueError)   a value handed in by the user
    │   ├── IllegalName                     topic or group name
    │   ├── IllegalMessage                  a message no broker would take
    │   └── ConfigError                     a setting
    ├── ProtocolError                       bytes from a peer or a disk that mean nothing
    │   ├── HeaderFieldError                a required header field is missing or of the wrong type
    │   ├── BodyDamaged                     a message whose body differs from what was stored
    │   └── RecordDamaged                   a record that cannot be read at all
    ├── RemotingError                       the connection, not what was said over it
    │   ├── ListenFailed   ConnectFailed   ConnectionLost   RequestTimeout
    │   ├── TooManyRequests                 the in-flight limit of a connection
    │   └── NameserverUnavailable           none of the name servers answered
    ├── StoreError
    │   ├── StoreLocked   StoreDamaged   StoreReadOnly
    │   ├── StoreLost                       its directory was removed or replaced while in use
    │   ├── StoreBlocked                    nothing is accepted for now: DiskFull, or another reason
    │   └── FlushFailed                     an fsync failed: nothing is accepted any more
    ├── RequestRefused                      the peer answered with an error code
    │   └── leaves for the codes that callers tell apart (TopicNotFound, NoPermission, ...)
    ├── LifecycleError                      used before start, after stop, or twice
    ├── ReceiptExpired                      a popped message whose invisible time is up
    └── MissingPackage (also ImportError)   an optional dependency that is not installed

An error's first argument says what happened, with values. ``expected`` and ``hint`` are optional
keywords; all three survive pickling, so an error raised on a Spark executor reads the same on the
driver. ``code`` is the remoting response code a server answers with when the error leaves a
handler; ``retriable`` says whether the same call may succeed later or on another broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class PenstockError(Exception):
    """Base of everything Penstock raises."""

    retriable: ClassVar[bool] = False
    code: int = 1

    def __init__(self, what: str, *, expected: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.expected = expected
        self.hint = hint

    def __str__(self) -> str:
        text = self.what
        if self.expected:
            text += f"; expected {self.expected}"
        if self.hint:
            # A question is asked, an advice is to be tried.
            text += f"; {self.hint}" if self.hint.endswith("?") else f"; try: {self.hint}"
        return text

    def __reduce__(self) -> tuple[object, ...]:
        # Exception.__reduce__ hands over positional arguments only and would drop the keywords.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(
    cls: type[PenstockError], args: tuple[object, ...], state: dict[str, object]
) -> PenstockError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidArgument(PenstockError, ValueError):
    """A value handed in by the user cannot be used."""

    code = 29


class IllegalName(InvalidArgument):
    """A topic or group name that RocketMQ does not allow."""


class IllegalMessage(InvalidArgument):
    """A message that no broker would take: too big, empty, or with illegal properties."""

    code = 13


class ConfigError(InvalidArgument):
    """A setting is unknown, of the wrong type or out of range."""


class ProtocolError(PenstockError):
    """Bytes from a peer or a disk that are not what they should be."""


class HeaderFieldError(ProtocolError):
    """A header field that the request needs is missing or cannot be read."""


class BodyDamaged(ProtocolError):
    """The body of a message does not have the checksum it was stored with."""


class RecordDamaged(ProtocolError):
    """A record in the middle of others cannot be read: neither its parts nor where it ends."""

    intact: Sequence[object] = ()
    """The messages that precede it."""


class RemotingError(PenstockError):
    """A connection failed."""

    retriable = True


class ListenFailed(RemotingError):
    """A server cannot listen on its port."""

    retriable = False


class ConnectFailed(RemotingError):
    """No connection could be made to an address."""


class ConnectionLost(RemotingError):
    """The connection ended while an answer was awaited."""


class RequestTimeout(RemotingError):
    """No answer came in time."""


class TooManyRequests(RemotingError):
    """A connection already has as many unanswered requests as it may have."""

    code = 2


class NameserverUnavailable(RemotingError):
    """None of the name servers gave an answer."""


class StoreError(PenstockError):
    """The message store cannot do what it was asked."""

    code = 14


class StoreLocked(StoreError):
    """Another process writes to this store."""


class StoreDamaged(StoreError):
    """A file of the store is not what it should be; the text names file and position."""


class StoreReadOnly(StoreError):
    """The store takes no writes."""


class StoreLost(StoreError):
    """The directory of an open store was removed or replaced; nothing is accepted any more."""


class StoreBlocked(StoreError):
    """Something cannot be written now; messages are accepted again when it can."""


class DiskFull(StoreBlocked):
    """There is no room left, or less than the configured reserve."""


class FlushFailed(StoreError):
    """An fsync failed; what is on the disk is unknown, so nothing is accepted any more."""


class LifecycleError(PenstockError):
    """A part was used before it was started, after it was stopped, or started twice."""


class ReceiptExpired(PenstockError):
    """The invisible time of a popped message is up: any member of its group may get it again."""


class MissingPackage(PenstockError, ImportError):
    """Something was used that needs an optional dependency, which is not installed."""


class RequestRefused(PenstockError):
    """The peer answered a request with an error code.

    ``code`` is the code of the answer; ``refused(code, what)`` picks the leaf that stands for it.
    """

    def __init__(
        self,
        what: str,
        *,
        code: int | None = None,
        expected: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what, expected=expected, hint=hint)
        if code is not None:
            self.code = code


class SystemBusy(RequestRefused):
    """The broker is overloaded."""

    retriable = True
    code = 2


class RequestCodeNotSupported(RequestRefused):
    """The peer does not know this request."""

    code = 3


class MessageRefused(RequestRefused):
    """The broker found the message illegal."""

    code = 13


class ServiceNotAvailable(RequestRefused):
    """The broker stores nothing at the moment."""

    retriable = True
    code = 14


class NoPermission(RequestRefused):
    """The broker, topic or group does not allow this."""

    code = 16


class TopicNotFound(RequestRefused):
    """The topic does not exist."""

    code = 17


class NotFound(RequestRefused):
    """There is no such offset, key or message."""

    code = 22


class SubscriptionIllegal(RequestRefused):
    """The filter expression cannot be parsed."""

    code = 23


class SubscriptionNotFound(RequestRefused):
    """The broker has no subscription of this group for the topic."""

    retriable = True
    code = 24


class SubscriptionNotLatest(RequestRefused):
    """The broker still holds an older subscription of this group."""

    retriable = True
    code = 25


class GroupNotFound(RequestRefused):
    """The broker does not know the consumer group."""

    code = 26


class ConsumerNotOnline(RequestRefused):
    """No member of the group is connected."""

    code = 206


class IllegalOperation(RequestRefused):
    """What is asked for cannot be done any more, or never could."""

    code = 604


def _leaves(cls: type[RequestRefused]) -> list[type[RequestRefused]]:
    return [leaf for sub in cls.__subclasses__() for leaf in (sub, *_leaves(sub))]


_BY_CODE: dict[int, type[RequestRefused]] = {leaf.code: leaf for leaf in _leaves(RequestRefused)}


def refused(code: int, what: str, *, hint: str | None = None) -> RequestRefused:
    """The error for an answer with ``code``: its own class where callers tell it apart."""
    return _BY_CODE.get(code, RequestRefused)(what, code=code, hint=hint)
