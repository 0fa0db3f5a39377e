"""Opening a store: load it, recover it, mark it as running; and marking a clean stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.errors import StoreDamaged
from penstock.store import layout
from penstock.store.checkpoint import load_checkpoint
from penstock.store.commit_log import CommitLog
from penstock.store.config import StoreConfig
from penstock.store.files import FileLayer
from penstock.store.index_builder import IndexBuilder
from penstock.store.key_index import KeyIndex
from penstock.store.note import StoreState, load_state, save_state, vouched_end
from penstock.store.queue_ends import end_of, load_queue_ends, save_queue_ends
from penstock.store.queue_table import QueueTable
from penstock.store.recovery import (
    Recovery,
    check_stray_segments,
    find_lost_keys,
    find_lost_queues,
    recover_checked,
    recover_clean,
    recover_crash,
    recover_rebuilt,
)
from penstock.store.segments import SegmentMaps, segment_path
from penstock.store.store_context import NO_ROOM, StoreContext

_EVERYTHING = (1 << 63) - 1


def load_context(
    root: str,
    config: StoreConfig,
    files: FileLayer,
    time_ms: Callable[[], int],
    monotonic: Callable[[], float],
    *,
    read_only: bool,
) -> StoreContext:
    """Load the files into a context; no message is read yet."""
    state = load_state(files, root)
    vouched = vouched_end(files, root, state)
    if state is not None:
        # To be kept in the notes of this start, which has another run.
        state.flushed_position = vouched
    has_crashed = files.stat(f"{root}/{layout.ABORT}") is not None or (
        state is not None and not state.clean
    )
    found = layout.inspect(files, root, config, state, after_crash=has_crashed)
    commit_log = CommitLog(
        files,
        f"{root}/{layout.COMMIT_LOG}",
        found.segments,
        SegmentMaps(files, config.open_log_segments),
    )
    queues = QueueTable(
        files,
        f"{root}/{layout.CONSUME_QUEUE}",
        found.queue_bytes,
        SegmentMaps(files, config.open_queue_segments),
        commit_log,
        read_only=read_only,
    )
    index: KeyIndex | None = None
    if config.message_index_enable:
        index = KeyIndex(
            files,
            f"{root}/{layout.INDEX}",
            found.index_shape,
            SegmentMaps(files, layout.OPEN_INDEX_FILES),
            read_only=read_only,
        )
        index.load(found.index_entries)
    index_builder = IndexBuilder(config, queues, index)
    if state is not None:
        index_builder.deleted_topics = state.deleted_topics
    boot_id = files.boot_id()
    is_same_boot = state is not None and state.boot_id == boot_id
    is_recovering = state is not None and state.is_recovering
    has_machine_died = not is_same_boot or not boot_id
    if state is not None and is_recovering:
        has_machine_died |= state.has_machine_died
    return StoreContext(
        root,
        config,
        files,
        time_ms,
        monotonic,
        read_only,
        commit_log,
        queues,
        index,
        index_builder,
        load_checkpoint(files, root),
        state,
        found.segments.stray,
        has_crashed,
        is_same_boot=is_same_boot,
        is_intact=is_same_boot and boot_id != "" and not is_recovering,
        has_kept_order=not has_machine_died,
        vouched_end=vouched,
        queue_ends=None if state is None else load_queue_ends(files, root, state),
        foreign=found.foreign,
    )


def recover(context: StoreContext) -> Recovery:
    """Find the end of the log and make queues and index agree with it."""
    recovery: Recovery | None = None
    queues_lost = keys_lost = False
    state = context.state
    were_we_running = state is not None and not state.clean
    if state is not None and state.clean and context.has_crashed:
        state.is_all_ours = False  # we had stopped: it was another program that crashed
    context.commit_log.refuses_zeros = state is not None and state.is_all_ours
    is_untouched = not context.has_crashed and _is_as_we_left_it(context)
    if not context.commit_log.bases:
        recovery = _recover_without_log(context)
    elif is_untouched and context.queue_ends is not None:
        recovery = recover_clean(context)
        if recovery is not None and not context.read_only:
            queues_lost, keys_lost = find_lost_queues(context), find_lost_keys(context)
            if not queues_lost and context.queue_ends is not None:
                context.queues.known_ends = context.queue_ends
    if not context.read_only:
        # The sync of the note below makes these names durable.
        for name in (layout.COMMIT_LOG, layout.CONSUME_QUEUE, layout.INDEX):
            context.files.make_dir(f"{context.root}/{name}")
        _mark_open(context, is_recovering=True)
    if queues_lost or keys_lost:
        recovery = recover_rebuilt(context, queues_lost=queues_lost, keys_lost=keys_lost)
    elif recovery is None:
        recovery = recover_crash(context) if context.has_crashed else recover_checked(context)
    if recovery.kind in ("new", "checked"):
        recovery.is_foreign = not is_untouched
    elif recovery.kind == "crash":
        recovery.is_foreign = not were_we_running
    context.published = (*context.commit_log.written, context.commit_log.last_record)
    if context.read_only:
        return recovery
    problem = context.index_builder.index_error or context.queues.failed_writes
    if problem is not None:
        context.refuse_for_now(problem)
    state = replace(context.state or StoreState())
    state.flushed_position = 0 if recovery.kind == "new" else context.commit_log.flushed
    if state.queue_position > context.commit_log.written[0]:
        state.queue_position = context.commit_log.written[0]
        state.queue_record = context.commit_log.last_record
    stopped_at = context.index_builder.index_stopped_at
    state.index_stopped_at = -1 if stopped_at is None else stopped_at
    # The log may have lost its end, and new records of the topic may be there now.
    for topic, position in context.index_builder.deleted_topics.items():
        context.index_builder.deleted_topics[topic] = min(position, context.commit_log.written[0])
    if not context.commit_log.bases:
        try:
            context.commit_log.create_first()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            context.refuse_for_now(error)
    if recovery.kind == "new" or (recovery.kind == "checked" and not is_untouched):
        state.is_all_ours = recovery.kind == "new"
    context.state = state
    _mark_open(context, is_recovering=False)
    context.commit_log.before_create = context.check_held
    context.queues.is_held = context.is_held
    return recovery


def _recover_without_log(context: StoreContext) -> Recovery:
    check_stray_segments(context, 0)
    queues = context.queues
    queues.trusted_before = _EVERYTHING
    queues.load_all()
    queues.trusted_before = None
    holders = [queue for queue in queues.queues.values() if queue.max_offset > 0]
    state, may_discard = context.state, context.config.discard_queues_without_log
    if context.vouched_end and not holders and not context.read_only and not may_discard:
        raise StoreDamaged(
            f"{context.commit_log.directory} has no segment",
            expected=f"the log up to position {context.vouched_end}, which was on the disk",
            hint="put the log back, or set discardQueuesWithoutLog=true to start empty",
        )
    if holders and not context.read_only:
        # A machine may die before it ever flushed the log, and keep the queues.
        was_never_flushed = state is not None and state.is_all_ours and state.flushed_position == 0
        if not was_never_flushed and not may_discard:
            raise StoreDamaged(
                f"{context.commit_log.directory} has no segment, but {len(holders)} queues in "
                f"{queues.directory} have messages, {holders[0].topic!r} among them",
                expected="the log these queues were made from",
                hint="put the log back, or set discardQueuesWithoutLog=true to start empty",
            )
        for topic in {queue.topic for queue in holders}:
            queues.remove_topic(topic)
    context.commit_log.start_at(0, 0)
    return Recovery("new")


def _mark_open(context: StoreContext, *, is_recovering: bool) -> None:
    """Leave the signs of a running store, or refuse messages while there is no room for them."""
    try:
        mark_open(context, is_recovering=is_recovering)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        # A note that says "clean" must go, unless "abort" contradicts it, which needs no room. One
        # that does not may stay: it vouches for less, and it knows the deleted topics.
        found = load_state(context.files, context.root)
        has_abort = context.files.stat(f"{context.root}/{layout.ABORT}") is not None
        if found is not None and found.clean and not has_abort:
            context.files.remove(f"{context.root}/{layout.STATE}")
        context.files.sync_dir(context.root)
        context.is_marked_open = False
        context.refuse_for_now(error)


def mark_open(context: StoreContext, *, is_recovering: bool = False) -> None:
    """Write ``abort``, and a note that vouches for nothing new."""
    files = context.files
    path = f"{context.root}/{layout.ABORT}"
    if files.stat(path) is None:
        descriptor = files.create(path, 0)
        try:
            files.write(descriptor, (str(files.process_id()).encode(),), 0)
        finally:
            files.close(descriptor)
    before = context.state or StoreState()
    state = replace(
        before,
        clean=False,
        boot_id=files.boot_id(),
        run=before.run + is_recovering,
        is_recovering=is_recovering,
        has_machine_died=is_recovering and not context.has_kept_order,
        queue_ends=-1,
        sizes=_sizes(context),
        deleted_topics=context.index_builder.deleted_topics,
    )
    save_state(files, context.root, state)
    context.state = state
    context.is_marked_open = True
    context.note_deletable()


def mark_clean(context: StoreContext) -> None:
    """Leave the signs of a clean stop; everything must be on the disk."""
    commit_log, queues = context.commit_log, context.queues
    end = commit_log.written[0]
    ends = {key: place for key, place in queues.known_ends.items() if key not in queues.queues}
    ends |= {key: end_of(queue) for key, queue in queues.queues.items() if queue.max_offset}
    context.state = replace(
        context.state or StoreState(),
        clean=True,
        queue_ends=save_queue_ends(context.files, context.root, ends),
        index_files={} if context.index is None else context.index.key_counts,
        log_end=end,
        last_record=commit_log.last_record,
        fingerprint=_fingerprint(context),
        flushed_position=end,
        queue_position=end,
        queue_record=commit_log.last_record,
        index_synced="" if context.index is None else context.index.newest_full,
        index_stopped_at=-1,
    )
    save_state(context.files, context.root, context.state)
    context.files.remove(f"{context.root}/{layout.ABORT}")
    context.files.sync_dir(context.root)


def _sizes(context: StoreContext) -> dict[str, int]:
    sizes = {
        "commit_log": context.commit_log.segment_size,
        "consume_queue": context.queues.segment_bytes,
    }
    if context.index is not None:
        sizes["index_slots"], sizes["index_units"] = context.index.shape
    return sizes


def _fingerprint(context: StoreContext) -> list[int]:
    """Numbers that another program's writing would change."""
    bases = context.commit_log.bases
    last = bases[-1] if bases else -1
    paths = [f"{context.root}/{layout.CHECKPOINT}"]
    if last >= 0:
        paths.append(segment_path(context.commit_log.directory, last))
    entries = [context.files.stat(path) for path in paths]
    return [last, *(-1 if entry is None else entry.modified_ns for entry in entries)]


def _is_as_we_left_it(context: StoreContext) -> bool:
    state = context.state
    return state is not None and state.clean and state.fingerprint == _fingerprint(context)
