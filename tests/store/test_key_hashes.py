"""Hashes of keys: one by one, many at once, and as they get into the index."""

from __future__ import annotations

from collections.abc import Sequence
from errno import ENOSPC
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.store import OS_FILES
from penstock.store.files import Buffer
from penstock.store.index_files import IndexShape
from penstock.store.key_hashes import Keyed, TopicHash, hash_keys
from penstock.store.key_index import KeyIndex
from penstock.store.segments import OsFiles, SegmentMaps

NOW = 1_700_000_000_000
LATER = NOW + 5_000


def java_index_hash(text: str) -> int:
    """Java's String.hashCode as its specification says it, then IndexFile's absolute value."""
    value = 0
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + high * 256 + low) & 0xFFFF_FFFF
    if value >= 1 << 31:
        value -= 1 << 32
    value = abs(value)
    return 0 if value == 1 << 31 else value


def keyed(topic: str, *keys: str) -> list[Keyed]:
    topic_hash = TopicHash(topic.encode())
    return [(topic_hash, key.encode(), 1000 + at, NOW) for at, key in enumerate(keys)]


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=80)
ids = st.text("0123456789ABCDEF", min_size=32, max_size=32)


@given(topic=texts, key=st.one_of(texts, ids))
def test_a_key_has_java_s_hash_of_topic_and_key(topic: str, key: str) -> None:
    assert TopicHash(topic.encode()).hash(key.encode()) == java_index_hash(f"{topic}#{key}")


@given(topic=texts, keys=st.lists(st.one_of(ids, st.text("az~", max_size=40)), max_size=200))
def test_many_keys_have_the_hashes_they_have_alone(topic: str, keys: list[str]) -> None:
    assert hash_keys(keyed(topic, *keys)) == [
        (java_index_hash(f"{topic}#{key}"), 1000 + at, NOW) for at, key in enumerate(keys)
    ]


@given(keys=st.lists(texts, max_size=70))
def test_many_keys_of_any_characters_have_them_too(keys: list[str]) -> None:
    assert [hashed for hashed, _, _ in hash_keys(keyed("t", *keys))] == [
        java_index_hash(f"t#{key}") for key in keys
    ]


def test_keys_of_several_topics_are_hashed_together() -> None:
    keys = keyed("a", "1", "2") + keyed("b", "1")
    assert [hashed for hashed, _, _ in hash_keys(keys)] == [
        java_index_hash(text) for text in ("a#1", "a#2", "b#1")
    ]


@given(
    head=st.one_of(st.text("0az~\x7f", max_size=70), texts),
    ends=st.lists(st.text("0az~\x7f", min_size=8, max_size=8), min_size=1, max_size=80),
    others=st.lists(st.tuples(st.integers(0, 79), texts), max_size=2),
)
@example(head="7F0000013A2218B4AAC20000", ends=["0000000A"] * 40, others=[])
@example(head="F" * 48, ends=["\x7f" * 8] * 40, others=[])
def test_ids_of_one_producer_have_the_hashes_they_have_alone(
    head: str, ends: list[str], others: list[tuple[int, str]]
) -> None:
    ids = [head + end for end in ends]
    for at, other in others:
        ids[at % len(ids)] = other
    topics = [TopicHash(b"a"), TopicHash(b"another topic"), TopicHash(b"b")]
    keys: list[Keyed] = [(topics[at % 3], key.encode(), at, NOW) for at, key in enumerate(ids)]
    assert hash_keys(keys) == [(topic.hash(key), at, NOW) for topic, key, at, _ in keys]


@pytest.mark.parametrize("character", ["\x01", "~", "\x7f"])
def test_lanes_hold_the_largest_sums(character: str) -> None:
    """A lane that overflowed would spill into its neighbour."""
    keys = [character * 32] * 64
    assert {hashed for hashed, _, _ in hash_keys(keyed("t", *keys))} == {
        java_index_hash(f"t#{character * 32}")
    }


@given(
    topic=texts,
    head=st.one_of(st.just(""), texts, ids),
    ends=st.integers(1, 70).flatmap(
        lambda length: st.lists(
            st.text("0az~\x7f", min_size=length, max_size=length), min_size=1, max_size=300
        )
    ),
)
def test_keys_of_one_length_have_the_hashes_they_have_alone(
    topic: str, head: str, ends: list[str]
) -> None:
    hashes = TopicHash(topic.encode()).hash_all(head.encode(), [end.encode() for end in ends])
    assert hashes == [java_index_hash(f"{topic}#{head}{end}") for end in ends]


