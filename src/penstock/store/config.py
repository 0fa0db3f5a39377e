"""Settings of the store: RocketMQ's, with RocketMQ's defaults, under RocketMQ's keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import ConfigError
from penstock.runtime.config import check_settings, setting

ASYNC_FLUSH: Final = "ASYNC_FLUSH"
SYNC_FLUSH: Final = "SYNC_FLUSH"

DEFAULT_COMMIT_LOG_BYTES: Final = 1 << 30
DEFAULT_CONSUME_QUEUE_BYTES: Final = 300_000 * 20
DEFAULT_INDEX_SLOTS: Final = 5_000_000
DEFAULT_INDEX_UNITS: Final = 20_000_000

_SECOND = 1_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
DELAY_LEVELS_MS: Final = (
    1 * _SECOND, 5 * _SECOND, 10 * _SECOND, 30 * _SECOND, 1 * _MINUTE, 2 * _MINUTE,
    3 * _MINUTE, 4 * _MINUTE, 5 * _MINUTE, 6 * _MINUTE, 7 * _MINUTE, 8 * _MINUTE,
    9 * _MINUTE, 10 * _MINUTE, 20 * _MINUTE, 30 * _MINUTE, 1 * _HOUR, 2 * _HOUR,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """How a store is laid out, read, flushed and cleaned.

    The four sizes are ``None`` by default: an existing store keeps the sizes it was made with, a
    new one gets RocketMQ's. A size that is given must be the one found.
    """

    mapped_file_size_commit_log: int | None = setting(
        None, least=1024, doc="bytes of a commit log segment; empty: as found, else 1 GiB"
    )
    mapped_file_size_consume_queue: int | None = setting(
        None,
        least=20,
        doc="bytes of a consume queue segment, a multiple of 20; empty: as found, else 6,000,000",
    )
    max_hash_slot_num: int | None = setting(
        None, least=1, doc="hash slots of a key index file; empty: as found, else 5,000,000"
    )
    max_index_num: int | None = setting(
        None, least=2, doc="entries of a key index file; empty: as found, else 20,000,000"
    )

    flush_disk_type: str = setting(
        ASYNC_FLUSH,
        choices=(ASYNC_FLUSH, SYNC_FLUSH),
        doc="whether a send is answered before or after its message is on the disk",
    )
    flush_interval_commit_log_ms: int = setting(
        500, key="flushIntervalCommitLog", doc="between two flushes of the commit log"
    )
    flush_commit_log_thorough_interval_ms: int = setting(
        10_000, key="flushCommitLogThoroughInterval", doc="accepted for compatibility"
    )
    flush_interval_consume_queue_ms: int = setting(
        1_000, key="flushIntervalConsumeQueue", doc="between two writes of the consume queues"
    )
    flush_consume_queue_thorough_interval_ms: int = setting(
        60_000,
        key="flushConsumeQueueThoroughInterval",
        doc="between two syncs of the consume queues to the disk",
    )

    max_message_size: int = setting(
        4 * 1024 * 1024, least=1, doc="largest body of a message, in bytes"
    )
    message_index_enable: bool = setting(True, doc="index messages by key")
    message_index_safe: bool = setting(
        False, doc="after a crash of another program, recover from the last entry of the index"
    )
    check_crc_on_recover: bool = setting(
        True, key="checkCRCOnRecover", doc="check the bodies of messages when recovering"
    )
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS
    """How long each delay level waits; the delivery time is the tags code of a delayed message."""

    max_transfer_bytes_on_message_in_memory: int = setting(
        256 * 1024, doc="bytes of one pull of recent messages"
    )
    max_transfer_count_on_message_in_memory: int = setting(
        32, doc="messages of one pull of recent messages"
    )
    max_transfer_bytes_on_message_in_disk: int = setting(
        64 * 1024, doc="bytes of one pull of older messages"
    )
    max_transfer_count_on_message_in_disk: int = setting(
        8, doc="messages of one pull of older messages"
    )
    access_message_in_memory_max_ratio: int = setting(
        40, doc="share of the memory in which messages count as recent"
    )
    max_filter_message_size: int = setting(
        16_000, doc="queue entries that one pull with a filter examines, in bytes"
    )
    memory_bytes: int | None = setting(
        None, doc="physical memory to assume; empty: that of the machine"
    )

    broker_role: str = setting("ASYNC_MASTER", doc="set by the broker from its own brokerRole")
    offset_check_in_slave: bool = setting(False, doc="correct wrong offsets of pulls on a slave")
    overflow_returns_to_min: bool = setting(
        False,
        doc="send a reader far beyond the end to the start if that is 0, as up to 4.9.3",
    )

    file_reserved_hours: int = setting(
        72,
        key="fileReservedTime",
        least=0,
        most=(1 << 31) - 1,
        changeable=True,
        doc="how long messages are kept",
    )
    delete_when: str = setting(
        "04",
        changeable=True,
        doc="hours of the day in which expired segments are deleted, separated by ;",
    )
    disk_max_used_space_ratio: int = setting(
        75,
        least=0,
        most=100,
        changeable=True,
        doc="use of the disk above which expired segments are deleted at any hour",
    )
    disk_space_clean_forcibly_ratio: int = setting(
        85,
        least=0,
        most=100,
        changeable=True,
        doc="use of the disk above which segments are deleted before they expire",
    )
    disk_space_warning_level_ratio: int = setting(
        90, least=0, most=100, changeable=True, doc="use of the disk above which sends are refused"
    )
    clean_file_forcibly_enable: bool = setting(
        True, changeable=True, doc="allow the deletion of segments that have not expired"
    )
    delete_file_batch_max: int = setting(
        10, least=1, most=1_000, changeable=True, doc="segments deleted in one run"
    )

    index_tags: bool = setting(False, doc="also index messages by tag, as RocketMQ does since 5.5")
    clean_scan_segments: int = setting(
        1,
        least=1,
        doc="log segments checked after a clean stop of another program (3 up to 5.3.1)",
    )
    truncate_damaged_log: bool = setting(
        False, doc="cut the log at a damaged record even where flushed messages follow it"
    )
    discard_queues_without_log: bool = setting(
        False, doc="start empty, as RocketMQ does, where queues have messages but the log is gone"
    )
    open_log_segments: int = setting(64, least=1, doc="log segments kept open")
    open_queue_segments: int = setting(128, least=1, doc="consume queue segments kept open")

    def __post_init__(self) -> None:
        check_settings(self)
        size = self.mapped_file_size_consume_queue
        if size is not None and size % 20:
            raise _wrong("mappedFileSizeConsumeQueue", size, "a multiple of 20, the size of a unit")
        if any(not 0 <= hour <= 23 for hour in self.delete_hours):
            raise _wrong("deleteWhen", self.delete_when, "hours 00 to 23, separated by ';'")

    @property
    def is_sync_flush(self) -> bool:
        """Whether messages become visible only when they are on the disk."""
        return self.flush_disk_type == SYNC_FLUSH

    @property
    def delete_hours(self) -> tuple[int, ...]:
        """The hours of the day in which expired segments are deleted."""
        try:
            return tuple(int(hour) for hour in self.delete_when.split(";") if hour.strip())
        except ValueError:
            return (-1,)


def _wrong(key: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"{key} is {value!r}", expected=expected)
