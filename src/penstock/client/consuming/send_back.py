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

from penstock.client import requests
from penstock.client.consuming.outcomes import DEAD_LETTER_LEVEL, Outcome
from penstock.client.consuming.retry_rules import is_last, reason_of, retry_copy, send_back_header
from penstock.client.producing.producer import ProducerCore
from penstock.client.session.client_session import ClientSession
from penstock.client.settings import ConsumerSettings
from penstock.errors import PenstockError, ServiceNotAvailable
from penstock.model import StoredMessage
from penstock.model.names import retry_topic

log = logging.getLogger(__name__)


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
        """Have a message retried or made a dead letter; false when no broker accepted it."""
        reason = self._reason(message, outcome)
        try:
            address = self._session.routes.master(message.queue.broker_name)
            if address is None:
                raise ServiceNotAvailable(f"broker {message.queue.broker_name!r} has no master")
            if (
                is_last(message, delay_level, self._settings.max_reconsume_times)
                and not self._session.keeps_reasons(address)
                and await self.bury(message, outcome)
            ):
                return True
            header = send_back_header(
                message,
                self._settings.group,
                delay_level,
                self._settings.max_reconsume_times,
                unit_mode=self._settings.unit_mode,
            )
            await self._session.calls.call(address, requests.send_back(header, reason))
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

    async def _resend(
        self, message: StoredMessage, delay_level: int, reason: dict[str, str]
    ) -> bool:
        copy = retry_copy(message, delay_level, reason, self._settings.max_reconsume_times)
        try:
            await self._inner.resend(
                retry_topic(self._settings.group),
                message,
                copy.properties,
                reconsume_times=copy.reconsume_times,
                max_reconsume_times=copy.max_reconsume_times,
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
        return reason_of(message, outcome, self._session.client_id)