def test_the_smallest_number_has_no_absolute_value_and_counts_as_zero() -> None:
    # Java's hash of this text is -2147483648.
    topic, key = _text_with_the_smallest_hash()
    assert TopicHash(topic.encode()).hash(key.encode()) == 0
    assert hash_keys(keyed(topic, key))[0][0] == 0
    assert TopicHash(topic.encode()).hash_all(b"", [key.encode()] * 2) == [0, 0]


def _text_with_the_smallest_hash() -> tuple[str, str]:
    """Solve for seven digits of base 31: any remainder below 31^7 has a text of small letters."""
    topic = "t"
    start = 0
    for character in f"{topic}#":
        start = 31 * start + ord(character)
    length = 7
    lowest = ord("A")
    base = start * 31**length + sum(lowest * 31**power for power in range(length))
    rest = (0x8000_0000 - base) % (1 << 32)
    digits = []
    for _ in range(length):
        rest, digit = divmod(rest, 31)
        digits.append(chr(lowest + digit))
    assert rest == 0
    return topic, "".join(reversed(digits))


# Into the index


def make_index(directory: Path, units: int = 40) -> KeyIndex:
    return KeyIndex(OS_FILES, str(directory), IndexShape(7, units), SegmentMaps(OS_FILES, 4))


def content(index: KeyIndex) -> list[bytes]:
    index.close()
    return [path.read_bytes() for path in sorted(Path(index.directory).iterdir())]


entry_lists = st.lists(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3000)), min_size=1, max_size=12),
    max_size=12,
)


@pytest.mark.parametrize("by_columns", [False, True])
@given(batches=entry_lists)
def test_keys_entered_at_once_make_the_same_files_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, by_columns: bool, batches: list[list[tuple[int, int]]]
) -> None:
    one_by_one = make_index(tmp_path_factory.mktemp("one"))
    at_once = make_index(tmp_path_factory.mktemp("many"))
    position, timestamp = 0, NOW
    for batch in batches:
        entries: list[tuple[int, int, int]] = []
        for hashed, pause_ms in batch:
            position += 100
            timestamp += pause_ms
            if by_columns:
                # All in one moment.
                timestamp = entries[0][2] if entries else timestamp
            entries.append((hashed, position, timestamp))
            one_by_one.add((hashed,), position, timestamp)
        if by_columns:
            hashes, positions, _ = zip(*entries, strict=True)
            at_once.add_columns(hashes, positions, timestamp)
        else:
            at_once.add_many(entries)
        assert at_once.end_position == one_by_one.end_position
        assert at_once.end_timestamp == one_by_one.end_timestamp
    assert content(at_once) == content(one_by_one)


def test_keys_of_one_slot_are_found_newest_first(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    index.add((3,), 100, NOW)
    much_later = NOW + 600_000
    index.add_many([(3, 200, NOW), (10, 300, NOW), (3, 400, much_later)])
    assert list(index.find(3, 0, much_later)) == [400, 200, 100]
    assert list(index.find(10, 0, much_later)) == [300]
    # The first second of a file may be any time before it: the reader compares.
    assert 400 in list(index.find(3, much_later, much_later))
    assert list(index.find(3, NOW, NOW)) == [200, 100]
    index.close()


def test_keys_for_which_there_is_no_room_change_nothing(tmp_path: Path) -> None:
    class FullDisk(OsFiles):
        is_full = False

        def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
            if self.is_full:
                raise OSError(ENOSPC, "no room")
            return super().write(descriptor, buffers, position)

    disk = FullDisk()
    index = KeyIndex(disk, str(tmp_path), IndexShape(5000, 9000), SegmentMaps(disk, 4))
    index.add((1,), 100, NOW)
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    disk.is_full = True
    hashes, positions = range(4000, 4050), range(4100, 4150)
    with pytest.raises(OSError, match="no room"):
        index.add_columns(hashes, positions, NOW)
    assert path.read_bytes() == before
    assert index.end_position == 100
    disk.is_full = False
    index.add_columns(hashes, positions, NOW)
    assert list(index.find(4049, 0, LATER)) == [4149]
    index.close()


def test_the_header_of_unfinished_keys_names_the_first_message(tmp_path: Path) -> None:
    """After the death of the process recovery dispatches from there, so that none is missing."""
    index = make_index(tmp_path)
    index.add((1,), 100, NOW)
    with pytest.raises(TypeError):
        index.add_many([(2, 200, NOW), (3, 300, NOW), None])  # type: ignore[list-item]
    found = make_index(tmp_path)
    found.load(OS_FILES.list_dir(str(tmp_path)))
    assert found.end_position == 200
    assert list(found.find(2, 0, LATER)) == [200]
    assert list(found.find(1, 0, LATER)) == [100]
    index.close()
