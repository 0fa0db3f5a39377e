"""Numbers a store can tell about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StoreStatistics:
    """Counts since the store was opened, and where it stands."""

    put_count: int = 0
    put_bytes: int = 0
    put_refused: int = 0
    write_calls: int = 0
    flush_calls: int = 0
    read_calls: int = 0
    read_count: int = 0
    read_bytes: int = 0
    read_misses: int = 0
    min_position: int = 0
    max_position: int = 0
    flushed_position: int = 0
    dispatch_behind_bytes: int = 0
    earliest_timestamp: int = -1
    log_segments: int = 0
    loaded_queues: int = 0
    index_files: int = 0
    disk_used_ratio: float = 0.0
    started_ms: int = 0
