"""Full disks and failed syncs: refused loudly, nothing acknowledged lost, nothing invented."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from penstock.errors import DiskFull, FlushFailed, StoreError
from penstock.protocol.records.codec import decode_record
from penstock.store import Draft, MessageStore, OsFiles, ReadStatus, StoreConfig
from penstock.store.files import Buffer, WritableMap

OpenStore = Callable[..., MessageStore]
MakeDraft = Callable[..., Draft]

SMALL = StoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=10,
    max_index_num=40,
)


class FailingFiles(OsFiles):
    """The real files, where some kinds of files fail to be written or synced."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        self.no_room_in = ""
        self.broken = ""
        self.unsyncable = ""
        self.half_of_a_write = False
        self.uncleared = False

    def _track(self, path: str, descriptor: int) -> int:
        self.paths[descriptor] = path
        return descriptor

    def create(self, path: str, size: int) -> int:
        return self._track(path, super().create(path, size))

    def open(self, path: str, *, write: bool = False) -> int:
        return self._track(path, super().open(path, write=write))

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        path = self.paths[descriptor]
        for part, code in ((self.no_room_in, errno.ENOSPC), (self.broken, errno.EIO)):
            if part and part in path:
                if self.half_of_a_write:
                    data = b"".join(buffers)
                    self.half_of_a_write = False
                    return super().write(descriptor, (data[: len(data) // 2],), position)
                raise OSError(code, "injected")
        return super().write(descriptor, buffers, position)

    def clear(self, descriptor: int, start: int, end: int) -> None:
        if self.uncleared:
            raise OSError(errno.EIO, "injected")
        super().clear(descriptor, start, end)

    def map_writable(self, descriptor: int, size: int) -> WritableMap:
        return FailingMap(self, descriptor, size)

    def sync(self, descriptor: int) -> None:
        if self.unsyncable and self.unsyncable in self.paths[descriptor]:
            raise OSError(errno.EIO, "injected")
        super().sync(descriptor)


class FailingMap:
    """A writable map whose sync fails like that of its file."""

    def __init__(self, files: FailingFiles, descriptor: int, size: int) -> None:
        self._files = files
        self._descriptor = descriptor
        self._real = OsFiles.map_writable(files, descriptor, size)

    @property
    def view(self) -> memoryview:
        return self._real.view

    def sync(self) -> None:
        self._files.sync(self._descriptor)

    def close(self) -> None:
        self._real.close()


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


@pytest.mark.parametrize("half", [True, False])
def test_a_write_without_room_stores_nothing(
    open_store: OpenStore, make_draft: MakeDraft, files: FailingFiles, half: bool
) -> None:
    store = open_store(files=files)
    store.append(make_draft(KEYS="first"))
    store.write()
    end = store.max_position
    files.no_room_in, files.half_of_a_write = "commitlog", half
    for number in range(3):
        store.append(make_draft("orders", 0, KEYS=f"lost-{number}"))
    with pytest.raises(DiskFull, match="injected"):
        store.write()
    assert not store.is_writable
    assert store.max_position == end
    assert store.max_offset("orders", 0) == 1
    store.abandon()
    store = open_store()
    assert len(list(store.commit_log.scan(0))) == 1, "what was refused came to life"
    assert store.query("orders", "lost-0").slices == []


def test_offsets_of_refused_messages_are_given_again(
    open_store: OpenStore, make_draft: MakeDraft, files: FailingFiles
) -> None:
    store = open_store(files=files)
    refused = [store.append(make_draft(body=bytes(1500))) for _ in range(5)]
    files.no_room_in = "00000000000000004096"
    with pytest.raises(DiskFull):
        store.write()
    assert refused[-1].log_position > 4096, "the write went over a segment's end"
    files.no_room_in = ""
    store.clean()
    again = [store.append(make_draft(body=bytes(1500))) for _ in range(5)]
    store.write()
    assert [entry[:2] for entry in again] == [entry[:2] for entry in refused]
    store.abandon()
    assert open_store().max_offset("orders", 0) == 5


def test_a_broken_disk_refuses_one_write_and_takes_the_next(
    open_store: OpenStore, make_draft: MakeDraft, files: FailingFiles
) -> None:
    store = open_store(files=files)
    store.append(make_draft())
    files.broken = "commitlog"
    with pytest.raises(StoreError, match="injected"):
        store.write()
    files.broken = ""
    assert store.append(make_draft()).queue_offset == 0
    store.write()


def test_a_write_that_cannot_be_undone_ends_the_store(
    open_store: OpenStore, make_draft: MakeDraft, files: FailingFiles
) -> None:
    store = open_store(files=files)
    store.append(make_draft())
    store.write()
    files.broken, files.half_of_a_write, files.uncleared = "commitlog", True, True
    store.append(make_draft())
    with pytest.raises(StoreError, match="could not be undone"):
        store.write()
    with pytest.raises(StoreError, match="could not be undone"):
        store.append(make_draft())
    store.close()
    store = open_store()
    assert store.recovery is not None
    assert store.recovery.kind == "crash"
    assert store.max_offset("orders", 0) == 1


@pytest.mark.parametrize("where", ["consumequeue", "index"])
def test_without_room_for_queues_or_index_no_message_is_lost(
    open_store: OpenStore, make_draft: MakeDraft, files: FailingFiles, where: str
) -> None:
    config = replace(
        SMALL, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=8000
    )
    store = open_store(config, files=files)
    files.no_room_in = where
    count = 0
    while store.is_writable:
        store.append(make_draft(KEYS=f"k-{count}"))
        store.write()
        count += 1
    assert 0 < count < 1000
    with pytest.raises(DiskFull):
        store.append(make_draft())
    # Acknowledged: there for readers at once, and in the index when there is room again.
    assert store.max_offset("orders", 0) == count
    assert store.read("orders", 0, count - 1).status is ReadStatus.FOUND
    files.no_room_in = ""
    store.clean()
    assert store.is_writable
    store.append(make_draft(KEYS=f"k-{count}"))
    store.write()
    store.close()
    store = open_store(config)
    for number in range(count + 1):
        (hit,) = store.query("orders", f"k-{number}").slices
        assert decode_record(hit).queue_offset == number


@pytest.mark.parametrize("where", ["consumequeue", "index"])
def test_without_room_for_what_was_left_to_publish_no_message_is_lost(
    open_store: OpenStore, make_draft: MakeDraft, files: FailingFiles, where: str
) -> None:
    config = replace(
        SMALL, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=8000
    )
    store = open_store(config, files=files)
    for number in range(300):
        store.append(make_draft(KEYS=f"k-{number}"))
    files.no_room_in = where
    assert store.write_log()
    assert store.is_writable
    store.publish()
    assert store.is_disk_full
    with pytest.raises(DiskFull):
        store.append(make_draft())
    assert store.max_offset("orders", 0) == 300
    files.no_room_in = ""
    store.clean()
    assert store.is_writable
    for number in (0, 299):
        (hit,) = store.query("orders", f"k-{number}").slices
        assert decode_record(hit).queue_offset == number


@pytest.mark.parametrize("where", ["commitlog", "consumequeue", "index"])
def test_a_failed_sync_ends_all_writing(
    open_store: OpenStore, make_draft: MakeDraft, files: FailingFiles, where: str
) -> None:
    store = open_store(files=files)
    store.append(make_draft(KEYS="k"))
    store.write()
    store.flush()
    store.append(make_draft(KEYS="l"))
    store.write()
    files.unsyncable = where
    with pytest.raises(FlushFailed, match="injected"):
        store.flush(thorough=True)
    files.unsyncable = ""
    with pytest.raises(FlushFailed):
        store.flush()
    with pytest.raises(FlushFailed, match="restart the broker"):
        store.append(make_draft())
    assert not store.is_writable
    assert store.read("orders", 0, 0).count == 2, "reading goes on"
    store.close()
    store = open_store()
    assert store.recovery is not None
    assert store.recovery.kind == "crash", "a failed flush is no clean stop"
    assert store.max_offset("orders", 0) == 2
    assert store.is_writable


def test_what_a_failed_sync_may_have_dropped_is_written_again(
    open_store: OpenStore, make_draft: MakeDraft, files: FailingFiles
) -> None:
    store = open_store(files=files)
    size = store.append(make_draft()).size
    store.write()
    files.unsyncable = "commitlog"
    with pytest.raises(FlushFailed):
        store.flush()
    store.abandon()

    class Watching(OsFiles):
        writes: list[int] = []  # noqa: RUF012 - one test's own

        def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
            self.writes.append(sum(map(len, buffers)))
            return super().write(descriptor, buffers, position)

    watching = Watching()
    open_store(files=watching)
    assert size in watching.writes, "the segment was synced, but its pages may be called clean"


def test_a_store_opens_for_readers_on_a_disk_without_room(
    open_store: OpenStore, make_draft: MakeDraft, files: FailingFiles
) -> None:
    store = open_store()
    store.append(make_draft())
    store.close()
    files.no_room_in = "penstock.state"
    store = open_store(files=files)
    assert store.is_disk_full
    assert store.read("orders", 0, 0).count == 1
    with pytest.raises(DiskFull):
        store.append(make_draft())
    files.no_room_in = ""
    store.clean()
    assert store.append(make_draft()).queue_offset == 1
    store.write()
    store.abandon()
    assert open_store().max_offset("orders", 0) == 2


def test_short_writes_are_completed(open_store: OpenStore, make_draft: MakeDraft) -> None:
    class Short(OsFiles):
        def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
            data = b"".join(buffers)
            return super().write(descriptor, (data[: max(1, len(data) // 3)],), position)

    store = open_store(files=Short())
    for number in range(5):
        store.append(make_draft(body=bytes([number]) * 100))
    store.write()
    store.close()
    store = open_store()
    assert store.read("orders", 0, 0).count == 5
