"""What becomes of a message that a handler could not handle.

    1. send-back: the broker stores it again, for its retry topic after a delay or as a dead letter
    2. that failed: the client sends it to the retry topic itself, as an ordinary message
    3. that failed, too: the caller keeps it and hands it to the handler again later

Why it failed rides along as ext fields of the send-back. Not every broker keeps them, so that a
reason is never lost a dead letter is sent the second way when it would be lost the first way: as a
message to the retry topic that has failed more often than it may. Brokers move that to the dead
letters, with all its properties.
"""

from __future__ import annotations

import logging

from penstock.client.outcomes import DEAD_LETTER_LEVEL, DeadLetter, Outcome, RetryLater
from penstock.client.producer import ProducerCore
from penstock.client.session import ClientSession
from penstock.client.settings import ConsumerSettings
from penstock.errors import PenstockError, ServiceNotAvailable
from penstock.model import StoredMessage
from penstock.model.names import Failure, Property, retry_topic
from penstock.protocol.headers.send import SendBack

log = logging.getLogger(__name__)

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


class FailedMessages:
    """Sends messages of one group back."""

    def __init__(
        self, session: ClientSession, settings: ConsumerSettings, inner: ProducerCore
    ) -> None:
        self._session = session
        self._settings = settings
        self._inner = inner

    async def send_back(
        self, message: StoredMessage, delay_level: int, outcome: Outcome | None
    ) -> bool:
        """Have a message retried or buried; false when nobody took it."""
        reason = self._reason(message, outcome)
        try:
            address = self._session.routes.master(message.queue.broker_name)
            if address is None:
                raise ServiceNotAvailable(f"broker {message.queue.broker_name!r} has no master")
            if (
                outcome is not None
                and outcome.error is not None
                and self._is_last(message, delay_level)
                and not self._session.keeps_reasons(address)
                and await self.bury(message, outcome)
            ):
                return True
            await self._session.calls.send_back(address, self._header(message, delay_level), reason)
        except PenstockError as error:
            log.warning(
                "send-back failed, sending to the retry topic group=%s msg_id=%s error=%s",
                self._settings.group,
                message.msg_id,
                error,
            )
            return await self._resend(message, delay_level, reason)
        return True

    async def bury(self, message: StoredMessage, outcome: Outcome | None) -> bool:
        """Send a message to the dead letters together with the reason; false: not possible now."""
        return await self._resend(message, DEAD_LETTER_LEVEL, self._reason(message, outcome))

    def _is_last(self, message: StoredMessage, delay_level: int) -> bool:
        return delay_level < 0 or message.reconsume_times >= self._settings.max_reconsume_times

    def _header(self, message: StoredMessage, delay_level: int) -> SendBack:
        return SendBack(
            offset=message.log_position,
            group=self._settings.group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            unit_mode=self._settings.unit_mode,
            max_reconsume_times=self._settings.max_reconsume_times,
        )

    async def _resend(
        self, message: StoredMessage, delay_level: int, reason: dict[str, str]
    ) -> bool:
        properties = {
            key: value for key, value in message.properties.items() if key not in _NOT_COPIED
        }
        properties.setdefault(Property.ORIGIN_MESSAGE_ID, message.msg_id)
        properties[Property.RETRY_TOPIC] = message.topic
        properties.update(reason)
        times = message.reconsume_times + 1
        limit = self._settings.max_reconsume_times
        if delay_level < 0:
            # More often than it may: the broker moves it to the dead letters.
            limit = min(limit, message.reconsume_times)
        else:
            level = delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
            properties[Property.DELAY] = str(min(level, MAX_LEVEL))
        try:
            await self._inner.resend(
                retry_topic(self._settings.group),
                message,
                properties,
                reconsume_times=times,
                max_reconsume_times=limit,
            )
        except PenstockError as error:
            log.warning(
                "message could not be sent to the retry topic group=%s msg_id=%s error=%s",
                self._settings.group,
                message.msg_id,
                error,
            )
            return False
        return True

    def _reason(self, message: StoredMessage, outcome: Outcome | None) -> dict[str, str]:
        """Why the message failed, as properties."""
        error = None if outcome is None else outcome.error
        if error is None:
            kind = "ConsumeTimeout" if outcome is None else outcome.return_type.value
            text = ""
        else:
            kind = type(error).__qualname__
            text = error.reason if isinstance(error, DeadLetter | RetryLater) else str(error)
        reason = {
            Failure.TYPE: kind,
            Failure.MESSAGE: _clean(text),
            Failure.HOST: self._session.client_id,
            Failure.ATTEMPT: str(message.reconsume_times + 1),
        }
        return {key: value for key, value in reason.items() if value}


def _clean(text: str) -> str:
    """A reason that fits into a property: no separators, no half surrogates, not too long."""
    text = text[:MAX_REASON_CHARACTERS].replace("\x01", " ").replace("\x02", " ")
    return text.encode("utf-8", "replace").decode()
