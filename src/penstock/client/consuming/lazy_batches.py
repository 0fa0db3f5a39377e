"""Messages of a pull that are not made before somebody looks at them.

What a pull brings waits for its handler: a thousand messages a queue and more. As objects they are
looked at by the collector of garbage again and again, and are out of the processor's caches when
their turn comes. So messages at consecutive offsets wait packed as they came, a handler's batch
at a time, and are made in the handler's thread just before the call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Final, overload

from penstock.model import StoredMessage
from penstock.model.message import append_to_all
from penstock.protocol.records.pulled import AlikeRecords

SHORTEST_RUN: Final = 16
"""Batches of fewer messages are not worth keeping track of as such."""


class Run(Sequence[StoredMessage]):
    """Messages of one queue at consecutive offsets; made when somebody wants one, by any thread.

    Whether something is one is asked by ``type``: `isinstance` of an abstract class is slow, and
    it is asked for every call of a handler.
    """

    __slots__ = (
        "_added",
        "_lock",
        "_made",
        "_records",
        "_span",
        "body_bytes",
        "first_offset",
        "last_offset",
    )

    def __init__(self, records: AlikeRecords, span: range, added: bytes) -> None:
        self._records = records
        self._span = span
        """Which of the records."""
        self._added = added
        self._lock = threading.Lock()
        self._made: list[StoredMessage] | None = None
        self.first_offset = records.offsets[span.start]
        self.last_offset = records.offsets[span.stop - 1]
        self.body_bytes = records.body_length * len(span)

    def __len__(self) -> int:
        return len(self._span)

    @overload
    def __getitem__(self, index: int) -> StoredMessage: ...

    @overload
    def __getitem__(self, index: slice) -> list[StoredMessage]: ...

    def __getitem__(self, index: int | slice) -> StoredMessage | list[StoredMessage]:
        return self._messages()[index]

    def __iter__(self) -> Iterator[StoredMessage]:
        return iter(self._messages())

    @property
    def made(self) -> Sequence[StoredMessage]:
        """The messages, once somebody has looked at them, until they are forgotten; else none."""
        return self._made or ()

    def append_properties(self, encoded: bytes) -> None:
        """What it does for a message, for all of them."""
        with self._lock:
            if self._made is None:
                self._added += encoded
            else:
                append_to_all(self._made, encoded)

    def forget(self) -> None:
        """Nobody is going to look at the messages again; whoever does gets new ones."""
        self._made = None

    def _messages(self) -> list[StoredMessage]:
        with self._lock:
            if self._made is None:
                self._made = self._records.messages(self._span, self._added)
            return self._made


def runs_of(records: AlikeRecords, added: bytes, size: int) -> list[Run]:
    """A pull as runs of at most ``size`` messages, all of which get the properties ``added``."""
    count = len(records.offsets)
    return [
        Run(records, range(start, min(start + size, count)), added)
        for start in range(0, count, size)
    ]
