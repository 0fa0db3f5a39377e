"""What a failed message becomes: the rules, without the sending; pure.

reason_of          why it failed, as properties
level_of           which delay the handler chose: 0 none, below 0 the dead letters
is_last            whether this failure makes it a dead letter
send_back_header   the request that has the broker store it again
retry_copy         the same as an ordinary message to the group's retry topic
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.client.consuming.outcomes import (
    DEAD_LETTER_LEVEL,
    DeadLetter,
    Outcome,
    RetryLater,
    cause_of,
)
from penstock.model import StoredMessage
from penstock.model.names import Failure, Property
from penstock.protocol.headers.send import SendBack

FIRST_RETRY_LEVEL = 3
MAX_LEVEL = 18
MAX_REASON_CHARACTERS = 1000
# Set while a message was in memory, or by the broker while it waited; none belong into a copy.
_NOT_COPIED = (
    Property.MIN_OFFSET,
    Property.MAX_OFFSET,
    Property.CONSUME_START_TIME,
    Property.TRANSACTION_PREPARED,
    Property.DELAY,
    Property.REAL_TOPIC,
    Property.REAL_QUEUE_ID,
)


class RetryCopy(NamedTuple):
    """What a failed message is sent to the retry topic with."""

    properties: dict[str, str]
    reconsume_times: int
    max_reconsume_times: int


def level_of(outcome: Outcome, otherwise: int = 0) -> int:
    """The delay level that the handler's error asks for."""
    if isinstance(outcome.error, RetryLater):
        return outcome.error.level
    if isinstance(outcome.error, DeadLetter):
        return DEAD_LETTER_LEVEL
    return otherwise


def is_last(message: StoredMessage, delay_level: int, max_reconsume_times: int) -> bool:
    """Whether the message ends among the dead letters now."""
    return delay_level < 0 or message.reconsume_times >= max_reconsume_times


def send_back_header(
    message: StoredMessage,
    group: str,
    delay_level: int,
    max_reconsume_times: int,
    *,
    unit_mode: bool = False,
) -> SendBack:
    """The request that gives the message back to its broker."""
    return SendBack(
        offset=message.log_position,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.msg_id,
        origin_topic=message.topic,
        unit_mode=unit_mode,
        max_reconsume_times=max_reconsume_times,
    )


def retry_copy(
    message: StoredMessage, delay_level: int, reason: dict[str, str], max_reconsume_times: int
) -> RetryCopy:
    """What to send when the broker cannot do it, or would forget the reason."""
    properties = {key: value for key, value in message.properties.items() if key not in _NOT_COPIED}
    if message.msg_id:
        properties.setdefault(Property.ORIGIN_MESSAGE_ID, message.msg_id)
    properties[Property.RETRY_TOPIC] = message.topic
    properties.update(reason)
    limit = max_reconsume_times
    if delay_level < 0:
        # More often than it may: the broker moves it to the dead letters.
        limit = min(limit, message.reconsume_times)
    else:
        level = delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        properties[Property.DELAY] = str(min(level, MAX_LEVEL))
    return RetryCopy(properties, message.reconsume_times + 1, limit)


def reason_of(message: StoredMessage, outcome: Outcome | None, host: str) -> dict[str, str]:
    """Why the message failed, as properties; no outcome: its handler took too long."""
    error = None if outcome is None else outcome.error
    if error is None:
        kind = "ConsumeTimeout" if outcome is None else outcome.return_type.value
        text = ""
    else:
        kind, text = _kind_and_words(error)
    reason = {
        Failure.TYPE: kind,
        Failure.MESSAGE: _clean(text),
        Failure.HOST: host,
        Failure.ATTEMPT: str(message.reconsume_times + 1),
    }
    return {key: value for key, value in reason.items() if value}


def _kind_and_words(error: BaseException) -> tuple[str, str]:
    """The class and the text of an error; for a choice of the handler, those of its cause, too."""
    if not isinstance(error, DeadLetter | RetryLater):
        return type(error).__qualname__, _words(error)
    kind, text, cause = type(error).__qualname__, _words(error.reason), cause_of(error)
    if cause is None:
        return kind, text
    if not text:
        return type(cause).__qualname__, _words(cause)
    return kind, f"{text} ({type(cause).__qualname__}: {_words(cause)})"


def _words(said: object) -> str:
    """What a handler's error says.

    Handlers raise ``DeadLetter(error)`` as well, and errors that fail when they are asked for their
    text. Neither may keep a message from its way.
    """
    try:
        return "" if said is None else str(said)
    except Exception:
        return ""


def _clean(text: str) -> str:
    """A reason that fits into a property: no separators, no half surrogates, not too long."""
    text = text[:MAX_REASON_CHARACTERS].replace("\x01", " ").replace("\x02", " ")
    return text.encode("utf-8", "replace").decode()
