"""Where the truth ends: what a store finds out about its files when it is opened.

The log is the truth. Queues and index are made from it and can be made again, so recovery asks two
things only: where does the log end, and from where on must queues and index be made again?

* After our own clean stop a note says where the log ended; it is believed if the files are as we
  left them and a record ends there.
* After a clean stop of another program the queues are complete. The last segment is checked, and
  what lies behind the last queue entry is dispatched.
* After a crash everything younger than the checkpoint is dispatched again, from the last segment
  that starts before it. Queue entries younger than that are not believed: each record states its
  own queue offset, and the first of a queue tells where the queue goes on.

The index of RocketMQ forgets keys in a crash: files that were not full are deleted and only the
part of the log that is dispatched anyway is indexed again. Here the missing part is indexed from
the log. If only the process died, the page cache is as it was and the index needs no repair.

What lies behind the end is a torn record, or what a dying machine wrote out of order: it is cut off
and kept in ``penstock.cut``. Recovery refuses where cutting would lose acknowledged messages:

* The log ends before what is known to have been on the disk.
* Only the process died, yet whole records follow. Its writes are in the page cache in their order,
  so the place where the walk stopped was damaged by something else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from penstock.errors import StoreDamaged
from penstock.store.commit_log import CommitLog, store_timestamp_of
from penstock.store.cut_bytes import keep_bytes
from penstock.store.key_index import KeyIndex
from penstock.store.log_scan import LogScan, Scanned
from penstock.store.log_search import records_behind, records_in_segment
from penstock.store.note import save_state
from penstock.store.queue_ends import changed_queues
from penstock.store.segments import find_segments
from penstock.store.store_context import NO_ROOM, StoreContext

log = logging.getLogger(__name__)

_MAX_COUNTED = 1_000_000
_MAX_NAMED = 3


@dataclass(slots=True)
class Recovery:
    """What opening a store did."""

    kind: str
    """``new``, ``clean`` (nothing scanned), ``checked`` (after another program), ``crash``, or
    ``rebuilt`` (queues or index were not as a clean stop had left them)."""
    start: int = 0
    end: int = 0
    records: int = 0
    dispatched: int = 0
    reindexed: int = 0
    damage: str | None = None
    """What stood behind the end, if not zeros."""
    is_foreign: bool = False
    """Whether another program may have written to the store since we did."""
    kept: list[str] = field(default_factory=list)
    """The files that have what was cut off."""


def recover_clean(context: StoreContext) -> Recovery | None:
    """Take our own note's word for where the log ends, if a record really ends there."""
    state, commit_log = context.state, context.commit_log
    if state is None or not state.clean or not commit_log.bases:
        return None
    commit_log.written = (_upper(commit_log), 0)
    end, last = state.log_end, state.last_record
    record = commit_log.record_at(last) if last >= 0 else None
    inside = commit_log.min_position <= end <= _upper(commit_log)
    if not inside or (last >= 0 and (record is None or last + len(record) > end)):
        return None
    if record is not None:
        scan = commit_log.scan(last, last + len(record))
        if sum(1 for _ in scan) != 1 or end not in (scan.end, _next_base(commit_log, scan.end)):
            return None
    timestamp = 0 if record is None else store_timestamp_of(record)
    commit_log.start_at(end, timestamp)
    commit_log.last_record = last
    return Recovery("clean", end, end)


def find_lost_queues(context: StoreContext) -> bool:
    """Whether queues are not as a clean stop left them: gone, cut short or overwritten."""
    queues, ends = context.queues, context.queue_ends
    assert ends is not None, "without them it is not known what a clean stop left"
    lost = list(changed_queues(context.files, queues.directory, queues.segment_bytes, ends))
    if lost and not context.are_files_removed:
        log.error(
            "queues are not as the last stop left them, all are rebuilt from the log "
            "directory=%s count=%d queues=%s",
            queues.directory, len(lost), lost[:_MAX_NAMED],
        )  # fmt: skip
    return bool(lost)


def find_lost_keys(context: StoreContext) -> bool:
    """Whether index files are not as a clean stop left them."""
    state, index = context.state, context.index
    if index is None or state is None:
        return False
    if index.key_counts == state.index_files:
        return False
    if not context.are_files_removed:
        log.error(
            "index files are not as the last stop left them, the index is rebuilt directory=%s",
            index.directory,
        )
    return True


