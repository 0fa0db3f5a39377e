"""Settings of the store: RocketMQ's, with RocketMQ's defaults, under RocketMQ's keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import ConfigError

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


def _setting(key: str, default: Any) -> Any:
    return field(default=default, metadata={"key": key})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """How a store is laid out, read, flushed and cleaned.

    The four sizes are ``None`` by default: an existing store keeps the sizes it was made with, a
    new one gets RocketMQ's. A size that is given must be the one found.
    """

    mapped_file_size_commit_log: int | None = _setting("mappedFileSizeCommitLog", None)
    mapped_file_size_consume_queue: int | None = _setting("mappedFileSizeConsumeQueue", None)
    max_hash_slot_num: int | None = _setting("maxHashSlotNum", None)
    max_index_num: int | None = _setting("maxIndexNum", None)

    flush_disk_type: str = _setting("flushDiskType", ASYNC_FLUSH)
    flush_interval_commit_log_ms: int = _setting("flushIntervalCommitLog", 500)
    flush_commit_log_thorough_interval_ms: int = _setting("flushCommitLogThoroughInterval", 10_000)
    flush_interval_consume_queue_ms: int = _setting("flushIntervalConsumeQueue", 1_000)
    flush_consume_queue_thorough_interval_ms: int = _setting(
        "flushConsumeQueueThoroughInterval", 60_000
    )

    max_message_size: int = _setting("maxMessageSize", 4 * 1024 * 1024)
    message_index_enable: bool = _setting("messageIndexEnable", True)
    message_index_safe: bool = _setting("messageIndexSafe", False)
    check_crc_on_recover: bool = _setting("checkCRCOnRecover", True)
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS
    """How long each delay level waits; the delivery time is the tags code of a delayed message."""

    max_transfer_bytes_on_message_in_memory: int = _setting(
        "maxTransferBytesOnMessageInMemory", 256 * 1024
    )
    max_transfer_count_on_message_in_memory: int = _setting("maxTransferCountOnMessageInMemory", 32)
    max_transfer_bytes_on_message_in_disk: int = _setting(
        "maxTransferBytesOnMessageInDisk", 64 * 1024
    )
    max_transfer_count_on_message_in_disk: int = _setting("maxTransferCountOnMessageInDisk", 8)
    access_message_in_memory_max_ratio: int = _setting("accessMessageInMemoryMaxRatio", 40)
    max_filter_message_size: int = _setting("maxFilterMessageSize", 16_000)
    memory_bytes: int | None = None
    """Physical memory to reckon with instead of the machine's."""

    broker_role: str = _setting("brokerRole", "ASYNC_MASTER")
    offset_check_in_slave: bool = _setting("offsetCheckInSlave", False)
    overflow_returns_to_min: bool = False
    """Send a reader far beyond the end to the start if that is 0, as releases up to 4.9.3 did."""

    file_reserved_hours: int = _setting("fileReservedTime", 72)
    delete_when: str = _setting("deleteWhen", "04")
    disk_max_used_space_ratio: int = _setting("diskMaxUsedSpaceRatio", 75)
    disk_space_clean_forcibly_ratio: int = _setting("diskSpaceCleanForciblyRatio", 85)
    disk_space_warning_level_ratio: int = _setting("diskSpaceWarningLevelRatio", 90)
    clean_file_forcibly_enable: bool = _setting("cleanFileForciblyEnable", True)
    delete_file_batch_max: int = _setting("deleteFileBatchMax", 10)

    index_tags: bool = False
    """Also index messages by tag (``topic#T#tag``), which RocketMQ does since 5.5."""
    clean_scan_segments: int = 1
    """Log segments checked after a clean stop of another program; RocketMQ took 3 up to 5.3.1."""
    truncate_damaged_log: bool = False
    """Cut the log at a damaged record even where flushed messages follow it, now lost."""
    discard_queues_without_log: bool = False
    """Start empty, as RocketMQ does, where queues have messages but the log is gone."""
    open_log_segments: int = 64
    open_queue_segments: int = 128

    def __post_init__(self) -> None:
        if self.flush_disk_type not in (ASYNC_FLUSH, SYNC_FLUSH):
            raise _wrong("flushDiskType", self.flush_disk_type, f"{ASYNC_FLUSH} or {SYNC_FLUSH}")
        size = self.mapped_file_size_consume_queue
        if size is not None and (size < 20 or size % 20):
            raise _wrong("mappedFileSizeConsumeQueue", size, "a multiple of 20, the size of a unit")
        for key, value, least in (
            ("mappedFileSizeCommitLog", self.mapped_file_size_commit_log, 1024),
            ("maxHashSlotNum", self.max_hash_slot_num, 1),
            ("maxIndexNum", self.max_index_num, 2),
            ("maxMessageSize", self.max_message_size, 1),
            ("fileReservedTime", self.file_reserved_hours, 0),
            ("open_log_segments", self.open_log_segments, 1),
            ("open_queue_segments", self.open_queue_segments, 1),
            ("clean_scan_segments", self.clean_scan_segments, 1),
        ):
            if value is not None and value < least:
                raise _wrong(key, value, f"{least} or more")
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
