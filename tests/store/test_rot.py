"""Bytes that change on the disk under a running store: what precedes them is delivered."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.store.test_recovering import MakeDraft, OpenStore, log_file, overwrite

from penstock.errors import StoreDamaged
from penstock.protocol.records.codec import decode_records
from penstock.store import MessageStore, ReadStatus, StoreConfig
from penstock.store.consume_queue import UNIT
from penstock.store.soundness import is_sound
from penstock.store.tools.verify import verify

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 16,
    mapped_file_size_consume_queue=2000,
    max_hash_slot_num=10,
    max_index_num=400,
)
COUNT = 60
TAG_CODE = ord("t")
HURT = 50
"""The message that is damaged; those before it fit into one read."""


@pytest.fixture(params=["this run", "an earlier run"])
def store(
    request: pytest.FixtureRequest, open_store: OpenStore, make_draft: MakeDraft
) -> MessageStore:
    store = open_store(CONFIG)
    for number in range(COUNT):
        store.append(make_draft(body=b"%d" % number, KEYS=f"k{number}", TAGS="t"))
    store.write()
    if request.param == "an earlier run":
        store.close()
        store = open_store(CONFIG)
    store.flush(thorough=True)
    return store


def entry_of(store: MessageStore, offset: int) -> tuple[int, int]:
    entry = store.entry("orders", 0, offset)
    assert entry is not None
    return entry.log_position, entry.size


def hurt_size(store: MessageStore, position: int) -> None:
    overwrite(log_file(store), position, b"\x7f")


def hurt_magic(store: MessageStore, position: int) -> None:
    overwrite(log_file(store), position + 4, b"\0")


def hurt_body_length(store: MessageStore, position: int) -> None:
    overwrite(log_file(store), position + 84, struct.pack(">i", 3))


def hurt_topic_length(store: MessageStore, position: int) -> None:
    overwrite(log_file(store), position + 90, b"\7")


def hurt_entry(store: MessageStore, position: int) -> None:
    path = Path(store.root) / "consumequeue/orders/0/00000000000000000000"
    overwrite(path, HURT * 20, UNIT.pack(position + 5, 200, TAG_CODE))


def hurt_entry_size(store: MessageStore, position: int) -> None:
    path = Path(store.root) / "consumequeue/orders/0/00000000000000000000"
    overwrite(path, HURT * 20, UNIT.pack(position, 0, TAG_CODE))


def hurt_entry_far(store: MessageStore, position: int) -> None:
    path = Path(store.root) / "consumequeue/orders/0/00000000000000000000"
    overwrite(path, HURT * 20, UNIT.pack(1 << 50, 200, TAG_CODE))


LOG = (hurt_size, hurt_magic, hurt_body_length, hurt_topic_length)
QUEUE = (hurt_entry, hurt_entry_size, hurt_entry_far)
Hurt = Callable[[MessageStore, int], None]


@pytest.mark.parametrize("hurt", [*LOG, *QUEUE])
@pytest.mark.parametrize("way", ["pull", "bulk", "tag", "question"])
def test_what_precedes_the_damage_is_delivered_and_the_damage_named(
    store: MessageStore, hurt: Hurt, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    hurt(store, entry_of(store, HURT)[0])
    store.write()
    store.queue_table.drop_persisted()
    more = {
        "pull": {"max_count": 32},
        "bulk": {"max_count": 1000, "max_bytes": 1 << 20},
        "tag": {"max_count": 32, "matches": {TAG_CODE}},
        "question": {"max_count": 32, "matches": lambda code, record: True},
    }[way]
    bodies: list[bytes] = []

    def read_on() -> None:
        while True:
            result = store.read("orders", 0, len(bodies), **more)  # type: ignore[arg-type]
            assert result.status is ReadStatus.FOUND
            bodies.extend(delivered(result.slices))
            assert result.next_offset >= len(bodies)

    with pytest.raises(StoreDamaged, match=f"message {HURT} of topic 'orders', queue 0, cannot"):
        read_on()
    assert bodies[:HURT] == [b"%d" % number for number in range(HURT)]
    assert caplog.text.count("store is damaged") == 1, "not once for each pull"
    assert [text.partition(",")[0] for text in store.damages] == [
        f"message {HURT} of topic 'orders'"
    ]
    # Past the damage everything is as it was.
    rest = store.read("orders", 0, HURT + 1, **more)  # type: ignore[arg-type]
    assert delivered(rest.slices) == [b"%d" % number for number in range(HURT + 1, COUNT)]


def delivered(slices: list[memoryview]) -> list[bytes]:
    """What a client makes of an answer: it stops at the first record that is none."""
    data = b"".join(slices)
    bodies: list[bytes] = []
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        view = memoryview(data)
        (position,) = struct.unpack_from(">q", data, at + 28)
        if not is_sound(view, at, size, position):
            break
        bodies += [record.body for record in decode_records(data[at : at + size])]
        at += size
    return bodies


@pytest.mark.parametrize("hurt", [*LOG, *QUEUE])
def test_verify_of_a_running_store_reports_it(store: MessageStore, hurt: Hurt) -> None:
    assert verify("store", store.root).damages == []
    hurt(store, entry_of(store, HURT)[0])
    assert verify("store", store.root).damages != []


def test_a_queue_that_was_overwritten_at_its_start_is_reported(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(CONFIG)
    for _ in range(COUNT):
        store.append(make_draft())
    store.write()
    store.close()
    path = Path(store.root) / "consumequeue/orders/0/00000000000000000000"
    overwrite(path, 0, b"\xff" * 23)
    store = open_store(CONFIG)
    assert verify("store", store.root).damages != []
    with pytest.raises(StoreDamaged, match="penstock store repair"):
        store.read("orders", 0, 0)
    assert store.read("orders", 0, 2).count == 32


def test_a_whole_record_is_sound_and_one_with_another_field_is_not(
    open_store: OpenStore, make_draft: MakeDraft
) -> None:
    store = open_store(CONFIG)
    drafts = [
        make_draft(),
        make_draft("%RETRY%" + "t" * 130, body=b"x" * 7, KEYS="k"),
        make_draft(body=b""),
    ]
    for draft in drafts:
        at = store.append(draft)
        store.write()
        record = store.record_at(at.log_position)
        assert record is not None
        assert is_sound(record, 0, at.size, at.log_position)
        assert not is_sound(record, 0, at.size, at.log_position + 1)
        assert not is_sound(record, 0, at.size - 1, at.log_position)
        assert not is_sound(record[:-1], 0, at.size, at.log_position)
        lengths = (0, 4, 28, 84, 88 + len(draft.body))
        for place in lengths:
            for bit in range(8):
                hurt = bytearray(record)
                hurt[place] ^= 1 << bit
                assert not is_sound(memoryview(hurt), 0, at.size, at.log_position)
