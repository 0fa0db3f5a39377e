"""Deleting a topic: its queues go, its records stay in the log until retention takes them."""

from __future__ import annotations

from penstock.errors import StoreError
from penstock.store.disk_steps import DiskSteps
from penstock.store.flushing import Flusher
from penstock.store.store_context import StoreContext


def delete_topic_in_steps(context: StoreContext, flusher: Flusher, topic: str) -> DiskSteps[int]:
    """Delete all queues of a topic; returns how many there were.

    After the first step the topic has no messages any more. Nothing of it may be staged.
    """
    queues, index_builder = context.queues, context.index_builder
    end, start = context.commit_log.written[0], context.commit_log.min_position
    before = index_builder.deleted_topics.items()
    index_builder.deleted_topics = {
        **{name: position for name, position in before if position > start},
        topic: end,
    }
    loaded = queues.begin_removal(topic)
    try:
        listed: set[int] = yield lambda: queues.remove_topic_files(topic)
    except OSError as error:
        # Half of it may be gone, and entries that were in memory are: appending to what is left
        # would give offsets twice. Recovery makes the queues whole again.
        failure = StoreError(
            f"topic {topic!r} of store {context.root} could not be deleted: {error}",
            hint="check the disk, then restart the broker and delete the topic again",
        )
        context.refusal = failure
        raise failure from error
    finally:
        queues.end_removal(topic)
    yield flusher.save_note
    return len(loaded | listed)
