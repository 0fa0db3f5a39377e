"""The messages of one handler call, decoded when they are first needed.

Pulled messages wait for their handler: a thousand of a queue and more. As objects they would be
scanned by the garbage collector again and again, and would have left the processor's caches before
their handler runs. So where all records of a pull are alike, a batch keeps them packed, and they
are decoded in the handler's thread just before the call. Any other pull is decoded at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from penstock.model import StoredMessage
from penstock.model.message import append_to_all
from penstock.protocol.records.pulled import AlikeRecords

SMALLEST_PACKED: Final = 16
"""Keeping fewer messages packed costs more than it saves."""


class MessageBatch:
    """Messages of one queue in ascending order of offsets; `messages` may be read by any thread."""

    __slots__ = ("_messages", "_packed", "body_bytes", "count", "first_offset", "last_offset")

    def __init__(
        self,
        messages: list[StoredMessage] | None,
        count: int,
        first_offset: int,
        last_offset: int,
        body_bytes: int,
        packed: _Packed | None = None,
    ) -> None:
        self._messages = messages
        self.count = count
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.body_bytes = body_bytes
        self._packed = packed

    @classmethod
    def of(cls, messages: list[StoredMessage]) -> MessageBatch:
        """A batch of messages that are decoded already, lowest offset first."""
        return cls(
            messages,
            len(messages),
            messages[0].queue_offset,
            messages[-1].queue_offset,
            sum([len(message.body) for message in messages]),
        )

    @property
    def messages(self) -> list[StoredMessage]:
        """The messages themselves, decoded now if they are still packed."""
        messages = self._messages
        return self._unpack() if messages is None else messages

    @property
    def is_decoded(self) -> bool:
        return self._messages is not None

    def holds(self, offset: int) -> bool:
        """Whether the message at this offset is one of the batch."""
        if not self.first_offset <= offset <= self.last_offset:
            return False
        if self.last_offset - self.first_offset + 1 == self.count:
            return True
        return any(message.queue_offset == offset for message in self.messages)

    def append_properties(self, encoded: bytes) -> None:
        """Add properties in wire form to each message."""
        messages, packed = self._messages, self._packed
        if packed is not None:
            with packed.lock:
                messages = self._messages
                if messages is None:
                    packed.added += encoded
        if messages is not None:
            append_to_all(messages, encoded)

    def forget(self) -> None:
        """Free the decoded messages of a packed batch; a later look decodes new ones."""
        if self._packed is not None:
            self._messages = None

    def _unpack(self) -> list[StoredMessage]:
        packed = self._packed
        assert packed is not None
        with packed.lock:
            messages = self._messages
            if messages is None:
                messages = self._messages = packed.records.messages(packed.span, packed.added)
            return messages


class _Packed:
    """Records that are not decoded yet, and the properties their messages get besides."""

    __slots__ = ("added", "lock", "records", "span")

    def __init__(self, records: AlikeRecords, span: range, added: bytes) -> None:
        self.records = records
        self.span = span
        self.added = added
        self.lock = threading.Lock()


def batches_of(messages: Sequence[StoredMessage], size: int) -> list[MessageBatch]:
    """Decoded messages as batches of at most ``size``."""
    if size == 1:
        return [
            MessageBatch([message], 1, offset := message.queue_offset, offset, len(message.body))
            for message in messages
        ]
    ascending = sorted(messages, key=attrgetter("queue_offset"))
    return [
        MessageBatch.of(ascending[start : start + size]) for start in range(0, len(ascending), size)
    ]


def packed_batches(records: AlikeRecords, added: bytes, size: int) -> list[MessageBatch]:
    """A pull as packed batches of at most ``size``; each message gets the properties ``added``."""
    offsets = records.offsets
    batches = []
    for start in range(0, len(offsets), size):
        span = range(start, min(start + size, len(offsets)))
        batches.append(
            MessageBatch(
                None,
                len(span),
                offsets[span.start],
                offsets[span.stop - 1],
                records.body_length * len(span),
                _Packed(records, span, added),
            )
        )
    return batches