def recover_rebuilt(context: StoreContext, *, queues_lost: bool, keys_lost: bool) -> Recovery:
    """After our clean stop: the log is whole, but queues or index are not; make them again."""
    commit_log, queues, index = context.commit_log, context.queues, context.index
    end, last = commit_log.written[0], commit_log.last_record
    recovery = Recovery("rebuilt", commit_log.min_position, end)
    if keys_lost and index is not None:
        _drop_index(context, index)
        recovery.reindexed = _replay_index(context, commit_log.min_position, end)
    if queues_lost:
        _distrust_queues(context, commit_log.min_position)
        queues.is_after_crash = True
        queues.trusted_before = commit_log.min_position
        queues.load_all()
        scan = commit_log.scan(commit_log.min_position, end)
        recovery.records = recovery.dispatched = context.index_builder.replay(scan)
        if scan.end < end:
            raise scan.damaged()
        commit_log.last_record = last
        queues.end_recovery(end)
        _restore_places(context)
    return recovery


def _restore_places(context: StoreContext) -> None:
    """Let queues go on where they ended, even if the log has none of their messages any more."""
    for (topic, queue_id), place in (context.queue_ends or {}).items():
        queue = context.queues.get_for_recovery(topic, queue_id)
        if queue is not None and queue.max_offset < place.end:
            context.queues.skip_to(queue, place.end)


def recover_checked(context: StoreContext) -> Recovery:
    """After a clean stop of another program: check the last segments, dispatch what is new."""
    commit_log, queues = context.commit_log, context.queues
    upper = _upper(commit_log)
    commit_log.written = (upper, 0)
    queues.trusted_before = upper
    queue_end = queues.load_all()
    start = _checked_start(context, queue_end)
    recovery = Recovery("checked", start)
    scan = commit_log.scan(start, check_crc=context.config.check_crc_on_recover)

    def counted() -> Iterator[Scanned]:
        for record in scan:
            recovery.records += 1
            if record.log_position >= queue_end:
                yield record

    recovery.dispatched = context.index_builder.replay(counted())
    # Another program only adds to the log that we left.
    if scan.end < max(queue_end, context.vouched_end):
        _refuse_or_warn(context, scan)
    return _complete(context, recovery, scan)


def recover_crash(context: StoreContext) -> Recovery:
    """After a crash: dispatch everything again that is not known to be on the disk."""
    commit_log, queues = context.commit_log, context.queues
    commit_log.written = (_upper(commit_log), 0)
    start = _crash_start(context)
    start = _checked_crash_start(context, start)
    if queues.is_empty():
        start = commit_log.min_position
    _distrust_queues(context, start)
    index_from = _distrust_index(context, start)
    queues.is_after_crash = True
    queues.trusted_before = start
    queues.load_all()
    recovery, scan = _dispatch_from(context, start, index_from)
    if queues.has_gap and start > commit_log.min_position:
        # Entries are missing that should have been on the disk. The log still knows them.
        log.warning("queues have gaps, the whole log is dispatched again position=%d", start)
        queues.start_over()
        _distrust_queues(context, commit_log.min_position)
        recovery, scan = _dispatch_from(context, commit_log.min_position, scan.end)
    if _lost_flushed_records(context, scan):
        _refuse_or_warn(context, scan)
    check_stray_segments(context, scan.end)
    return _complete(context, recovery, scan)


def _dispatch_from(context: StoreContext, start: int, index_from: int) -> tuple[Recovery, LogScan]:
    recovery = Recovery("crash", start)
    if index_from < start:
        recovery.reindexed = _replay_index(context, index_from, start)
    scan = context.commit_log.scan(start, check_crc=context.config.check_crc_on_recover)
    recovery.records = recovery.dispatched = context.index_builder.replay(scan)
    return recovery, scan


def check_stray_segments(context: StoreContext, end: int) -> None:
    """Remove segments behind a gap in the log, unless what is missing was on the disk."""
    state = context.state
    if context.stray and state is not None and end < state.flushed_position:
        raise StoreDamaged(
            f"{context.commit_log.directory} ends at {end}, but {context.stray[0]} is there",
            expected=f"all segments up to log position {state.flushed_position}, flushed earlier",
            hint="restore the missing segments from a copy",
        )
    if not context.read_only:
        for path in context.stray:
            kept = _keep_stray(context, path)
            log.warning("segment without a predecessor removed path=%s kept=%s", path, kept)
            context.commit_log.remove_stray(path)


def _keep_stray(context: StoreContext, path: str) -> str | None:
    entry = context.files.stat(path)
    if entry is None or not entry.size:
        return None
    base = int(entry.name)
    return keep_bytes(context.files, context.root, path, base, [(0, entry.size)])


