"""Receipt handles of the API: those of a pop, and the log position of the record."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import ProtocolError
from penstock.model.names import pop_retry_topic, pop_retry_topic_v2
from penstock.protocol.headers.codec import read_int64
from penstock.protocol.headers.pop import ChangeInvisibleTimeResult
from penstock.protocol.headers.receipts import (
    ORDERLY_REVIVE_QUEUE,
    RETRY_TOPIC_V1,
    RETRY_TOPIC_V2,
    ReceiptHandle,
)
from penstock.proxy.statuses import Refused
from penstock.proxy.wire.codes import Code

_POSITION_ITEM: Final = 8
_MAX_HANDLE: Final = 1024
NOWHERE: Final = -1


class Receipt(NamedTuple):
    """What a delivered message is acknowledged by."""

    handle: ReceiptHandle
    log_position: int = NOWHERE

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """The receipt of a text that a client sends back; raises `Refused`."""
        try:
            if len(text) > _MAX_HANDLE:
                raise ProtocolError(f"receipt handle of {len(text)} characters")
            handle = ReceiptHandle.parse(text)
            items = text.split(" ")
            position = NOWHERE
            if len(items) > _POSITION_ITEM:
                position = read_int64(items[_POSITION_ITEM])
        except (ProtocolError, ValueError) as error:
            raise Refused(Code.INVALID_RECEIPT_HANDLE, str(error)) from error
        return cls(handle, position)

    def __str__(self) -> str:
        return f"{self.handle} {self.log_position}"

    @property
    def is_orderly(self) -> bool:
        return self.handle.revive_queue_id == ORDERLY_REVIVE_QUEUE

    @property
    def visible_ms(self) -> int:
        """When the message becomes visible again."""
        return self.handle.pop_time + self.handle.invisible_time

    def real_topic(self, group: str, topic: str) -> str:
        """The topic that has the record: that of a retry is the retry topic."""
        if self.handle.flag == RETRY_TOPIC_V1:
            return pop_retry_topic(group, topic)
        if self.handle.flag == RETRY_TOPIC_V2:
            return pop_retry_topic_v2(group, topic)
        return topic

    def changed(self, result: ChangeInvisibleTimeResult) -> Receipt:
        """The receipt after its invisible time was changed."""
        old = self.handle
        handle = old._replace(
            start_offset=old.start_offset if self.is_orderly else old.queue_offset,
            pop_time=result.pop_time,
            invisible_time=result.invisible_time,
            revive_queue_id=result.revive_qid,
        )
        return self._replace(handle=handle)
