"""Statuses: the result of a request, with a text that says what to do.

Application errors travel in the ``status`` of a response while the call itself succeeds. Handlers
raise `Refused`, or an error of the rest of Penstock, which `status_of` translates.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from penstock.errors import (
    ConnectFailed,
    ConnectionLost,
    GroupNotFound,
    IllegalMessage,
    NoPermission,
    PenstockError,
    RequestCodeNotSupported,
    RequestTimeout,
    SubscriptionIllegal,
    SystemBusy,
    TooManyRequests,
    TopicNotFound,
    refused,
)
from penstock.protocol.codes import response_name
from penstock.protocol.commands import Command
from penstock.proxy.wire.codes import Code
from penstock.proxy.wire.messages import Status

log = logging.getLogger(__name__)

_MAX_TEXT: Final = 1000
OK: Final = Status(code=Code.OK, message="OK")

_BY_ERROR: Final[tuple[tuple[type[PenstockError], Code], ...]] = (
    (TopicNotFound, Code.TOPIC_NOT_FOUND),
    (GroupNotFound, Code.CONSUMER_GROUP_NOT_FOUND),
    (NoPermission, Code.FORBIDDEN),
    (SubscriptionIllegal, Code.ILLEGAL_FILTER_EXPRESSION),
    (SystemBusy, Code.TOO_MANY_REQUESTS),
    (TooManyRequests, Code.TOO_MANY_REQUESTS),
    (RequestCodeNotSupported, Code.NOT_IMPLEMENTED),
    (RequestTimeout, Code.PROXY_TIMEOUT),
    (IllegalMessage, Code.MESSAGE_CORRUPTED),
)


class Refused(PenstockError):
    """A request that is refused with one of the API's codes."""

    def __init__(
        self, status: Code, what: str, *, expected: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(what, expected=expected, hint=hint)
        self.status = status


class UnknownBroker(ConnectFailed):
    """A client has named a broker that there is not; it may name any."""


def status_of(error: Exception) -> Status:
    """The status for an error; one that is not expected is logged."""
    if isinstance(error, Refused):
        code = error.status
    elif isinstance(error, PenstockError):
        code = next(
            (code for cls, code in _BY_ERROR if isinstance(error, cls)), Code.INTERNAL_SERVER_ERROR
        )
        if isinstance(error, ConnectFailed | ConnectionLost) and not isinstance(
            error, UnknownBroker
        ):
            log.warning("request failed, the broker cannot be reached error=%s", error)
    else:
        log.error("handler of the gRPC endpoint failed", exc_info=error)
        code = Code.INTERNAL_SERVER_ERROR
        return make_status(code, f"{type(error).__name__}: {error}")
    return make_status(code, str(error))


def make_status(code: Code, text: str = "") -> Status:
    """A status; without a text it has the name of its code."""
    return Status(code=code, message=text[:_MAX_TEXT] or code.name)


def common_status(statuses: Iterable[Status]) -> Status:
    """The status above several: theirs if they have one code, else that there are several."""
    by_code = {status.code: status for status in statuses}
    if len(by_code) == 1:
        return next(iter(by_code.values()))
    return make_status(Code.MULTIPLE_RESULTS)


def broker_refusal(answer: Command) -> PenstockError:
    """The error for a refusal by a broker."""
    return refused(answer.code, answer.remark or response_name(answer.code))
