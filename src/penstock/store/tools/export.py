"""Messages of a store as JSON, one object each, in the order of the log."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import ProtocolError
from penstock.model.hosts import offset_message_id, unpack_host
from penstock.model.names import Property
from penstock.model.properties import parse_properties
from penstock.protocol.records.codec import Record, decode_record
from penstock.protocol.records.compression import decompress
from penstock.protocol.validation import is_system_topic
from penstock.store.files import FileLayer
from penstock.store.memory_disks import check_room
from penstock.store.note import load_state
from penstock.store.segments import OS_FILES
from penstock.store.tools.log_walk import Damage, LogWalk

Progress = Callable[[int, int], None]
"""Called now and then with bytes done and bytes to do."""

REPORT_EVERY: Final = 4096
_EVERYTHING: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ExportRange:
    """Which part of a log; ends are exclusive, as everywhere."""

    from_position: int = 0
    to_position: int = _EVERYTHING
    from_ms: int = 0
    to_ms: int = _EVERYTHING
    topics: Collection[str] = ()
    """Empty for all."""
    hides_internal: bool = False
    """Whether records of system topics are left out, unless ``topics`` names them."""


class Exporter:
    """Iterates over the messages of a store; afterwards ``damages`` says what it could not read."""

    def __init__(
        self,
        root: str,
        part: ExportRange | None = None,
        *,
        files: FileLayer = OS_FILES,
        progress: Progress | None = None,
    ) -> None:
        check_room(files, root)
        self._walk = LogWalk(files, root, load_state(files, root))
        self._part = part or ExportRange()
        self._progress = progress
        self._unreadable: list[Damage] = []
        self.count = 0
        self.hidden = 0
        """Records of the range that were left out because they are of system topics."""

    @property
    def damages(self) -> list[Damage]:
        """What is wrong with the files, and with bodies that cannot be opened."""
        return self._walk.damages + self._unreadable

    def __iter__(self) -> Iterator[dict[str, Any]]:
        part, walk = self._part, self._walk
        topics = frozenset(part.topics)
        total = walk.end_of_files - walk.start
        seen = 0
        try:
            for base, view, records in walk.records(part.from_position, past_damage=True):
                for found in records:
                    seen += 1
                    if self._progress is not None and seen % REPORT_EVERY == 0:
                        self._progress(found.log_position - walk.start, total)
                    position = found.log_position
                    if position >= part.to_position:
                        return
                    if (
                        position < part.from_position
                        or not part.from_ms <= found.store_timestamp < part.to_ms
                        or (topics and found.topic not in topics)
                    ):
                        continue
                    if part.hides_internal and not topics and is_system_topic(found.topic):
                        self.hidden += 1
                        continue
                    self.count += 1
                    yield self._message(decode_record(view, position - base))
        finally:
            if self._progress is not None:
                self._progress(total, total)
            walk.close()

    def _message(self, record: Record) -> dict[str, Any]:
        body: bytes | None
        try:
            body = decompress(record.body, record.sys_flag)
        except ProtocolError as error:
            body = None
            at = record.log_position % self._walk.segment_size
            path = f"{self._walk.directory}/{record.log_position - at:020d}"
            self._unreadable.append(Damage(path, at, f"a body that cannot be opened: {error}"))
        return message_fields(record, body)


def message_fields(record: Record, body: bytes | None) -> dict[str, Any]:
    """The JSON object of a record; ``body`` is the opened one, None if that failed."""
    properties = parse_properties(record.properties)
    offset_id = offset_message_id(record.store_host, record.log_position)
    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "log_position": record.log_position,
        "size": record.size,
        "msg_id": properties.get(Property.UNIQUE_KEY) or offset_id,
        "offset_msg_id": offset_id,
        "tags": properties.get(Property.TAGS),
        "keys": properties.get(Property.KEYS, "").split(),
        "properties": properties,
        "body": None if body is None else base64.b64encode(body).decode(),
        "sys_flag": record.sys_flag,
        "born_timestamp": record.born_timestamp,
        "store_timestamp": record.store_timestamp,
        "born_host": unpack_host(record.born_host),
        "store_host": unpack_host(record.store_host),
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "flag": record.flag,
    }
