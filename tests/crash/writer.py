"""A process that writes to a store until it is killed, and says on stdout what it acknowledged.

    python writer.py ROOT FLUSH_DISK_TYPE FIRST SEED

Message number n is the same in every run, so a reader of the store knows what must be in it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from random import Random
from typing import NamedTuple

from penstock.protocol.records.batches import BatchItem, encode_batch
from penstock.store import SYNC_FLUSH, Draft, MessageStore, StoreConfig

TOPICS = ("orders", "bills", "parcels")
QUEUES = 4
TAGS = ("", "red", "blue")
GROUP = 72
"""Messages that go to one queue, together or one by one."""
FAST_MESSAGES = 12_000
"""Those of one life written as fast as can be; what is written must be checked, so then slower."""


class Numbered(NamedTuple):
    """Message number n."""

    topic: str
    queue_id: int
    key: str
    tag: str
    body: bytes
    properties: bytes


def message(number: int) -> Numbered:
    """The one message of this number; its queue follows from the group it belongs to.

    Every second group is of messages that are alike, which the store writes by a way of their own.
    """
    group = number // GROUP
    kind = group if group % 2 else number
    key = f"key-{number:08d}"
    tag = TAGS[kind % len(TAGS)]
    properties = (
        f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01{key} all\x02" + f"TAGS\x01{tag}\x02" * bool(tag)
    )
    return Numbered(
        TOPICS[group % len(TOPICS)],
        group // len(TOPICS) % QUEUES,
        key,
        tag,
        f"{number:08d}:".encode() + bytes([number % 255 + 1]) * (kind * 7919 % 700),
        properties.encode(),
    )


def config(flush_disk_type: str) -> StoreConfig:
    """Small files, so that rolling is as frequent as dying."""
    return StoreConfig(
        mapped_file_size_commit_log=65_536,
        mapped_file_size_consume_queue=6_000,
        max_hash_slot_num=1_000,
        max_index_num=4_000,
        flush_disk_type=flush_disk_type,
        flush_interval_consume_queue_ms=5,
        flush_consume_queue_thorough_interval_ms=40,
    )


def stage(store: MessageStore, number: int, random: Random) -> int:
    """Append one message, or the rest of a group as a batch; return the next number."""
    first = message(number)
    draft = Draft(first.topic, first.queue_id, first.body, first.properties)
    rest = range(number, number - number % GROUP + GROUP)
    if len(rest) > 1 and random.randrange(2):
        members = [message(member) for member in rest]
        items = [BatchItem(member.body, member.properties) for member in members]
        if random.randrange(2):
            assert store.append_batch_body(draft, encode_batch(items)) is not None
        else:
            store.append_batch(draft, items)
        return rest.stop
    store.append(draft)
    return number + 1


def flush_all_the_time(store: MessageStore) -> None:
    """What the broker's flush thread does."""
    pause = threading.Event()
    while True:
        store.flush()
        pause.wait(0.002)


def main() -> None:
    root, flush_disk_type, first, seed = sys.argv[1:]
    random = Random(int(seed))
    store = MessageStore(root, config(flush_disk_type))
    store.open()
    is_sync = flush_disk_type == SYNC_FLUSH
    if not is_sync:
        threading.Thread(target=flush_all_the_time, args=(store,), daemon=True).start()
    number = int(first)
    os.write(1, b"ready\n")
    while True:
        for _ in range(random.randint(1, 20)):
            number = stage(store, number, random)
        if random.randrange(2):
            store.write_log()
        else:
            store.write()
        if is_sync:
            store.mark_flushed(store.flush())
        os.write(1, b"acknowledged %d\n" % number)
        store.publish()
        if number - int(first) > FAST_MESSAGES:
            time.sleep(0.01)


if __name__ == "__main__":
    main()
