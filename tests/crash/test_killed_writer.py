"""A writer killed at any moment: all it acknowledged is there, in order, once, and can be found."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from penstock.protocol.filters.tags import tag_code
from penstock.protocol.records.codec import decode_record
from penstock.runtime.child_process import ChildProcess
from penstock.store import ASYNC_FLUSH, SYNC_FLUSH, MessageStore
from penstock.store.log_scan import Scanned
from penstock.store.tools import verify

IS_LONG = bool(os.environ.get("PENSTOCK_LONG"))
KILLS = 50 if IS_LONG else 5
WRITER = Path(__file__).with_name("writer.py")
LONGEST_LIFE_SECONDS = 0.4
LOOKUP_EVERY = 13
"""A lookup goes through all key files of the last minute, and a fast disk makes many of them."""
LOOKUP_TAIL_BYTES = 32_768
"""Near the point of death every message is looked up."""


def _load_writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("crash_writer", WRITER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


writer = _load_writer()


class Checker:
    """Knows every message of the log up to the one it looked at last."""

    def __init__(self) -> None:
        self.count = 0
        self.position = 0
        self.offsets: Counter[tuple[str, int]] = Counter()

    def check_rest(self, store: MessageStore) -> None:
        """Look at the messages behind the last one looked at."""
        for record in store.commit_log.scan(self.position, store.max_position):
            expected = writer.message(self.count)
            queue = (record.topic, record.queue_id)
            assert queue == (expected.topic, expected.queue_id), f"message {self.count}"
            assert record.queue_offset == self.offsets[queue], f"message {self.count}"
            stored = store.record_at(record.log_position)
            assert stored is not None
            assert decode_record(stored, check_crc=True).body == expected.body
            self.check_entry(store, queue, record.log_position, record.size, expected.tag)
            is_near_the_end = record.log_position > store.max_position - LOOKUP_TAIL_BYTES
            if is_near_the_end or self.count % LOOKUP_EVERY == 0:
                self.check_lookup(store, record, expected.key)
            self.offsets[queue] += 1
            self.count += 1
            self.position = record.log_position + record.size
        for queue, count in self.offsets.items():
            assert store.max_offset(*queue) == count, f"{queue} has entries of nothing"

    def check_lookup(self, store: MessageStore, record: Scanned, key: str) -> None:
        stored_ms = record.store_timestamp
        found = store.query(record.topic, key, begin_ms=stored_ms, end_ms=stored_ms).slices
        assert [decode_record(slice_).log_position for slice_ in found] == [record.log_position]

    def check_entry(
        self, store: MessageStore, queue: tuple[str, int], position: int, size: int, tag: str
    ) -> None:
        entry = store.entry(*queue, self.offsets[queue])
        assert entry is not None, f"message {self.count} has no queue entry"
        assert (entry.log_position, entry.size) == (position, size)
        assert entry.tags_code == tag_code(tag)


def acknowledged(output: str) -> int:
    """The number of messages the writer said are safe, before it died."""
    numbers = re.findall(r"^acknowledged (\d+)$", output, re.MULTILINE)
    return int(numbers[-1]) if numbers else 0


@pytest.mark.crash
@pytest.mark.timeout(0 if IS_LONG else 240)
@pytest.mark.parametrize("flush_disk_type", [ASYNC_FLUSH, SYNC_FLUSH])
def test_a_killed_writer_loses_nothing_it_acknowledged(
    tmp_path: Path, flush_disk_type: str
) -> None:
    root = tmp_path / "store"
    random = Random()
    checker = Checker()
    promised = 0
    for kill in range(KILLS):
        arguments = (sys.executable, WRITER, root, flush_disk_type, str(checker.count), str(kill))
        with ChildProcess(arguments) as child:
            child.wait_for_line("^ready$")
            time.sleep(random.uniform(0, LONGEST_LIFE_SECONDS))
            child.kill()
            promised = max(promised, acknowledged(child.output))
        store = MessageStore.open_readonly(root, writer.config(flush_disk_type))
        checker.check_rest(store)
        store.close()
        assert checker.count >= promised
    assert promised > 0

    # And once more after a real recovery, from the very first message on.
    with MessageStore(root, writer.config(flush_disk_type)) as store:
        again = Checker()
        again.check_rest(store)
    assert again.count == checker.count
    result = verify("store", str(root))
    assert (result.is_clean, result.records) == (True, checker.count)
    # Every key of every message, where the checks above look some up.
    assert result.damages == []
