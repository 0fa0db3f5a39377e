"""Queues that are gone or point to nothing: `verify` tells, and its advice is true."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.store import Draft, MessageStore, StoreConfig
from penstock.store.consume_queue import UNIT
from penstock.store.tools.repair import repair
from penstock.store.tools.verify import Verification, verify

CONFIG = StoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=10,
    max_index_num=40,
)
MESSAGES = 60
TOPICS = ("orders", "bills", "gone")


def draft(number: int) -> Draft:
    topic = TOPICS[number % 3]
    return Draft(topic, number % 2, b"x" * 100, f"KEYS\x01k{number}\x02".encode(), born_timestamp=1)


def fill(store: MessageStore) -> None:
    for number in range(MESSAGES):
        store.append(draft(number))
    store.write()
    store.flush(thorough=True)
    store.delete_topic("gone")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that was stopped cleanly; one of its topics was deleted."""
    with MessageStore(tmp_path / "store", CONFIG) as store:
        fill(store)
    return tmp_path / "store"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    store = MessageStore(tmp_path / "killed", CONFIG)
    store.open()
    fill(store)
    store.abandon()
    return tmp_path / "killed"


def check(root: Path) -> Verification:
    return verify("store", str(root))


def far_beyond(queue: Path) -> None:
    """Overwrite every entry with one that points to where no log ever was."""
    for path in queue.iterdir():
        data = path.read_bytes()
        units = [
            UNIT.pack(10**15 + at, size, code) if size else UNIT.pack(0, 0, 0)
            for at, (_, size, code) in enumerate(UNIT.iter_unpack(data))
        ]
        path.write_bytes(b"".join(units))


def test_a_deleted_topic_is_no_damage(root: Path, killed: Path) -> None:
    assert check(root).damages == []
    assert check(killed).damages == []


@pytest.mark.parametrize("which", ["root", "killed"])
def test_all_queues_gone_is_damage_of_each_topic(
    which: str, request: pytest.FixtureRequest
) -> None:
    root = request.getfixturevalue(which)
    shutil.rmtree(root / "consumequeue")
    result = check(root)
    assert [Path(damage.file).name for damage in result.damages] == ["bills", "orders"]
    assert "topic bills has no directory for queue 0 (offsets 0 to 9), 1 (offsets 0 to 9)" in (
        result.damages[0].what
    )
    assert "20 messages" in result.damages[0].what
    assert any(f"penstock store repair {root}" in note for note in result.notes)


def test_one_queue_gone_is_named(root: Path) -> None:
    shutil.rmtree(root / "consumequeue/orders/1")
    (damage,) = check(root).damages
    assert damage.file == str(root / "consumequeue/orders/1")
    assert "topic orders has no directory for queue 1 (offsets 0 to 9)" in damage.what


@pytest.mark.parametrize("which", ["root", "killed"])
def test_entries_that_point_far_beyond_the_log_are_damage(
    which: str, request: pytest.FixtureRequest
) -> None:
    root = request.getfixturevalue(which)
    far_beyond(root / "consumequeue/orders/0")
    (damage,) = check(root).damages
    assert Path(damage.file).parent == root / "consumequeue/orders/0"
    assert "entry 0 points to 1000000000000000" in damage.what


def test_entries_beyond_the_log_are_damage_in_stores_of_other_programs_too(root: Path) -> None:
    (root / "penstock.state").unlink()
    far_beyond(root / "consumequeue/orders/0")
    (damage,) = check(root).damages
    assert "where no such record is" in damage.what


def test_without_our_note_a_topic_without_queues_may_be_a_deleted_one(root: Path) -> None:
    (root / "penstock.state").unlink()
    result = check(root)
    assert result.damages == []
    assert any("of topics gone: deleted by another program, or lost" in n for n in result.notes)
    shutil.rmtree(root / "consumequeue")
    assert [Path(one.file).name for one in check(root).damages] == ["bills", "gone", "orders"]


def lose_all(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def lose_one(root: Path) -> None:
    shutil.rmtree(root / "consumequeue/orders/1")


def overwrite(root: Path) -> None:
    far_beyond(root / "consumequeue/orders/0")


@pytest.mark.parametrize("hurt", [lose_all, lose_one, overwrite])
@pytest.mark.parametrize("which", ["root", "killed"])
def test_the_advice_makes_the_store_whole_again(
    which: str, hurt: Callable[[Path], None], request: pytest.FixtureRequest
) -> None:
    root = request.getfixturevalue(which)
    hurt(root)
    assert not check(root).is_whole
    repaired = repair("store", str(root))
    assert (repaired.queues, repaired.queue_entries) == (4, 40)
    with MessageStore(root, CONFIG) as store:
        for topic in ("orders", "bills"):
            assert [store.max_offset(topic, queue) for queue in (0, 1)] == [10, 10]
            assert store.read(topic, 1, 0).count == 10
        assert store.max_offset("gone", 0) == 0
    result = check(root)
    assert result.damages == []
    assert not any("store repair" in note for note in result.notes)


def test_a_topic_deleted_while_the_log_is_walked_is_no_damage(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with MessageStore(root, CONFIG) as store:
        for number in range(MESSAGES):
            store.append(draft(number))
        store.write()
        store.flush(thorough=True)

        def delete(done: int, total: int) -> None:
            if store.max_offset("orders", 0):
                store.delete_topic("orders")
                for number in range(12):
                    store.append(draft(number))
                store.write()
                store.flush(thorough=True)

        assert verify("store", str(root), progress=delete).damages == []
