"""What becomes of messages that a handler on an executor could not handle.

The rules are the push consumer's (`client.consuming.retry_rules`), the sending is blocking:

    1. send-back: the broker stores it again, for the retry topic after a delay or as a dead letter
    2. the broker refused: sent to the retry topic as an ordinary message
    3. nobody took it: tried again, for a while; then the task fails, and Spark runs it again

So a message is either handled, stored again, or its offset is not passed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.client.cluster_access import ClusterAccess
from penstock.client.consuming.outcomes import DEAD_LETTER_LEVEL, Outcome
from penstock.client.consuming.retry_rules import is_last, reason_of, retry_copy, send_back_header
from penstock.client.producing.outgoing import make_outgoing_copy
from penstock.client.settings import ProducerSettings
from penstock.errors import InvalidArgument, PenstockError
from penstock.model import MessageQueue, StoredMessage
from penstock.model.names import retry_topic
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command, Language
from penstock.protocol.extensions import REASON_FIELDS
from penstock.protocol.headers.codec import encode_header
from penstock.protocol.headers.offsets import GetMaxOffset
from penstock.spark.sink.outbox import Outbox, Post, Routes
from penstock.spark.wire import Wire

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 30.0
"""How long nobody may take a message before its task fails."""
FIRST_PAUSE: Final = 0.2
MAX_PAUSE: Final = 5.0
TOGETHER: Final = 256
"""Failed messages that are sent back with one trip to their broker."""


class Failed(NamedTuple):
    """A message, how its handler failed, and the delay that was asked for."""

    message: StoredMessage
    outcome: Outcome
    level: int = 0
    """0: the broker chooses, below 0: the dead letters."""


class SendBack:
    """Sends the failed messages of one task back."""

    def __init__(self, access: ClusterAccess, group: str, max_retries: int, host: str) -> None:
        self._access = access
        self._wire = Wire.shared(access)
        self._routes = Routes(self._wire)
        self._group = access.long_name(group)
        self._retry_topic = retry_topic(group)
        self._max_retries = max_retries
        self._host = host
        self._inner = ProducerSettings(group="penstock_spark")
        self._keeps_reasons: dict[str, bool] = {}

    def is_last(self, failed: Failed) -> bool:
        """Whether a message will be a dead letter."""
        return is_last(failed.message, failed.level, self._max_retries)

    def send(self, failed: Sequence[Failed]) -> None:
        """Have messages retried or buried; when this returns, a broker has each of them."""
        by_queue: dict[MessageQueue, list[Failed]] = {}
        for one in failed:
            by_queue.setdefault(one.message.queue, []).append(one)
        for queue, of_queue in by_queue.items():
            for start in range(0, len(of_queue), TOGETHER):
                self._patiently(queue, of_queue[start : start + TOGETHER], by_request=True)

    def dead_letter(self, failed: Failed) -> None:
        """Make a message a dead letter, with the reason."""
        buried = failed._replace(level=DEAD_LETTER_LEVEL)
        self._patiently(failed.message.queue, [buried], by_request=False)

    # --------------------------------------------------------------------------- the three ways

    def _patiently(self, queue: MessageQueue, failed: list[Failed], *, by_request: bool) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        pause = FIRST_PAUSE
        while True:
            if by_request:
                failed = self._by_request_or_not(queue, failed)
            try:
                self._resend(failed)
                return
            except InvalidArgument:
                raise  # Time does not change what a message is.
            except PenstockError as error:
                if time.monotonic() > deadline:
                    raise type(error)(
                        f"{len(failed)} failed messages of {queue} and group {self._group!r} could "
                        f"not be sent back for {PATIENCE_SECONDS:.0f} s: {error.what}",
                        expected=error.expected,
                        hint=error.hint,
                    ) from error
                log.warning("nobody took failed messages, trying again queue=%s", queue)
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    def _by_request_or_not(self, queue: MessageQueue, failed: list[Failed]) -> list[Failed]:
        """Those that could not be sent back by request; all, if their broker is out of reach."""
        named = queue._replace(topic=self._access.short_name(queue.topic))
        try:
            return self._by_request(self._routes.address(named), failed)
        except PenstockError as error:
            log.warning("send-back failed group=%s queue=%s error=%s", self._group, queue, error)
            self._routes.forget(named.topic)
            return failed

    def _by_request(self, address: str, failed: list[Failed]) -> list[Failed]:
        """Send messages back; return those the broker would not take, or not with the reason."""
        asked: list[Failed] = []
        left: list[Failed] = []
        commands: list[Command] = []
        for one in failed:
            has_reason = one.outcome.error is not None and self.is_last(one)
            is_gone = one.message.log_position < 0
            if is_gone or (has_reason and not self._keeps(address, one.message.queue)):
                left.append(one)
                continue
            header = send_back_header(one.message, self._group, one.level, self._max_retries)
            reason = reason_of(one.message, one.outcome, self._host)
            extra = {name: reason[key] for name, key in REASON_FIELDS.items() if key in reason}
            ext = {**encode_header(header), **extra}
            commands.append(Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext=ext))
            asked.append(one)
        if not commands:
            return left
        for one, answer in zip(asked, self._wire.call_many(address, commands), strict=True):
            if answer.code != ResponseCode.SUCCESS:
                log.warning(
                    "send-back refused, sending to the retry topic group=%s queue=%s offset=%d "
                    "code=%d remark=%s",
                    self._group,
                    one.message.queue,
                    one.message.queue_offset,
                    answer.code,
                    answer.remark,
                )
                left.append(one)
        return left

    def _keeps(self, address: str, queue: MessageQueue) -> bool:
        """Whether the broker stores why a message was sent back; nobody else writes Python."""
        known = self._keeps_reasons.get(address)
        if known is None:
            ask = Command(
                RequestCode.GET_MAX_OFFSET,
                ext=encode_header(GetMaxOffset(queue.topic, queue.queue_id)),
            )
            known = self._wire.exchange(address, ask).language is Language.PYTHON
            self._keeps_reasons[address] = known
        return known

    def _resend(self, failed: list[Failed]) -> None:
        """Send messages to the retry topic, as ordinary ones that have failed before."""
        if not failed:
            return
        with Outbox(
            self._access,
            lambda post, queue, offset: None,
            seconds=self._inner.send_timeout,
            retries=self._inner.retries,
        ) as outbox:
            for one in failed:
                message = one.message
                reason = reason_of(message, one.outcome, self._host)
                level = DEAD_LETTER_LEVEL if self.is_last(one) else one.level
                copy = retry_copy(message, level, reason, self._max_retries)
                outgoing = make_outgoing_copy(
                    self._retry_topic,
                    message,
                    copy.properties,
                    self._inner,
                    reconsume_times=copy.reconsume_times,
                    max_reconsume_times=copy.max_reconsume_times,
                )
                outbox.post(
                    Post(
                        self._retry_topic,
                        None,
                        outgoing.body,
                        outgoing.properties,
                        reconsume_times=copy.reconsume_times,
                        max_reconsume_times=copy.max_reconsume_times,
                        sys_flag=outgoing.sys_flag,
                        flag=outgoing.flag,
                    )
                )
