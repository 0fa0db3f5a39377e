"""What is in a store: files, ranges, topics and queues, signs of the last stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import PenstockError
from penstock.store import layout
from penstock.store.checkpoint import Checkpoint, load_checkpoint
from penstock.store.config import StoreConfig
from penstock.store.cut_bytes import CUT_DIRECTORY
from penstock.store.files import FileLayer
from penstock.store.index_files import find_index_files
from penstock.store.note import load_state
from penstock.store.queue_ends import QUEUE_ENDS_NAME
from penstock.store.segments import OS_FILES
from penstock.store.store import MessageStore
from penstock.store.tools.log_walk import segment_files
from penstock.store.tools.timer_check import check_timers
from penstock.store.transactions.open_halves import count_open

_KNOWN: Final = frozenset(
    (
        layout.COMMIT_LOG,
        layout.CONSUME_QUEUE,
        layout.INDEX,
        layout.TIMER_LOG,
        layout.TIMER_WHEEL,
        layout.CHECKPOINT,
        layout.ABORT,
        layout.LOCK,
        layout.STATE,
        QUEUE_ENDS_NAME,
        CUT_DIRECTORY,
        "config",
        "abort.bak",
    )
)


@dataclass(frozen=True, slots=True)
class FilesOfKind:
    """Files of one kind, all together."""

    kind: str
    count: int
    size: int
    """Bytes by their length; files have holes and may take less."""
    file_size: int
    """Bytes of each of them, as they should be."""


@dataclass(frozen=True, slots=True)
class QueueSurvey:
    """One queue."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    first_ms: int
    """When its oldest message was stored; -1 without one."""
    last_ms: int

    @property
    def count(self) -> int:
        """Messages in it."""
        return self.max_offset - self.min_offset


@dataclass(slots=True)
class Survey:
    """One store."""

    name: str
    root: str
    is_clean: bool
    """Whether nothing says that it runs or crashed."""
    written_by: str
    checkpoint: Checkpoint
    files: list[FilesOfKind] = field(default_factory=list)
    min_position: int = 0
    max_position: int = 0
    first_ms: int = -1
    last_ms: int = -1
    recovery: str = ""
    """How opening it found its end, or would."""
    problem: str | None = None
    """Why it cannot be opened, if so."""
    queues: list[QueueSurvey] = field(default_factory=list)
    timers_waiting: int = 0
    """Timer messages that are not delivered yet."""
    first_due_ms: int = -1
    """When the first of them is due; -1 without one."""
    last_due_ms: int = -1
    open_transactions: int = 0
    """Transactions without a decision."""
    foreign: list[str] = field(default_factory=list)


def survey(
    name: str,
    root: str,
    *,
    files: FileLayer = OS_FILES,
    progress: Callable[[int, int], None] | None = None,
) -> Survey:
    """Look at a store; a damaged one as far as that goes."""
    state = load_state(files, root)
    found = Survey(
        name,
        root,
        is_clean=files.stat(f"{root}/{layout.ABORT}") is None,
        written_by="RocketMQ" if state is None else "Penstock",
        checkpoint=load_checkpoint(files, root),
    )
    _count_files(files, root, found)
    _look_at_timers(files, root, found)
    try:
        with MessageStore.open_readonly(root, StoreConfig(), files=files) as store:
            _look_inside(store, found, progress)
            found.open_transactions = count_open(store, files, root)
    except PenstockError as error:
        found.problem = str(error)
    return found


def _look_inside(
    store: MessageStore, found: Survey, progress: Callable[[int, int], None] | None
) -> None:
    reported = {line.partition(":")[0] for line in store.foreign}
    found.foreign = store.foreign + [
        line for line in found.foreign if line.partition(":")[0] not in reported
    ]
    found.min_position, found.max_position = store.min_position, store.max_position
    found.first_ms = store.earliest_store_time()
    found.last_ms = store.commit_log.written[1] or -1
    assert store.recovery is not None
    found.recovery = store.recovery.kind
    names = sorted(store.queues())
    for number, (topic, queue_id) in enumerate(names):
        if progress is not None:
            progress(number, len(names))
        found.queues.append(_survey_queue(store, topic, queue_id))


def _look_at_timers(files: FileLayer, root: str, found: Survey) -> None:
    timers = check_timers(files, root, is_clean=found.is_clean)
    if not timers.log_sizes and not timers.wheel_size:
        return
    found.files.append(_kind(layout.TIMER_LOG, timers.log_sizes))
    found.files.append(_kind(layout.TIMER_WHEEL, [timers.wheel_size]))
    found.timers_waiting = timers.waiting
    found.first_due_ms, found.last_due_ms = timers.first_due_ms, timers.last_due_ms


def _survey_queue(store: MessageStore, topic: str, queue_id: int) -> QueueSurvey:
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    return QueueSurvey(
        topic,
        queue_id,
        low,
        high,
        store.store_time_at(topic, queue_id, low) if low < high else -1,
        store.store_time_at(topic, queue_id, high - 1) if low < high else -1,
    )


def _count_files(files: FileLayer, root: str, found: Survey) -> None:
    for entry in sorted(files.list_dir(root)):
        if entry.name not in _KNOWN:
            found.foreign.append(f"{entry.name}: not of a store Penstock knows, left alone")
    segments, others = segment_files(files, f"{root}/{layout.COMMIT_LOG}")
    found.foreign += [f"{layout.COMMIT_LOG}/{entry.name}: not a segment" for entry in others]
    found.files.append(_kind(layout.COMMIT_LOG, [entry.size for _, entry in segments]))
    queue_sizes = [
        entry.size
        for topic in files.list_dir(f"{root}/{layout.CONSUME_QUEUE}")
        for queue in files.list_dir(f"{root}/{layout.CONSUME_QUEUE}/{topic.name}")
        for entry in files.list_dir(f"{root}/{layout.CONSUME_QUEUE}/{topic.name}/{queue.name}")
    ]
    found.files.append(_kind(layout.CONSUME_QUEUE, queue_sizes))
    index_files, _ = find_index_files(files, f"{root}/{layout.INDEX}")
    found.files.append(_kind(layout.INDEX, [entry.size for entry in index_files]))


def _kind(name: str, sizes: list[int]) -> FilesOfKind:
    return FilesOfKind(name, len(sizes), sum(sizes), max(sizes, default=0))
