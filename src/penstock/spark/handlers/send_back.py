"""Sending back the messages that a handler on an executor could not handle.

The rules are the push consumer's (`client.consuming.retry_rules`), the requests are blocking:

    1. send-back: the broker stores the message again, for the retry topic or as a dead letter
    2. if the broker refuses, the message is sent to the retry topic as an ordinary one
    3. if that fails too, both are repeated for a while; then the task fails, and Spark retries it

So a message is either handled, stored again, or its offset is not committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.admin.blocking import Admin
from penstock.client import requests
from penstock.client.cluster_access import ClusterAccess
from penstock.client.consuming.outcomes import DEAD_LETTER_LEVEL, Outcome
from penstock.client.consuming.retry_rules import is_last, reason_of, retry_copy, send_back_header
from penstock.client.producing.outgoing import make_outgoing_copy
from penstock.client.settings import ProducerSettings
from penstock.errors import InvalidArgument, PenstockError, TopicNotFound
from penstock.model import MessageQueue, StoredMessage, TopicRoute
from penstock.model.names import SPARK_GROUP, retry_topic
from penstock.protocol.codes import ResponseCode
from penstock.protocol.commands import Command, Language
from penstock.spark.connection_pool import ConnectionPool
from penstock.spark.sink.task_sender import Post, TaskSender, WritableQueues

log = logging.getLogger(__name__)

RETRY_QUEUES: Final = 1
"""retryQueueNums: the queues of a retry topic that a broker creates itself."""
PATIENCE_SECONDS: Final = 30.0
"""How long sending back may fail before the task fails."""
FIRST_PAUSE: Final = 0.2
MAX_PAUSE: Final = 5.0
TOGETHER: Final = 256
"""Failed messages that are sent back in one round trip to their broker."""


def ensure_retry_topic(access: ClusterAccess, group: str) -> TopicRoute:
    """The route of the group's retry topic; if it is missing, it is created on every broker."""
    topic = retry_topic(group)
    try:
        return ConnectionPool.shared(access).route(topic)
    except TopicNotFound:
        pass
    with Admin(**access.as_keywords()) as admin:
        return admin.create_topic(topic, queues=RETRY_QUEUES)


class Failed(NamedTuple):
    """A message, the outcome of its handler, and the delay that the handler asked for."""

    message: StoredMessage
    outcome: Outcome
    level: int = 0
    """0: the broker chooses; below 0: the message becomes a dead letter."""


class SendBack:
    """Sends the failed messages of one task back."""

    def __init__(self, access: ClusterAccess, group: str, max_retries: int, host: str) -> None:
        self._access = access
        self._pool = ConnectionPool.shared(access)
        self._routes = WritableQueues(self._pool)
        self._group = access.long_name(group)
        self._retry_topic = retry_topic(group)
        self._max_retries = max_retries
        self._host = host
        self._producer = ProducerSettings(group=SPARK_GROUP)
        self._keeps_reasons: dict[str, bool] = {}

    def is_last(self, failed: Failed) -> bool:
        """Whether a message will be a dead letter."""
        return is_last(failed.message, failed.level, self._max_retries)

    def send(self, failed: Sequence[Failed]) -> None:
        """Have messages retried or dead-lettered; on return a broker has stored each of them."""
        by_queue: dict[MessageQueue, list[Failed]] = {}
        for one in failed:
            by_queue.setdefault(one.message.queue, []).append(one)
        for queue, of_queue in by_queue.items():
            for start in range(0, len(of_queue), TOGETHER):
                self._patiently(queue, of_queue[start : start + TOGETHER], by_request=True)

    def dead_letter(self, failed: Failed) -> None:
        """Make a message a dead letter, with the reason."""
        dead = failed._replace(level=DEAD_LETTER_LEVEL)
        self._patiently(failed.message.queue, [dead], by_request=False)

    # -------------------------------------------------------------------------- the three steps

    def _patiently(self, queue: MessageQueue, failed: list[Failed], *, by_request: bool) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        pause = FIRST_PAUSE
        while True:
            if by_request:
                failed = self._try_request(queue, failed)
            try:
                self._resend(failed)
                return
            except InvalidArgument:
                raise  # Another attempt does not change the message.
            except PenstockError as error:
                if time.monotonic() > deadline:
                    raise type(error)(
                        f"{len(failed)} failed messages of {queue} and group {self._group!r} could "
                        f"not be sent back for {PATIENCE_SECONDS:.0f} s: {error.what}",
                        expected=error.expected,
                        hint=error.hint,
                    ) from error
                log.warning("failed messages not stored, trying again queue=%s", queue)
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    def _try_request(self, queue: MessageQueue, failed: list[Failed]) -> list[Failed]:
        """Return those that could not be sent back; all, if their broker cannot be reached."""
        named = queue._replace(topic=self._access.short_name(queue.topic))
        try:
            return self._by_request(self._routes.address(named), failed)
        except PenstockError as error:
            log.warning("send-back failed group=%s queue=%s error=%s", self._group, queue, error)
            self._routes.forget(named.topic)
            return failed

    def _by_request(self, address: str, failed: list[Failed]) -> list[Failed]:
        """Send messages back; return those the broker refused, or would store without a reason."""
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
            commands.append(requests.send_back(header, reason).command())
            asked.append(one)
        if not commands:
            return left
        for one, answer in zip(asked, self._pool.call_many(address, commands), strict=True):
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
        """Whether the broker stores the reason of a send-back: only those in Python do."""
        known = self._keeps_reasons.get(address)
        if known is None:
            answer = self._pool.exchange(address, requests.max_offset(queue).command())
            known = self._keeps_reasons[address] = answer.language is Language.PYTHON
        return known

    def _resend(self, failed: list[Failed]) -> None:
        """Send messages to the retry topic, as ordinary ones that have failed before."""
        if not failed:
            return
        with TaskSender(
            self._access,
            lambda post, queue, offset: None,
            seconds=self._producer.send_timeout,
            retries=self._producer.retries,
        ) as sender:
            for one in failed:
                message = one.message
                reason = reason_of(message, one.outcome, self._host)
                level = DEAD_LETTER_LEVEL if self.is_last(one) else one.level
                copy = retry_copy(message, level, reason, self._max_retries)
                outgoing = make_outgoing_copy(
                    self._retry_topic,
                    message,
                    copy.properties,
                    self._producer,
                    reconsume_times=copy.reconsume_times,
                    max_reconsume_times=copy.max_reconsume_times,
                )
                sender.post(
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
