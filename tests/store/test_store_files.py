"""The files themselves: segments, maps, checkpoint and note, index files, settings."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, StoreDamaged
from penstock.runtime.config import settings
from penstock.store import OS_FILES, Draft, MessageStore, StoreConfig
from penstock.store.checkpoint import (
    Checkpoint,
    CheckpointFile,
    FlushedNote,
    load_checkpoint,
    load_flushed,
)
from penstock.store.files import DiskSpace, FileEntry
from penstock.store.index_files import IndexShape, find_index_files, index_shape
from penstock.store.key_index import KeyIndex
from penstock.store.note import StoreState, load_state, save_state
from penstock.store.segments import (
    SegmentMaps,
    find_segments,
    rewrite,
    segment_path,
    write_fully,
)

OpenStore = Callable[..., MessageStore]
MakeDraft = Callable[..., Draft]


def make_segments(directory: Path, *sizes: int, start: int = 0, step: int = 100) -> None:
    directory.mkdir(exist_ok=True)
    for number, size in enumerate(sizes):
        (directory / f"{start + number * step:020d}").write_bytes(bytes(size))


class TestSegments:
    def test_none_are_found_in_a_directory_that_is_not_there(self, tmp_path: Path) -> None:
        found = find_segments(OS_FILES, str(tmp_path / "none"), size=None, default=77)
        assert found == ([], 77, [])

    def test_their_size_is_that_of_the_files(self, tmp_path: Path) -> None:
        make_segments(tmp_path, 100, 100, start=300)
        assert find_segments(OS_FILES, str(tmp_path), size=None) == ([300, 400], 100, [])

    def test_an_empty_last_file_is_set_aside(self, tmp_path: Path) -> None:
        make_segments(tmp_path, 100, 0)
        found = find_segments(OS_FILES, str(tmp_path), size=None)
        assert found == ([0], 100, [segment_path(str(tmp_path), 100)])

    @pytest.mark.parametrize(
        ("sizes", "message"),
        [
            ((100, 50, 100), "00000000000000000100 has 50 bytes; expected 100"),
            ((100, 100, 50), "00000000000000000200 has 50 bytes"),
            ((100, 0, 100), "00000000000000000100 has 0 bytes"),
        ],
    )
    def test_one_of_another_size_is_refused(
        self, tmp_path: Path, sizes: tuple[int, ...], message: str
    ) -> None:
        make_segments(tmp_path, *sizes)
        with pytest.raises(StoreDamaged, match=message):
            find_segments(OS_FILES, str(tmp_path), size=None)

    def test_a_gap_is_refused_by_position(self, tmp_path: Path) -> None:
        make_segments(tmp_path, 100, 100, step=200)
        with pytest.raises(StoreDamaged, match="no segment at position 100 but one at 200"):
            find_segments(OS_FILES, str(tmp_path), size=None)

    def test_names_must_fit_the_size(self, tmp_path: Path) -> None:
        make_segments(tmp_path, 100, start=50)
        with pytest.raises(StoreDamaged, match="no segment at position"):
            find_segments(OS_FILES, str(tmp_path), size=None)

    @pytest.mark.parametrize("sizes", [(100, 0, 100), (100, 30, 100)])
    def test_after_a_crash_what_follows_a_gap_is_stray(
        self, tmp_path: Path, sizes: tuple[int, ...]
    ) -> None:
        make_segments(tmp_path, *sizes)
        found = find_segments(OS_FILES, str(tmp_path), size=100, after_crash=True)
        assert found.bases == [0]
        assert sorted(found.stray) == [segment_path(str(tmp_path), base) for base in (100, 200)]

    def test_directories_beside_them_do_not_matter(self, tmp_path: Path) -> None:
        make_segments(tmp_path, 100)
        (tmp_path / "lost+found").mkdir()
        assert find_segments(OS_FILES, str(tmp_path), size=None).bases == [0]


class TestOsFiles:
    def test_a_new_file_has_its_size_and_takes_no_room(self, tmp_path: Path) -> None:
        path = str(tmp_path / "file")
        descriptor = OS_FILES.create(path, 1 << 30)
        try:
            assert (tmp_path / "file").stat().st_blocks == 0
            with pytest.raises(FileExistsError):
                OS_FILES.create(path, 10)
        finally:
            OS_FILES.close(descriptor)

    def test_clearing_leaves_holes_alone(self, tmp_path: Path) -> None:
        descriptor = OS_FILES.create(str(tmp_path / "file"), 1 << 26)
        try:
            for position in (0, 5_000_000, 60_000_000):
                OS_FILES.write(descriptor, (b"x" * 9000,), position)
            OS_FILES.clear(descriptor, 100, 60_005_000)
            assert OS_FILES.read(descriptor, 200, 0) == b"x" * 100 + bytes(100)
            assert OS_FILES.read(descriptor, 9000, 5_000_000) == bytes(9000)
            assert OS_FILES.read(descriptor, 9000, 60_000_000) == bytes(5000) + b"x" * 4000
        finally:
            OS_FILES.close(descriptor)
        assert (tmp_path / "file").stat().st_blocks * 512 < 1_000_000

    def test_a_map_sees_writes_at_once_and_outlives_the_file(self, tmp_path: Path) -> None:
        descriptor = OS_FILES.create(str(tmp_path / "file"), 8192)
        view = OS_FILES.map(descriptor, 8192)
        part = view[10:15]
        OS_FILES.write(descriptor, (b"he", b"llo"), 10)
        OS_FILES.close(descriptor)
        OS_FILES.remove(str(tmp_path / "file"))
        del view
        assert bytes(part) == b"hello"
        assert part.readonly

    def test_more_buffers_than_one_call_takes_are_joined(self, tmp_path: Path) -> None:
        descriptor = OS_FILES.create(str(tmp_path / "file"), 10_000)
        try:
            buffers = [bytes([number % 256]) for number in range(5000)]
            assert OS_FILES.write(descriptor, buffers, 0) == 5000
            assert OS_FILES.read(descriptor, 5000, 0) == b"".join(buffers)
        finally:
            OS_FILES.close(descriptor)

    def test_a_write_that_makes_no_progress_is_an_error(self) -> None:
        class Stuck(type(OS_FILES)):  # type: ignore[misc]  # the class of the real layer
            def write(self, *_: object) -> int:
                return 0

        with pytest.raises(OSError, match="wrote 0"):
            write_fully(Stuck(), 0, (b"abc",), 0, 3)

    def test_rewriting_skips_what_was_never_written(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        descriptor = OS_FILES.create(str(path), 8 << 20)
        OS_FILES.write(descriptor, (b"data",), 5 << 20)
        OS_FILES.close(descriptor)
        rewrite(OS_FILES, str(path), 0, 8 << 20)
        assert path.stat().st_blocks * 512 <= 2 << 20
        assert path.read_bytes()[5 << 20 :][:4] == b"data"

    def test_room_on_the_disk(self, tmp_path: Path) -> None:
        space = OS_FILES.disk_space(str(tmp_path))
        assert 0 < space.available < space.total
        assert 0 < space.used_ratio < 1
        assert DiskSpace(0, 0).used_ratio == 0

    def test_what_is_not_there(self, tmp_path: Path) -> None:
        assert OS_FILES.list_dir(str(tmp_path / "none")) == []
        assert OS_FILES.stat(str(tmp_path / "none")) is None
        OS_FILES.remove(str(tmp_path / "none"))
        assert SegmentMaps(OS_FILES, 2).view(str(tmp_path / "none"), 10) is None

    def test_a_file_too_short_to_be_mapped_is_damage(self, tmp_path: Path) -> None:
        (tmp_path / "short").write_bytes(b"x")
        with pytest.raises(StoreDamaged, match="cannot be mapped; expected 10 bytes"):
            SegmentMaps(OS_FILES, 2).view(str(tmp_path / "short"), 10)


def test_rewriting_a_file_leaves_its_holes(tmp_path: Path) -> None:
    """An index of a megabyte took twenty after any kill, or could not be opened at all."""
    path = str(tmp_path / "file")
    descriptor = OS_FILES.create(path, 64 << 20)
    for position in range(0, 64 << 20, 1 << 20):
        OS_FILES.write(descriptor, (b"x" * 10,), position + 5000)
    OS_FILES.close(descriptor)
    before = (tmp_path / "file").stat().st_blocks
    content = (tmp_path / "file").read_bytes()
    rewrite(OS_FILES, path, 0, 64 << 20)
    assert (tmp_path / "file").stat().st_blocks < before + 100
    assert (tmp_path / "file").read_bytes() == content


class TestCheckpoint:
    def test_is_one_page_of_big_endian_numbers(self, tmp_path: Path) -> None:
        file = CheckpointFile(OS_FILES, str(tmp_path))
        file.save(Checkpoint(1, 2, 3, 0, 0, 6), FlushedNote(4, 1 << 40))
        file.close()
        page = (tmp_path / "checkpoint").read_bytes()
        assert len(page) == 4096
        assert struct.unpack_from(">6q", page) == (1, 2, 3, 0, 0, 6)
        assert not any(page[48:2048] + page[2072:]), "RocketMQ may use the first half one day"
        assert load_checkpoint(OS_FILES, str(tmp_path)) == Checkpoint(1, 2, 3, 0, 0, 6)
        assert load_flushed(OS_FILES, str(tmp_path)) == (4, 1 << 40)

    def test_our_half_without_its_checksum_counts_for_nothing(self, tmp_path: Path) -> None:
        assert load_flushed(OS_FILES, str(tmp_path)) is None
        file = CheckpointFile(OS_FILES, str(tmp_path))
        file.save(Checkpoint(), FlushedNote(4, 1 << 40))
        file.close()
        page = (tmp_path / "checkpoint").read_bytes()
        for bit in range(24 * 8):
            flipped = bytearray(page)
            flipped[2048 + bit // 8] ^= 1 << bit % 8
            (tmp_path / "checkpoint").write_bytes(flipped)
            assert load_flushed(OS_FILES, str(tmp_path)) is None
        (tmp_path / "checkpoint").write_bytes(page[:2060])
        assert load_flushed(OS_FILES, str(tmp_path)) is None

    def test_recovery_starts_three_seconds_before_the_older_of_log_and_queues(self) -> None:
        assert Checkpoint(10_000, 9_000, 1).recovery_timestamp == 6_000
        assert Checkpoint(10_000, 2_000).recovery_timestamp == 0

    @pytest.mark.parametrize("content", [b"", b"x" * 47])
    def test_one_that_is_too_short_vouches_for_nothing(
        self, tmp_path: Path, content: bytes
    ) -> None:
        (tmp_path / "checkpoint").write_bytes(content)
        assert load_checkpoint(OS_FILES, str(tmp_path)) == Checkpoint()
        file = CheckpointFile(OS_FILES, str(tmp_path))
        file.close()
        assert (tmp_path / "checkpoint").stat().st_size == 4096

    @given(content=st.binary(min_size=48, max_size=60))
    def test_no_content_is_an_error(
        self, tmp_path_factory: pytest.TempPathFactory, content: bytes
    ) -> None:
        root = tmp_path_factory.mktemp("page")
        (root / "checkpoint").write_bytes(content)
        assert load_checkpoint(OS_FILES, str(root)).recovery_timestamp >= 0


class TestNote:
    def test_comes_back_as_it_was(self, tmp_path: Path) -> None:
        note = StoreState(
            clean=True, boot_id="b", sizes={"a": 1}, log_end=5, deleted_topics={"t": 9}
        )
        save_state(OS_FILES, str(tmp_path), note)
        assert load_state(OS_FILES, str(tmp_path)) == note
        assert [path.name for path in tmp_path.iterdir()] == ["penstock.state"]

    @given(
        name=st.sampled_from([item.name for item in dataclasses.fields(StoreState)]),
        value=st.none() | st.text(max_size=3) | st.floats() | st.lists(st.text(), max_size=2),
    )
    def test_one_with_anything_else_in_it_counts_for_nothing(
        self, tmp_path_factory: pytest.TempPathFactory, name: str, value: object
    ) -> None:
        root = tmp_path_factory.mktemp("note")
        raw = {"version": 1, **dataclasses.asdict(StoreState())}
        is_fine = type(value) is type(raw[name]) and value in ([], raw[name])
        raw[name] = value
        (root / "penstock.state").write_text(json.dumps(raw))
        loaded = load_state(OS_FILES, str(root))
        assert loaded is None or is_fine or isinstance(value, str)

    def test_one_with_a_flipped_bit_counts_for_nothing(self, tmp_path: Path) -> None:
        note = StoreState(clean=True, boot_id="b", sizes={"a": 1}, log_end=5, flushed_position=77)
        save_state(OS_FILES, str(tmp_path), note)
        data = (tmp_path / "penstock.state").read_bytes()
        for bit in range(0, len(data) * 8, 5):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            (tmp_path / "penstock.state").write_bytes(flipped)
            # A space for a line end, say, changes nothing.
            assert load_state(OS_FILES, str(tmp_path)) in (None, note)

    def test_one_of_the_first_version_had_no_checksum(self, tmp_path: Path) -> None:
        raw = {"version": 1, **dataclasses.asdict(StoreState(clean=True, log_end=5))}
        del raw["run"], raw["index_files"], raw["queue_ends"], raw["has_machine_died"]
        (tmp_path / "penstock.state").write_text(json.dumps(raw))
        assert load_state(OS_FILES, str(tmp_path)) == StoreState(clean=True, log_end=5)

    def test_another_version_counts_for_nothing(self, tmp_path: Path) -> None:
        raw = {"version": 3, **dataclasses.asdict(StoreState())}
        (tmp_path / "penstock.state").write_text(json.dumps(raw))
        assert load_state(OS_FILES, str(tmp_path)) is None

    def test_nesting_without_end_counts_for_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "penstock.state").write_text("[" * 100_000)
        assert load_state(OS_FILES, str(tmp_path)) is None


def new_index(tmp_path: Path, slots: int = 10, units: int = 40) -> KeyIndex:
    return KeyIndex(
        OS_FILES, str(tmp_path / "index"), IndexShape(slots, units), SegmentMaps(OS_FILES, 4)
    )


class TestIndexFiles:
    def test_a_full_file_is_followed_by_another(self, tmp_path: Path) -> None:
        index = new_index(tmp_path)
        for number in range(100):
            index.add([number], number * 1000, 1_700_000_000_000 + number)
        assert len(index.headers) == 3
        assert [header.next_unit for header in list(index.headers.values())[:2]] == [40, 40]
        assert index.newest_full == list(index.headers)[1]
        for number in range(100):
            assert list(index.find(number, 0, 1 << 62)) == [number * 1000]
        index.close()

    def test_names_are_times_and_never_the_same(self, tmp_path: Path) -> None:
        index = new_index(tmp_path, units=3)
        for number in range(9):
            index.add([number], number, 1_700_000_000_000)
        names = list(index.headers)
        assert len(set(names)) == len(names) == 5
        assert names == sorted(names)
        assert all(len(name) == 17 and name.isdigit() for name in names)
        index.close()

    def test_a_loaded_index_goes_on_where_it_ended(self, tmp_path: Path) -> None:
        index = new_index(tmp_path)
        index.add([1, 2], 500, 1_700_000_000_000)
        index.close()
        index = new_index(tmp_path)
        index.load(find_index_files(OS_FILES, index.directory)[0])
        assert index.end_position == 500
        index.add([1], 900, 1_700_000_001_000)
        assert list(index.find(1, 0, 1 << 62)) == [900, 500]
        assert len(index.headers) == 1
        index.close()

    def test_a_chain_that_bites_its_tail_ends(self, tmp_path: Path) -> None:
        index = new_index(tmp_path)
        index.add([1], 500, 1_700_000_000_000)
        index.add([1], 600, 1_700_000_000_000)
        index.close()
        (name,) = index.headers
        path = tmp_path / "index" / name
        content = bytearray(path.read_bytes())
        # Let the first unit name the second as its predecessor.
        struct.pack_into(">i", content, 40 + 10 * 4 + 20 + 16, 2)
        path.write_bytes(content)
        damaged = new_index(tmp_path)
        damaged.load(find_index_files(OS_FILES, damaged.directory)[0])
        assert list(damaged.find(1, 0, 1 << 62)) == [600, 500]

    def test_a_header_that_cannot_be_is_damage(self, tmp_path: Path) -> None:
        index = new_index(tmp_path)
        index.add([1], 500, 1_700_000_000_000)
        index.close()
        (name,) = index.headers
        path = tmp_path / "index" / name
        with path.open("r+b") as file:
            file.seek(36)
            file.write(struct.pack(">i", 41))
        with pytest.raises(StoreDamaged, match=f"{name} states 41 keys"):
            new_index(tmp_path).load(find_index_files(OS_FILES, str(path.parent))[0])

    def test_files_of_deleted_messages_go_but_not_the_newest(self, tmp_path: Path) -> None:
        index = new_index(tmp_path)
        for number in range(100):
            index.add([number], number * 1000, 1_700_000_000_000 + number)
        assert len(index.retire_before(50_000)) == 1
        assert len(index.retire_before(1 << 60)) == 1
        assert len(index.headers) == 1
        index.close()

    def test_what_is_no_index_file_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "20231114221320000").write_bytes(b"")
        (tmp_path / "readme").write_bytes(b"")
        entries, others = find_index_files(OS_FILES, str(tmp_path))
        assert ([entry.name for entry in entries], others) == (["20231114221320000"], ["readme"])

    def test_the_shape_is_read_off_the_files(self) -> None:
        default = IndexShape(5_000_000, 20_000_000)
        assert default.file_bytes == 420_000_040

        def shape(size: int, slots: int | None = None, units: int | None = None) -> IndexShape:
            entry = FileEntry("20231114221320000", size, False, 0)
            return index_shape([entry], "index", slots, units, default)

        assert shape(420_000_040) == default
        assert shape(8440) == (100, 400)
        assert shape(40 + 4 * 7 + 20 * 9, 7, 9) == (7, 9)
        with pytest.raises(ConfigError, match="maxHashSlotNum and maxIndexNum"):
            shape(8440, 7, 9)
        with pytest.raises(StoreDamaged, match="has 8441 bytes"):
            shape(8441)


class TestSettings:
    def test_defaults_are_rocketmqs(self, tmp_path: Path) -> None:
        with MessageStore(tmp_path / "store") as store:
            assert store.commit_log.segment_size == 1 << 30
            assert store.queue_table.segment_bytes == 6_000_000
            assert store.key_index is not None
            assert store.key_index.shape == (5_000_000, 20_000_000)

    @pytest.mark.parametrize(
        ("key", "config"),
        [
            ("flushDiskType", lambda: StoreConfig(flush_disk_type="SOMETIMES")),
            ("ConsumeQueue", lambda: StoreConfig(mapped_file_size_consume_queue=30)),
            ("CommitLog", lambda: StoreConfig(mapped_file_size_commit_log=0)),
            ("maxIndexNum", lambda: StoreConfig(max_index_num=1)),
            ("fileReservedTime", lambda: StoreConfig(file_reserved_hours=-1)),
        ],
    )
    def test_what_cannot_be_is_refused_by_key(
        self, key: str, config: Callable[[], StoreConfig]
    ) -> None:
        with pytest.raises(ConfigError, match=key):
            config()

    def test_every_setting_of_rocketmq_has_its_key(self) -> None:
        known = [item.key for item in settings(StoreConfig)]
        assert len(set(known)) == len(known)
        assert "mappedFileSizeCommitLog" in known


@pytest.mark.spec("S53")
def test_a_queue_lies_under_its_topic_and_number_in_units_of_twenty_bytes(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    appended = [store.append(make_draft("orders", 3, bytes(number), TAGS="a")) for number in (5, 9)]
    store.close()
    content = (Path(store.root) / "consumequeue/orders/3/00000000000000000000").read_bytes()
    assert len(content) == 200
    units = list(struct.iter_unpack(">qiq", content))
    assert units[:2] == [(entry.log_position, entry.size, 97) for entry in appended]
    assert set(units[2:]) == {(0, 0, 0)}


def test_a_queue_that_starts_late_is_filled_as_rocketmq_fills_it(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store()
    for _ in range(40):
        store.append(make_draft(body=bytes(900)))
    store.close()
    root = Path(store.root)
    # The log starts at queue offset 13 now, and the queues were deleted by hand.
    for path in sorted((root / "commitlog").iterdir())[:3]:
        path.unlink()
    for name in ("consumequeue", "index"):
        for path in sorted((root / name).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    (root / "penstock.state").unlink()
    store = open_store()
    assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (12, 40)
    store.close()
    content = (root / "consumequeue/orders/0/00000000000000000200").read_bytes()
    units = list(struct.iter_unpack(">qiq", content))
    assert units[:2] == [(0, 0x7FFF_FFFF, 0)] * 2
    assert units[2][0] == 3 * 4096
    store = open_store()
    assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (12, 40)
    assert store.read("orders", 0, 0).next_offset == 12
