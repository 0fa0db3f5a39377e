"""The store against a model, on files that fail: nothing acknowledged is ever lost.

The model is a list of messages in log order with two marks: up to where they were written (they
survive the process) and up to where they were flushed (they survive the machine). Each rule does
one thing to the store and the same to the model. A crash may strike at any operation on files; the
store is then opened on what is left, and must hold all messages up to the mark in question, maybe
some of those behind it, in order, once, each with its queue entry and its index entry.

``PENSTOCK_LONG=1`` runs the long form.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support.faulty_files import Crashed, FaultyFiles, SimulatedDisk

from penstock.errors import DiskFull, FlushFailed, StoreError
from penstock.protocol.filters.tags import tag_code
from penstock.protocol.records.batches import BatchItem, encode_batch
from penstock.protocol.records.codec import decode_record
from penstock.protocol.records.sys_flags import SysFlag
from penstock.store import (
    ASYNC_FLUSH,
    SYNC_FLUSH,
    Appended,
    Draft,
    MessageStore,
    ReadStatus,
    StoreConfig,
)

IS_LONG = bool(os.environ.get("PENSTOCK_LONG"))
EXAMPLES = 5_000 if IS_LONG else 150  # for each of the two flush modes
STEPS = 30
FEW = 40
"""Messages up to which a rule may add many: checks cost time for each one of them."""

ROOT = "/data/broker-a"
TOPICS = ("orders", "bills", "%RETRY%group")
QUEUES = 2
TAGS = ("", "red", "blue")
HOUR_MS = 3_600_000
PLAIN, PREPARED, COMMIT, ROLLBACK = (
    0,
    SysFlag.TRANSACTION_PREPARED,
    SysFlag.TRANSACTION_COMMIT,
    SysFlag.TRANSACTION_ROLLBACK,
)

T = TypeVar("T")
Queue = tuple[str, int]


class Sent(NamedTuple):
    """A message handed to the store, and where the store said it would be."""

    at: Appended
    topic: str
    queue_id: int
    key: str
    tag: str
    body: bytes
    sys_flag: int

    @property
    def end(self) -> int:
        return self.at.log_position + self.at.size

    @property
    def is_queued(self) -> bool:
        return self.sys_flag not in (PREPARED, ROLLBACK)

    @property
    def is_indexed(self) -> bool:
        return self.sys_flag != ROLLBACK


def _properties(key: str, tag: str) -> bytes:
    text = f"UNIQ_KEY\x01{key}\x02KEYS\x01k{key} all\x02"
    return (text + f"TAGS\x01{tag}\x02" * bool(tag)).encode()


def is_same(record: memoryview, sent: Sent) -> bool:
    """Whether a record of the log is this message, down to the last field we chose."""
    found = decode_record(record, check_crc=True)
    return (
        found.log_position == sent.at.log_position
        and found.size == sent.at.size
        and found.topic == sent.topic
        and found.queue_id == sent.queue_id
        and found.queue_offset == sent.at.queue_offset
        and found.store_timestamp == sent.at.store_timestamp
        and found.body == sent.body
        and found.properties == _properties(sent.key, sent.tag)
        and found.sys_flag == sent.sys_flag
    )


class StoreMachine(RuleBasedStateMachine):
    """Everything one may do to a store, and what must hold afterwards."""

    flush_disk_type = ASYNC_FLUSH

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_700_000_000_000
        self.passed_ms = 0
        self.random = Random(0)
        self.disk = SimulatedDisk(now_ns=lambda: self.now * 1_000_000)
        self.files = FaultyFiles(self.disk)
        self.sent: list[Sent] = []
        """Every message that is in the log or staged, since the beginning of time."""
        self.written = 0
        self.flushed = 0
        self.published = 0
        self.ghosts: list[Sent] = []
        """Messages of failed writes; a dying machine may have kept them and lost their undoing."""
        self.deleted: dict[str, int] = {}
        """Topics deleted, and the log position their deletion happened at."""
        self.half_deleted: dict[str, int] = {}
        """Topics whose deletion failed or crashed, and where they had been deleted before."""
        self.min_position = 0
        self.dies_with_machine = False
        self.count = 0
        self.is_open = False

    @property
    def config(self) -> StoreConfig:
        return StoreConfig(
            mapped_file_size_commit_log=1024,
            mapped_file_size_consume_queue=80,
            max_hash_slot_num=3,
            max_index_num=9,
            flush_disk_type=self.flush_disk_type,
            file_reserved_hours=1,
            delete_when="00;01;02;03;04;05;06;07;08;09;10;11;12;13;14;15;16;17;18;19;20;21;22;23",
        )

    @property
    def is_sync(self) -> bool:
        return self.flush_disk_type == SYNC_FLUSH

    # Doing things that may die

    @contextlib.contextmanager
    def may_crash(self) -> Iterator[None]:
        try:
            yield
        except Crashed:
            self.recover_from_crash()

    def recover_from_crash(self) -> None:
        """Start again, and again if that dies too, until the store is open."""
        self.is_open = False
        while True:
            if self.dies_with_machine:
                self.written = self.flushed
                self.disk = self.disk.after_machine_crash(self.random)
            else:
                self.disk = self.disk.after_process_crash()
            self.files.is_dead = True
            self.store.abandon()
            survives_recovery = self.random.randrange(3) > 0
            crash_after = None if survives_recovery else self.random.randrange(25)
            self.dies_with_machine = bool(self.random.randrange(2))
            try:
                self.open(crash_after)
            except Crashed:
                continue
            return

    def open(self, crash_after: int | None = None) -> None:
        self.files = FaultyFiles(self.disk, self.random)
        self.files.crash_after = crash_after
        self.store = MessageStore(
            ROOT,
            self.config,
            time_ms=lambda: self.now,
            monotonic=lambda: self.passed_ms / 1000,
            files=self.files,
        )
        try:
            self.store.open()
        except DiskFull:
            # It may be that there is not even room to start; it must start when there is.
            assert self.disk.free_bytes is not None
            self.disk.free_bytes = None
            self.open(crash_after)
            return
        self.files.crash_after = None
        self.is_open = True
        self.adopt()
        for topic in list(self.half_deleted):
            self.try_to_delete(topic)

    # What must hold after opening

    def adopt(self) -> None:
        """Check what the store holds, then let the model be the same."""
        store = self.store
        start = store.min_position
        assert start <= self.min_position, "retention took more than it said"
        survivors = list(store.commit_log.scan(start, store.max_position))
        skipped = sum(sent.at.log_position < start for sent in self.sent)
        expected = self.sent[skipped:]
        for number, found in enumerate(survivors):
            record = store.record_at(found.log_position)
            assert record is not None
            if number < len(expected) and is_same(record, expected[number]):
                continue
            index = skipped + number
            assert index >= self.written, f"{expected[number]} became {decode_record(record)}"
            ghost = next((ghost for ghost in self.ghosts if is_same(record, ghost)), None)
            assert ghost is not None, f"invented {decode_record(record)}"
            del self.sent[index:]
            self.sent.append(ghost)
            expected = self.sent[skipped:]
        kept = skipped + len(survivors)
        assert kept >= self.written, f"lost {self.sent[kept : self.written]}"
        del self.sent[kept:]
        if not self.disk.has_failed_syncs:
            self.ghosts = []
        self.written = self.flushed = self.published = kept
        self.deleted = {
            topic: min(position, store.max_position) for topic, position in self.deleted.items()
        }
        self.check_queues()
        if not store.is_disk_full:
            # For want of room keys may be missing; they follow when there is some.
            self.check_index()

    def expected_queue(self, queue: Queue) -> list[Sent]:
        """The messages that readers of a queue see, those removed by retention included."""
        topic, queue_id = queue
        start = self.half_deleted.get(topic, self.deleted.get(topic, 0))
        return [
            sent
            for sent in self.sent[: self.published]
            if sent.topic == topic
            and sent.queue_id == queue_id
            and sent.is_queued
            and sent.at.log_position >= start
        ]

    def queues(self) -> Iterator[Queue]:
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                yield topic, queue_id

    def check_queues(self) -> None:
        store = self.store
        for queue in self.queues():
            if queue[0] in self.half_deleted:
                self.check_half_deleted(queue)
                continue
            expected = self.expected_queue(queue)
            assert [sent.at.queue_offset for sent in expected] == list(range(len(expected)))
            low, high = store.min_offset(*queue), store.max_offset(*queue)
            assert high == len(expected), f"{queue}: {high} messages, not {len(expected)}"
            gone = sum(sent.at.log_position < self.min_position for sent in expected)
            back = sum(sent.at.log_position < store.min_position for sent in expected)
            # Segments that came back with a dead machine may be there without their entries.
            assert back <= low <= gone, f"{queue} starts at {low}, not {gone}"
            for offset in range(low, high):
                self.check_message(queue, offset, expected[offset])

    def check_half_deleted(self, queue: Queue) -> None:
        """A deletion that crashed is done or not; if not, what is left must be in order."""
        messages = {sent.at.queue_offset: sent for sent in self.expected_queue(queue)}
        for offset in range(self.store.min_offset(*queue), self.store.max_offset(*queue)):
            self.check_message(queue, offset, messages[offset])

    def try_to_delete(self, topic: str) -> None:
        """Delete a topic; until that worked, nothing much is known about it."""
        if self.store.is_writable:
            self.half_deleted.setdefault(topic, self.deleted.get(topic, 0))
            self.write_staged()
        if self.store.is_writable:
            with contextlib.suppress(StoreError):
                self.store.delete_topic(topic)
                self.deleted[topic] = self.store.max_position
                del self.half_deleted[topic]

    def check_message(self, queue: Queue, offset: int, sent: Sent) -> None:
        entry = self.store.entry(*queue, offset)
        assert entry is not None, f"{queue} has no entry {offset}"
        assert (entry.log_position, entry.size) == (sent.at.log_position, sent.at.size)
        assert entry.tags_code == tag_code(sent.tag)
        found = self.store.read(*queue, offset, max_count=1)
        assert found.status is ReadStatus.FOUND
        assert is_same(found.slices[0], sent)

    def check_index(self) -> None:
        start = max(self.store.min_position, self.min_position)
        for sent in self.sent[: self.published]:
            position = sent.at.log_position
            if (
                not sent.is_indexed
                or sent.topic in self.half_deleted
                or position < max(start, self.deleted.get(sent.topic, 0))
            ):
                continue
            for key in (sent.key, f"k{sent.key}"):
                found = self.store.query(sent.topic, key).slices
                assert [decode_record(record).log_position for record in found] == [position]

    # Rules: writing

    @initialize(seed=st.integers(0, 2**32), crash_after=st.none() | st.integers(0, 12))
    def start(self, seed: int, crash_after: int | None) -> None:
        self.random.seed(seed)
        self.files = FaultyFiles(self.disk, self.random)
        self.files.make_dir("/data")
        self.files.sync_dir("/")
        self.dies_with_machine = bool(self.random.randrange(2))
        with self.may_crash():
            self.open(crash_after)

    def stage(self, topic: str, queue_id: int, size: int, tag: str, sys_flag: int) -> None:
        if topic in self.half_deleted:
            return
        key, body = self.new_message(size)
        draft = Draft(topic, queue_id, body, _properties(key, tag), sys_flag=sys_flag)
        appended = self.try_to(lambda: self.store.append(draft))
        if appended is not None:
            self.sent.append(Sent(appended, topic, queue_id, key, tag, body, sys_flag))

    def new_message(self, size: int) -> tuple[str, bytes]:
        self.count += 1
        return f"{self.count:06d}", bytes([self.count % 251 + 1]) * size

    def try_to(self, action: Callable[[], T]) -> T | None:
        """Do something that the store may refuse; it must then have said why."""
        if self.store.is_writable:
            return action()
        assert self.store.refusal
        with pytest.raises(StoreError):
            action()
        return None

    message = st.fixed_dictionaries(
        {
            "topic": st.sampled_from(TOPICS),
            "queue_id": st.integers(0, QUEUES - 1),
            "size": st.sampled_from((0, 1, 10, 100, 300, 760)),
            "tag": st.sampled_from(TAGS),
            "sys_flag": st.sampled_from((PLAIN, PLAIN, PLAIN, PREPARED, COMMIT, ROLLBACK)),
        }
    )

    @rule(messages=st.lists(message, min_size=1, max_size=6))
    def append(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            self.stage(**message)

    @rule(message=message, count=st.integers(1, 4))
    def append_batch(self, message: dict[str, Any], count: int) -> None:
        topic, queue_id, tag = message["topic"], message["queue_id"], message["tag"]
        if topic in self.half_deleted:
            return
        made = [self.new_message(min(message["size"], 300) // count) for _ in range(count)]
        items = [BatchItem(body, _properties(key, tag)) for key, body in made]
        appended = self.try_to(lambda: self.store.append_batch(Draft(topic, queue_id, b""), items))
        for (key, body), at in zip(made, appended or (), strict=False):
            self.sent.append(Sent(at, topic, queue_id, key, tag, body, PLAIN))

    @rule(message=message, count=st.integers(1, 4))
    def append_batch_body(self, message: dict[str, Any], count: int) -> None:
        topic, queue_id, tag = message["topic"], message["queue_id"], message["tag"]
        if topic in self.half_deleted:
            return
        made = [self.new_message(min(message["size"], 300) // count) for _ in range(count)]
        request = encode_batch([(body, _properties(key, tag), 0) for key, body in made])
        run = self.try_to(
            lambda: self.store.append_batch_body(Draft(topic, queue_id, b""), request)
        )
        if run is None:
            return
        ends = [*run.log_positions[1:], run.last.log_position + run.last.size]
        for index, ((key, body), start) in enumerate(zip(made, run.log_positions, strict=True)):
            at = Appended(
                start, run.queue_offset + index, ends[index] - start, run.last.store_timestamp
            )
            self.sent.append(Sent(at, topic, queue_id, key, tag, body, PLAIN))

    @precondition(lambda self: len(self.sent) < FEW)
    @rule(count=st.integers(15, 25))
    def append_over_many_segments(self, count: int) -> None:
        for number in range(count):
            self.stage(TOPICS[number % 2], 0, 760, "", PLAIN)

    @rule(is_log_only=st.booleans())
    def write(self, is_log_only: bool) -> None:
        with self.may_crash():
            self.write_staged(is_log_only=is_log_only)

    @rule()
    def publish(self) -> None:
        with self.may_crash():
            self.store.publish()

    def write_staged(self, *, is_log_only: bool = False) -> None:
        if not self.store.is_writable:
            return
        staged = self.sent[self.written :]
        try:
            if is_log_only:
                # What is left to do for readers is done by the first one.
                self.store.write_log()
            else:
                self.store.write()
        except StoreError:
            self.ghosts += staged
            del self.sent[self.written :]
            return
        self.written = len(self.sent)
        if not self.is_sync:
            self.published = self.written

    @rule(thorough=st.booleans(), writes_first=st.booleans())
    def flush(self, thorough: bool, writes_first: bool) -> None:
        with self.may_crash():
            if writes_first:
                self.write_staged()
            try:
                position = self.store.flush(thorough=thorough)
            except FlushFailed:
                assert self.store.refusal
                return
            self.flushed = max(
                self.flushed, sum(sent.end <= position for sent in self.sent[: self.written])
            )
            assert self.flushed == self.written
            self.store.mark_flushed(position)
            self.published = self.written

    # Rules: time, reading, removing

    @rule(
        milliseconds=st.sampled_from((1, 600, 2_000, 5_000, 61_000, HOUR_MS + 1, -5_000, -600_000))
    )
    def let_time_pass(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.passed_ms += abs(milliseconds)

    @rule(
        queue=st.tuples(st.sampled_from(TOPICS), st.integers(0, QUEUES - 1)),
        offset=st.integers(0, 40),
        max_count=st.integers(1, 70),
        max_bytes=st.none() | st.integers(1, 2_000),
        tag=st.sampled_from(TAGS),
    )
    def read(
        self, queue: Queue, offset: int, max_count: int, max_bytes: int | None, tag: str
    ) -> None:
        """A read gives messages side by side in the queue, none left out but by its filter."""
        if queue[0] not in self.half_deleted:
            with self.may_crash():
                self.check_read(queue, offset, max_count, max_bytes, tag)

    def check_read(
        self, queue: Queue, offset: int, max_count: int, max_bytes: int | None, tag: str
    ) -> None:
        expected = self.expected_queue(queue)
        codes = {tag_code(tag)} if tag else None
        found = self.store.read(
            *queue, offset, max_count=max_count, max_bytes=max_bytes, matches=codes
        )
        low, high = self.store.min_offset(*queue), self.store.max_offset(*queue)
        assert high == len(expected)
        if not low <= offset < high:
            assert found.count == 0
            assert found.status is not ReadStatus.FOUND
            return
        wanted = [
            sent for sent in expected[offset : found.next_offset] if not tag or sent.tag == tag
        ]
        assert found.next_offset > offset
        assert found.count == len(wanted) <= max_count
        assert b"".join(found.slices) == b"".join(
            bytes(self.store.record_at(sent.at.log_position) or b"") for sent in wanted
        )
        assert found.size == sum(sent.at.size for sent in wanted)
        if max_bytes is not None and found.count > 1:
            assert found.size <= max_bytes

    @rule(used_ratio=st.sampled_from((0.1, 0.1, 0.8, 0.88, 0.95)))
    def clean(self, used_ratio: float) -> None:
        self.disk.used_ratio = used_ratio
        with self.may_crash():
            self.try_to_clean()

    def try_to_clean(self) -> None:
        may_fail = self.files.failing_syncs > 0 or self.store.commit_log.has_failed_sync
        try:
            self.store.clean()
        except StoreError:
            assert may_fail
            assert self.store.refusal
        finally:
            self.min_position = max(self.min_position, self.store.min_position)

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        with self.may_crash():
            self.try_to_delete(topic)

    @rule()
    def look_from_outside(self) -> None:
        """A read-only tool sees a live store whole, and takes neither lock nor note."""
        operations = self.files.operations
        other = FaultyFiles(self.disk, self.random)
        store = MessageStore.open_readonly(ROOT, self.config, files=other)
        records = list(store.commit_log.scan(store.min_position, store.max_position))
        written = [
            sent.at.log_position
            for sent in self.sent[: self.written]
            if sent.at.log_position >= store.min_position
        ]
        assert [record.log_position for record in records] == written
        store.close()
        assert other.operations == 0
        assert self.files.operations == operations

    # Rules: trouble

    @rule(with_machine=st.booleans())
    def crash(self, with_machine: bool) -> None:
        self.dies_with_machine = with_machine
        self.recover_from_crash()

    @rule(with_machine=st.booleans(), operations=st.integers(0, 12))
    def crash_soon(self, with_machine: bool, operations: int) -> None:
        self.dies_with_machine = with_machine
        self.files.crash_after = operations

    @rule()
    def close_and_open(self) -> None:
        with self.may_crash():
            self.write_staged()
            is_healthy = self.store.is_writable
            try:
                self.store.close()
            except FlushFailed:
                is_healthy = False
            if is_healthy and self.files.failing_syncs == 0 and self.disk.free_bytes is None:
                self.flushed = self.published = self.written
                assert self.files.open_files == 0
            self.files.crash_after = None
            self.open()

    @rule(is_short=st.booleans())
    def write_short(self, is_short: bool) -> None:
        self.files.short_writes = is_short

    @precondition(lambda self: self.disk.free_bytes is None)
    @rule(free_bytes=st.integers(0, 3_000) | st.integers(0, 30_000))
    def run_out_of_room(self, free_bytes: int) -> None:
        self.disk.free_bytes = free_bytes

    @precondition(lambda self: self.disk.free_bytes is not None and self.files.failing_syncs == 0)
    @rule()
    def make_room(self) -> None:
        self.disk.free_bytes = None
        self.disk.used_ratio = 0.1
        with self.may_crash():
            was_full = self.store.is_disk_full
            self.try_to_clean()
            if was_full:
                assert self.store.is_writable, self.store.refusal
                self.check_index()

    @rule(count=st.integers(1, 3))
    def let_syncs_fail(self, count: int) -> None:
        self.files.failing_syncs = count

    def teardown(self) -> None:
        if self.is_open:
            self.files.crash_after = None
            self.dies_with_machine = False
            self.disk.free_bytes = None
            self.recover_from_crash()
            self.store.abandon()


class SyncStoreMachine(StoreMachine):
    """The same with sync flush: a message is visible, and acknowledged, once it is on the disk."""

    flush_disk_type = SYNC_FLUSH


SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


@pytest.mark.timeout(0 if IS_LONG else 240)
@pytest.mark.parametrize("machine", [StoreMachine, SyncStoreMachine])
def test_nothing_acknowledged_is_ever_lost(machine: type[StoreMachine]) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)