def _complete(context: StoreContext, recovery: Recovery, scan: LogScan) -> Recovery:
    """Cut off what is behind the end, and set the end in all parts of the store."""
    commit_log, index = context.commit_log, context.index
    end, last, timestamp = scan.end, scan.last_record, scan.last_timestamp
    recovery.end, recovery.damage = end, scan.damage
    if not context.read_only:
        recovery.kept = _keep_what_follows(context, scan)
        commit_log.truncate(end)
        # Only what a process of this boot left behind can be in memory alone.
        is_doubtful = context.state is not None and context.is_same_boot
        doubtful_from = context.state.flushed_position if is_doubtful and context.state else end
        commit_log.sync_all(doubtful_from, end)
    commit_log.start_at(end, timestamp or context.checkpoint.log_timestamp)
    if last < 0 and context.state is not None and context.state.queue_position == end:
        last = context.state.queue_record
    commit_log.last_record = last
    context.queues.end_recovery(end)
    if index is not None and not context.read_only and index.end_position >= end > 0:
        _drop_index_behind(context, index, end)
        recovery.reindexed += _replay_index(context, index.end_position, end)
    return recovery


def _keep_what_follows(context: StoreContext, scan: LogScan) -> list[str]:
    """Copy what is about to be cut off the log."""
    commit_log = context.commit_log
    kept: list[str] = []
    try:
        for path, ranges in commit_log.parts_behind(scan.end):
            base = int(path.rpartition("/")[2])
            copy = keep_bytes(context.files, context.root, path, base, ranges)
            kept += [copy] if copy is not None else []
    except OSError as error:
        # Half a record was never acknowledged, so it need not be kept where there is no room.
        if error.errno not in NO_ROOM or next(records_behind(commit_log, scan.end), None):
            raise
    if scan.damage is None and not kept:
        return kept
    whole = sum(1 for _ in islice(records_behind(commit_log, scan.end), _MAX_COUNTED))
    log.log(
        logging.ERROR if whole else logging.WARNING,
        "log ends with damage, what follows is cut off directory=%s position=%d damage=%s "
        "whole_records_cut=%d kept=%s",
        commit_log.directory, scan.end, scan.damage or "zeros", whole, kept,
    )  # fmt: skip
    return kept


def follow(context: StoreContext) -> int:
    """Let a store opened for reading see what its writer added; return how many messages."""
    commit_log, index = context.commit_log, context.index
    end, timestamp = commit_log.written
    found = find_segments(context.files, commit_log.directory, size=commit_log.segment_size)
    commit_log.reload(found.bases)
    if index is not None:
        index.reload()
    commit_log.written = (_upper(commit_log), timestamp)
    scan = commit_log.scan(max(end, commit_log.min_position))
    count = context.index_builder.replay(scan)
    commit_log.start_at(scan.end, scan.last_timestamp or timestamp)
    context.published = (*commit_log.written, scan.last_record)
    return count


def _upper(commit_log: CommitLog) -> int:
    return commit_log.bases[-1] + commit_log.segment_size if commit_log.bases else 0


def _next_base(commit_log: CommitLog, position: int) -> int:
    return position - position % commit_log.segment_size + commit_log.segment_size


def _checked_start(context: StoreContext, queue_end: int) -> int:
    """The newest segment that starts before the queues' end, or one some segments older."""
    commit_log = context.commit_log
    bases = commit_log.bases
    chosen = 0
    for index in range(len(bases) - 1, -1, -1):
        if commit_log.record_at(bases[index]) is not None and bases[index] <= queue_end:
            chosen = index
            break
    return bases[max(0, chosen - context.config.clean_scan_segments + 1)]


def _crash_start(context: StoreContext) -> int:
    """From where on queue entries may be missing."""
    commit_log, checkpoint, state = context.commit_log, context.checkpoint, context.state
    if state is not None:
        return min(max(state.queue_position, commit_log.min_position), _upper(commit_log))
    # Another program's store: the newest segment whose first record is older than all in doubt.
    limit = checkpoint.recovery_timestamp
    if context.config.message_index_safe:
        limit = min(limit, checkpoint.index_timestamp)
    for base in reversed(commit_log.bases):
        record = commit_log.record_at(base)
        if record is not None and 0 < store_timestamp_of(record) <= limit:
            return base
    return commit_log.bases[0]


