"""A process that appends to a store, deletes its start and a topic all the time, until killed.

    python shrinker.py ROOT FIRST SCRATCH

Message number n of the topic ``kept`` has queue offset n; those of ``scratch`` are numbered, too.
It says on stdout what is confirmed: ``kept N`` for all before N, ``deleted N`` for all of
``scratch`` before N.
"""

from __future__ import annotations

import os
import sys
from random import Random

from penstock.store import Draft, MessageStore, StoreConfig

CONFIG = StoreConfig(
    mapped_file_size_commit_log=16_384,
    mapped_file_size_consume_queue=2_000,
    max_hash_slot_num=100,
    max_index_num=400,
    file_reserved_hours=0,
    delete_file_batch_max=2,
)
FAR_MS = 4_000_000_000_000
"""A time in the next century: everything has expired."""


def body(number: int) -> bytes:
    """The body of a message; its length differs."""
    return b"%d:" % number + b"." * (number * 7919 % 600)


def main() -> None:
    root, first, scratch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    random = Random(first)
    store = MessageStore(root, CONFIG)
    store.open()
    number = store.max_offset("kept", 0)
    os.write(1, b"ready\n")
    while True:
        for _ in range(random.randint(1, 30)):
            properties = b"KEYS\1k%d\2" % number
            store.append(Draft("kept", 0, body(number), properties))
            number += 1
        for _ in range(random.randint(0, 3)):
            store.append(Draft("scratch", 0, b"%d" % scratch, b""))
            scratch += 1
        store.write()
        store.flush(thorough=random.random() < 0.5)
        os.write(1, b"kept %d\n" % number)
        if random.random() < 0.5:
            store.request_clean()
            store.clean(FAR_MS)
        if random.random() < 0.3:
            store.delete_topic("scratch")
            os.write(1, b"deleted %d\n" % scratch)
        os.write(1, b"scratch %d\n" % scratch)


if __name__ == "__main__":
    main()
