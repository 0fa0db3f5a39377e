"""Making queues and index again from the log, for a store whose broker does not run.

The log is the truth; queues and index follow from it. What is done is what an operator would do by
hand: look whether the log is whole, delete the rest, open the store. Killed halfway, the next start
of a broker goes on with it, because it finds that queues are missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import StoreDamaged, StoreError, StoreLocked
from penstock.store import layout
from penstock.store.config import StoreConfig
from penstock.store.files import FileLayer
from penstock.store.note import load_state, vouched_end
from penstock.store.segments import OS_FILES
from penstock.store.store import MessageStore
from penstock.store.tools.log_walk import LogWalk

_REPORT_EVERY = 4096

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Repair:
    """What was made again."""

    name: str
    root: str
    records: int
    queues: int
    queue_entries: int
    index_files: int


def repair(
    name: str, root: str, *, files: FileLayer = OS_FILES, progress: Progress | None = None
) -> Repair:
    """Delete all queues and the index of a store and make them again from its log."""
    try:
        token = files.lock(f"{root}/{layout.LOCK}")
    except BlockingIOError as error:
        raise StoreLocked(
            f"a process writes to store {root}: {error.strerror}", hint="stop the broker first"
        ) from error
    try:
        records = _check_log(files, root, progress)
        config = _config_as_found(files, root)
        places = _queue_ends(files, root)
        _remove_below(files, f"{root}/{layout.CONSUME_QUEUE}")
        _remove_below(files, f"{root}/{layout.INDEX}")
    finally:
        files.unlock(token)
    with MessageStore(root, config, files=files, are_files_removed=True) as store:
        table = store.queue_table
        for key, end in places.items():
            queue = table.get_for_recovery(*key)
            if queue is not None and not queue.max_offset:
                # All its messages were deleted; it must not number new ones like old ones.
                table.skip_to(queue, end)
        names = list(store.queues())
        entries = sum(store.max_offset(*key) - store.min_offset(*key) for key in names)
        index_files = store.statistics().index_files
    return Repair(name, root, records, len(names), entries, index_files)


def _check_log(files: FileLayer, root: str, progress: Progress | None) -> int:
    """Count the records of the log; refuse one that is not whole."""
    state = load_state(files, root)
    walk = LogWalk(files, root, state)
    count = 0
    total = walk.end_of_files - walk.start
    try:
        for _, _, records in walk.records():
            for record in records:
                count += 1
                if progress is not None and count % _REPORT_EVERY == 0:
                    progress(record.log_position - walk.start, total)
        walk.check_end(vouched_end(files, root, state))
    finally:
        walk.close()
    if walk.damages:
        damage = walk.damages[0]
        raise StoreDamaged(
            f"the log itself is damaged: {damage.file} at {damage.position}: {damage.what}",
            expected="a log that is whole, from which queues and index can be made",
            hint="restore the file from a copy; penstock store export saves what can be read",
        )
    return count


def _config_as_found(files: FileLayer, root: str) -> StoreConfig:
    """Settings that keep the sizes of all files: they cannot be read off files that are gone."""
    found = layout.inspect(files, root, StoreConfig(), load_state(files, root), after_crash=True)
    return StoreConfig(
        mapped_file_size_consume_queue=found.queue_bytes,
        max_hash_slot_num=found.index_shape.slots,
        max_index_num=found.index_shape.units,
    )


def _queue_ends(files: FileLayer, root: str) -> dict[tuple[str, int], int]:
    """Where the queues end according to their files, as far as these can be read."""
    ends: dict[tuple[str, int], int] = {}
    with contextlib.suppress(StoreError), MessageStore.open_readonly(root, files=files) as store:
        for key in store.queues():
            with contextlib.suppress(StoreError):
                ends[key] = store.max_offset(*key)
    return {key: end for key, end in ends.items() if end}


def _remove_below(files: FileLayer, path: str) -> None:
    """Empty a directory."""
    for entry in files.list_dir(path):
        if entry.is_dir:
            _remove_below(files, f"{path}/{entry.name}")
            files.remove_dir(f"{path}/{entry.name}")
        else:
            files.remove(f"{path}/{entry.name}")
    if files.stat(path) is not None:
        files.sync_dir(path)