def _checked_crash_start(context: StoreContext, start: int) -> int:
    """``start``, if the last message before it is there; a log without that one is refused.

    Where the settings allow to give it up, the scan starts with its segment.
    """
    state, commit_log = context.state, context.commit_log
    if state is None or state.queue_record < commit_log.min_position:
        return start
    scan = commit_log.scan(state.queue_record, state.queue_record + 1)
    if sum(1 for _ in scan) == 1 and start in (scan.end, _next_base(commit_log, scan.end)):
        return start
    _refuse_or_warn(context, scan)
    base = state.queue_record - state.queue_record % commit_log.segment_size
    return min(base, commit_log.bases[-1])


def _distrust_queues(context: StoreContext, start: int) -> None:
    """Note from where on queues are made again, before that begins: a crash must know it."""
    state = context.state
    if state is not None and not context.read_only and start < state.queue_position:
        state.queue_position, state.queue_record = start, -1
        save_state(context.files, context.root, state)


def _distrust_index(context: StoreContext, start: int) -> int:
    """Delete index files that a crash may have torn; return from where to index again."""
    index, state = context.index, context.state
    if index is None:
        return start
    if state is not None and state.index_stopped_at >= 0:
        # Queue entries went on without the index, which then tells too little: maybe it has no
        # file at all yet.
        start = min(start, state.index_stopped_at)
    if context.read_only:
        # Nothing is deleted; what the index does not have yet is held in memory.
        return min(start, index.end_position) if index.headers else start
    lost = [name for name in (state.index_files if state else ()) if name not in index.headers]
    if lost and (not index.headers or max(lost) > min(index.headers)):
        # Not what retention deletes, the oldest ones. Keys in front of what is replayed are gone.
        log.error("index files are missing, the index is rebuilt names=%s", lost[:_MAX_NAMED])
        _drop_index(context, index)
        return context.commit_log.min_position
    if not context.is_intact:
        for name, header in list(index.headers.items()):
            if state is not None:
                is_safe = name <= state.index_synced
            else:
                is_safe = (
                    header.next_unit >= index.shape.units
                    and header.end_timestamp <= context.checkpoint.index_timestamp
                )
            if not is_safe:
                index.remove_from(name)
                break
        if not index.headers:
            return context.commit_log.min_position
    elif state is not None:
        # Only the process died: the page cache has every key of every visible message.
        for name in [name for name in index.headers if name > state.index_synced]:
            index.rewrite(name)
    return min(start, index.end_position) if index.headers else start


def _drop_index(context: StoreContext, index: KeyIndex) -> None:
    """Forget all keys."""
    if index.headers:
        index.remove_from(next(iter(index.headers)))
    index.end_position = context.commit_log.min_position


def _drop_index_behind(context: StoreContext, index: KeyIndex, end: int) -> None:
    for name, header in list(index.headers.items()):
        if header.end_position >= end or name == next(reversed(index.headers)):
            index.close()
            index.remove_from(name)
            break
    if not index.headers:
        index.end_position = context.commit_log.min_position


def _replay_index(context: StoreContext, start: int, end: int) -> int:
    """Index what is in the log between two positions; return how many records that were."""
    count = 0
    commit_log = context.commit_log
    start = max(start, commit_log.min_position)
    while start < end:
        scan = commit_log.scan(start, end, check_crc=False)
        count += context.index_builder.replay(scan, include_queues=False)
        if scan.end >= end:
            break
        log.warning("part of the log is not indexed position=%d damage=%s", scan.end, scan.damage)
        start = _next_base(commit_log, scan.end)
    return count


def _lost_flushed_records(context: StoreContext, scan: LogScan) -> bool:
    """Whether the log ends before something that was on the disk for sure."""
    state, commit_log = context.state, context.commit_log
    if scan.end < context.vouched_end:
        return True
    if state is not None and not state.clean:
        if not context.has_kept_order:
            return False
        return next(records_behind(commit_log, scan.end), None) is not None
    # Another program's store: look for a record behind the end that is older than the last flush.
    limit = context.checkpoint.recovery_timestamp
    for base in commit_log.bases:
        record = commit_log.record_at(base) if base > scan.end else None
        if record is not None and 0 < store_timestamp_of(record) <= limit:
            return True
    if scan.damage is None:
        return False
    base = scan.end - scan.end % commit_log.segment_size
    behind = records_in_segment(commit_log, base, scan.end - base + 1)
    return any(0 < commit_log.store_timestamp(position) <= limit for position in behind)


def _refuse_or_warn(context: StoreContext, scan: LogScan) -> None:
    error: StoreDamaged = scan.damaged(context.vouched_end)
    if not context.config.truncate_damaged_log and not context.read_only:
        raise error
    context.damage = error
    log.error("damaged log, what follows is given up error=%s", error)
