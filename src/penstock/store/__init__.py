"""Messages in RocketMQ's own files: commit log, consume queues, key index, checkpoint."""

from penstock.store.appending import (
    Appended,
    AppendedBatch,
    BatchItem,
    Draft,
    DraftFields,
    draft_of,
)
from penstock.store.config import ASYNC_FLUSH, SYNC_FLUSH, StoreConfig
from penstock.store.files import FileLayer
from penstock.store.key_query import QueryResult
from penstock.store.reading import ReadResult, ReadStatus, RecordTest, TagFilter
from penstock.store.recovery import Recovery
from penstock.store.segments import OS_FILES, OsFiles
from penstock.store.statistics import StoreStatistics
from penstock.store.store import MessageStore

__all__ = [
    "ASYNC_FLUSH",
    "Appended",
    "AppendedBatch",
    "BatchItem",
    "Draft",
    "DraftFields",
    "FileLayer",
    "MessageStore",
    "OS_FILES",
    "OsFiles",
    "QueryResult",
    "ReadResult",
    "ReadStatus",
    "RecordTest",
    "Recovery",
    "StoreConfig",
    "StoreStatistics",
    "SYNC_FLUSH",
    "TagFilter",
    "draft_of",
]
