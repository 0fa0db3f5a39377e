"""Tools that only read: what they find in whole, live, crashed, foreign and damaged stores."""

from __future__ import annotations

import base64
import hashlib
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.protocol.records.sys_flags import SysFlag
from penstock.store import Draft, MessageStore, StoreConfig
from penstock.store.consume_queue import UNIT, UNIT_BYTES
from penstock.store.index_files import HEADER_BYTES, SLOT_BYTES
from penstock.store.tools import (
    Exporter,
    ExportRange,
    Verification,
    find_stores,
    survey,
    verify,
)

VERSIONS = ("4.9.7", "5.5.0", "5.5.0-killed")
# The 4.9.7 log holds two records of a topic that no client can pull, hence not in the manifest.
UNLISTED = {"4.9.7": 2, "5.5.0": 0, "5.5.0-killed": 0}
SMALL = StoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=10,
    max_index_num=40,
)
MESSAGES = 60


def properties(number: int) -> bytes:
    return f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01k{number} all\x02TAGS\x01red\x02".encode()


def draft(number: int, topic: str = "orders") -> Draft:
    body = f"message {number} ".encode() * 10
    return Draft(topic, number % 2, body, properties(number), born_timestamp=1)


def fill(root: Path, count: int = MESSAGES, *, start: int = 0) -> None:
    """A store that was stopped cleanly."""
    with MessageStore(root, SMALL) as store:
        for number in range(start, start + count):
            store.append(draft(number))
        store.write()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "store")
    return tmp_path / "store"


def check(root: Path) -> Verification:
    return verify("store", str(root))


def patch(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def segments(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def export(root: Path, **part: Any) -> list[dict[str, Any]]:
    exporter = Exporter(str(root), ExportRange(**part))
    messages = list(exporter)
    assert exporter.damages == []
    return messages


def fingerprint(directory: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha1(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


# Finding


def test_a_store_is_found_by_itself_and_through_the_data_directory(tmp_path: Path) -> None:
    for name in ("broker-a", "broker-b"):
        fill(tmp_path / "data" / name, 1)
    (tmp_path / "data" / "namesrv").mkdir()
    assert [store.name for store in find_stores(tmp_path / "data")] == ["broker-a", "broker-b"]
    (alone,) = find_stores(tmp_path / "data" / "broker-b")
    assert (alone.name, alone.root) == ("broker-b", str(tmp_path / "data" / "broker-b"))


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir, Path.touch])
def test_a_directory_without_a_store_is_reported(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "nothing")
    with pytest.raises(InvalidArgument, match=r"nothing.*expected"):
        find_stores(tmp_path / "nothing")


# Exporting


@pytest.mark.parametrize("version", VERSIONS)
def test_the_export_of_an_apache_store_is_what_its_clients_saw(
    golden: Callable[[str], Any], version: str
) -> None:
    store = golden(version)
    messages = export(store.root)
    assert [message["log_position"] for message in messages] == sorted(
        message["log_position"] for message in messages
    )
    found = {message["log_position"]: message for message in messages}
    assert len(found) == len(messages) == len(store.messages) + UNLISTED[version]
    for row in store.messages:
        message = found.pop(row["physicalOffset"])
        body = base64.b64decode(message["body"])
        assert (len(body), zlib.crc32(body) & 0x7FFF_FFFF) == (row["bodyLength"], row["bodyCrc32"])
        expected_keys = row.get("keys", "").split()
        assert (message["keys"], message["tags"]) == (expected_keys, row.get("tags"))
        for ours, theirs in {
            "topic": "topic", "queue_id": "queueId", "queue_offset": "queueOffset",
            "size": "size", "offset_msg_id": "msgId", "flag": "flag", "sys_flag": "sysFlag",
            "born_timestamp": "bornTimestamp", "born_host": "bornHost",
            "store_timestamp": "storeTimestamp", "store_host": "storeHost",
            "reconsume_times": "reconsumeTimes", "properties": "properties",
            "prepared_transaction_offset": "preparedTransactionOffset",
        }.items():  # fmt: skip
            assert message[ours] == row[theirs], ours
        assert message["msg_id"] == row.get("uniqKey", row["msgId"])
    assert {message["topic"] for message in found.values()} <= {"RMQ_SYS_TRANS_OP_HALF_TOPIC"}


def test_an_exported_message_has_exactly_the_promised_fields_in_order(root: Path) -> None:
    message = export(root)[3]
    assert list(message) == [
        "topic", "queue_id", "queue_offset", "log_position", "size", "msg_id", "offset_msg_id",
        "tags", "keys", "properties", "body", "sys_flag", "born_timestamp", "store_timestamp",
        "born_host", "store_host", "reconsume_times", "prepared_transaction_offset", "flag",
    ]  # fmt: skip
    assert message["keys"] == ["k3", "all"]
    assert message["msg_id"] == f"{3:032X}"
    assert base64.b64decode(message["body"]) == b"message 3 " * 10


def test_a_range_of_positions_leaves_out_its_end(root: Path) -> None:
    positions = [message["log_position"] for message in export(root)]
    part = export(root, from_position=positions[5], to_position=positions[40])
    assert [message["log_position"] for message in part] == positions[5:40]


def test_a_range_may_start_and_end_within_messages_and_segments(root: Path) -> None:
    positions = [message["log_position"] for message in export(root)]
    part = export(root, from_position=positions[5] + 1, to_position=positions[40] + 1)
    assert [message["log_position"] for message in part] == positions[6:41]
    assert export(root, from_position=positions[-1] + 1) == []


def test_a_range_of_times_and_topics(tmp_path: Path) -> None:
    now = 1_000_000
    with MessageStore(tmp_path / "store", SMALL, time_ms=lambda: now) as store:
        for number in range(20):
            now += 10
            store.append(draft(number, ("orders", "bills")[number % 4 == 0]))
            store.write()
    times = [message["store_timestamp"] for message in export(tmp_path / "store")]
    part = export(tmp_path / "store", from_ms=times[3], to_ms=times[9])
    assert [message["store_timestamp"] for message in part] == times[3:9]
    bills = export(tmp_path / "store", topics=["bills"])
    assert [message["queue_offset"] for message in bills] == list(range(5))
    assert export(tmp_path / "store", topics=["unknown"]) == []


def test_what_is_written_to_a_live_store_can_be_exported_at_once(tmp_path: Path) -> None:
    with MessageStore(tmp_path / "store", SMALL) as store:
        for number in range(20):
            store.append(draft(number))
            store.write()
            assert len(export(tmp_path / "store")) == number + 1


def test_export_goes_on_behind_each_damage_and_tells(root: Path) -> None:
    whole = export(root)
    hurt = segments(root)[1]
    inside = [m for m in whole if m["log_position"] // 4096 == 1]
    victims = [inside[0], inside[3], inside[4]]
    for victim in victims:
        patch(hurt, victim["log_position"] % 4096 + 100, b"\xff")
    exporter = Exporter(str(root))
    assert list(exporter) == [m for m in whole if m not in victims]
    # What lies side by side is one damage: its parts cannot be distinguished.
    places = [(Path(damage.file), damage.position) for damage in exporter.damages]
    assert places == [(hurt, 0), (hurt, inside[3]["log_position"] % 4096)]


def test_export_goes_on_behind_zeros_in_the_last_segment(root: Path) -> None:
    whole = export(root)
    hurt = segments(root)[-1]
    inside = [m for m in whole if m["log_position"] >= int(hurt.name)]
    victim = inside[1]
    patch(hurt, victim["log_position"] % 4096, bytes(victim["size"]))
    exporter = Exporter(str(root))
    assert list(exporter) == [m for m in whole if m is not victim]
    (damage,) = exporter.damages
    assert damage.what == "zeros, but records behind them"


def test_a_body_that_cannot_be_opened_is_null_and_reported(tmp_path: Path) -> None:
    flag = SysFlag.COMPRESSED | SysFlag.ZLIB
    with MessageStore(tmp_path / "store", SMALL) as store:
        store.append(draft(0)._replace(body=zlib.compress(b"whole"), sys_flag=flag))
        store.append(draft(1)._replace(body=b"not compressed", sys_flag=flag))
    exporter = Exporter(str(tmp_path / "store"))
    first, second = exporter
    assert base64.b64decode(first["body"]) == b"whole"
    assert second["body"] is None
    (damage,) = exporter.damages
    assert damage.position == second["log_position"]
    assert "cannot be opened" in damage.what


# Verifying


@pytest.mark.parametrize("version", VERSIONS)
def test_stores_of_apache_are_whole(golden: Callable[[str], Any], version: str) -> None:
    store = golden(version)
    result = check(store.root)
    assert result.damages == []
    assert result.is_clean == (version != "5.5.0-killed")
    assert result.records == len(store.messages) + UNLISTED[version] == result.queue_entries
    assert result.index_files == len(store.index_files)
    assert result.index_keys > result.records


def test_a_store_of_ours_is_whole(root: Path) -> None:
    result = check(root)
    assert (result.damages, result.notes) == ([], [])
    assert (result.records, result.queue_entries) == (MESSAGES, MESSAGES)
    assert result.index_keys == 3 * MESSAGES


def test_a_live_store_is_whole_at_any_time(tmp_path: Path) -> None:
    random = Random(5)
    with MessageStore(tmp_path / "store", SMALL) as store:
        for number in range(100):
            store.append(draft(number))
            if random.randrange(3) == 0:
                store.write()
            if random.randrange(10) == 0:
                store.flush(thorough=bool(random.randrange(2)))
                assert check(tmp_path / "store").damages == []


def test_what_a_crash_left_unfinished_is_a_note_and_no_damage(tmp_path: Path) -> None:
    store = MessageStore(tmp_path / "store", SMALL)
    store.open()
    for number in range(40):
        store.append(draft(number))
    store.write()
    store.abandon()
    result = check(tmp_path / "store")
    assert not result.is_clean
    assert result.damages == []
    assert any("queue entries to complete" in note for note in result.notes)
    with MessageStore(tmp_path / "store"):
        pass
    assert check(tmp_path / "store").notes == []


def test_a_torn_tail_is_a_note_with_its_position(tmp_path: Path) -> None:
    store = MessageStore(tmp_path / "store", SMALL)
    store.open()
    last = store.append(draft(0))
    store.append(draft(1))
    store.write()
    store.abandon()
    patch(segments(tmp_path / "store")[0], last.size + 50, bytes(4096 - last.size - 50))
    result = check(tmp_path / "store")
    assert (result.records, result.damages) == (1, [])
    assert f"log position {last.size}" in result.notes[0]


def test_retention_and_deleted_topics_leave_nothing_that_looks_like_damage(tmp_path: Path) -> None:
    now = 10**12
    root = tmp_path / "store"
    with MessageStore(root, SMALL, time_ms=lambda: now) as store:
        for number in range(100):
            store.append(draft(number, ("orders", "bills")[number % 2]))
        store.write()
        store.flush(thorough=True)
        store.delete_topic("bills")
        store.request_clean()
        assert store.clean(now_ms=4 * 10**12)
        for number in range(100, 140):
            store.append(draft(number, ("orders", "bills")[number % 2]))
        store.write()
    result = check(root)
    assert result.damages == []
    assert (result.queues, result.records) == (2, len(export(root)))


def test_a_topic_that_apache_deleted_and_made_again_is_no_damage(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with MessageStore(root, SMALL) as store:
        for number in range(50):
            store.append(draft(number, ("orders", "bills")[number % 4 == 0]))
        store.write()
        store.delete_topic("bills")
        for number in range(50, 60):
            store.append(draft(number, ("orders", "bills")[number % 4 == 0]))
    (root / "penstock.state").unlink()  # only Penstock remembers deletions
    result = check(root)
    assert result.damages == []
    assert any("deleted" in note for note in result.notes)


LOG, QUEUE, INDEX = "commitlog", "consumequeue/orders/1", "index"


def test_a_flipped_bit_in_a_body_is_found_with_file_and_position(root: Path) -> None:
    victim = export(root)[MESSAGES // 2]
    base, at = divmod(victim["log_position"], 4096)
    path = root / LOG / f"{base * 4096:020d}"
    patch(path, at + 95, b"\0")
    result = check(root)
    assert [(Path(damage.file), damage.position) for damage in result.damages][:1] == [(path, at)]
    assert "checksum" in result.damages[0].what


@pytest.mark.parametrize("place", [0, 4, 8, 20, 28, 84])
def test_a_broken_field_of_a_record_is_found(root: Path, place: int) -> None:
    path = segments(root)[2]
    patch(path, place, b"\x7f\x7f\x7f\x7f")
    (damage, *_) = check(root).damages
    assert (Path(damage.file), damage.position) == (path, 0)


def test_zeros_in_the_middle_of_the_log_are_damage(root: Path) -> None:
    path = segments(root)[1]
    patch(path, 0, bytes(4096))
    (damage, *_) = check(root).damages
    assert (Path(damage.file), damage.position) == (path, 0)
    assert "zeros" in damage.what


def test_a_lost_segment_is_found_by_its_gap(root: Path) -> None:
    segments(root)[1].unlink()
    damages = check(root).damages
    assert "no segment between 4096" in damages[0].what


def test_a_short_segment_is_found(root: Path) -> None:
    path = segments(root)[1]
    path.write_bytes(path.read_bytes()[:1000])
    (damage, *_) = check(root).damages
    assert (Path(damage.file), damage.what) == (path, "1000 bytes, the others have 4096")


def test_a_wrong_queue_entry_is_found(root: Path) -> None:
    path = root / QUEUE / f"{200:020d}"
    patch(path, 3 * UNIT_BYTES, UNIT.pack(5, 200, 7))
    (damage,) = check(root).damages
    assert (Path(damage.file), damage.position) == (path, 3 * UNIT_BYTES)
    assert "entry 13 points to 5, 200 bytes; the record at" in damage.what


def test_an_entry_that_points_to_another_record_is_found(root: Path) -> None:
    last = export(root)[-1]
    path = root / QUEUE / f"{0:020d}"
    patch(path, 0, UNIT.pack(last["log_position"], last["size"] + 1, 7))
    (damage,) = check(root).damages
    assert (Path(damage.file), damage.position) == (path, 0)


def test_a_missing_queue_entry_is_found(root: Path) -> None:
    path = root / QUEUE / f"{0:020d}"
    patch(path, 0, bytes(UNIT_BYTES))
    (damage,) = check(root).damages
    assert "entry 0 is missing" in damage.what


def test_a_wrong_tags_code_is_found(root: Path) -> None:
    path = root / QUEUE / f"{0:020d}"
    patch(path, 12, (99).to_bytes(8, "big"))
    (damage,) = check(root).damages
    assert "entry 0 has tags code 99" in damage.what


def test_an_entry_about_nothing_is_found(root: Path) -> None:
    path = sorted((root / QUEUE).iterdir())[-1]
    path = path.with_name(f"{int(path.name) + 200:020d}")
    path.write_bytes(UNIT.pack(17, 200, 7).ljust(200, b"\0"))
    (damage,) = check(root).damages
    assert (Path(damage.file), damage.position) == (path, 0)
    assert "where no such record is" in damage.what


def test_a_key_that_cannot_be_found_any_more_is_damage(root: Path) -> None:
    path = sorted((root / INDEX).iterdir())[1]
    for slot in range(SMALL.max_hash_slot_num or 0):
        patch(path, HEADER_BYTES + slot * SLOT_BYTES, bytes(SLOT_BYTES))
    (damage,) = check(root).damages
    assert Path(damage.file) == path
    assert "cannot be found" in damage.what


def test_a_slot_that_points_nowhere_is_damage(root: Path) -> None:
    path = sorted((root / INDEX).iterdir())[0]
    patch(path, HEADER_BYTES, (10**6).to_bytes(4, "big"))
    (damage,) = check(root).damages
    assert (Path(damage.file), damage.position) == (path, HEADER_BYTES)


def test_a_unit_about_no_record_is_damage(root: Path) -> None:
    path = sorted((root / INDEX).iterdir())[1]
    units_at = HEADER_BYTES + 10 * SLOT_BYTES
    patch(path, units_at + 5 * 20 + 4, (export(root)[-1]["log_position"] + 7).to_bytes(8, "big"))
    damages = check(root).damages
    assert [Path(damage.file) for damage in damages] == [path]


def test_only_the_first_damage_of_a_file_is_reported_but_that_of_every_file(root: Path) -> None:
    for path in segments(root)[:3]:
        patch(path, 100, b"\xff")
        patch(path, 1000, b"\xff\xff")
    damaged = [Path(damage.file) for damage in check(root).damages]
    assert damaged[:3] == segments(root)[:3]
    assert len(set(damaged)) == len(damaged)


def test_tools_change_nothing_and_take_no_lock(root: Path) -> None:
    before = fingerprint(root)
    for _ in range(2):
        check(root)
        export(root)
        survey("store", str(root))
    assert fingerprint(root) == before
    with MessageStore(root):
        check(root)
        survey("store", str(root))


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_no_damage_makes_a_tool_fail(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Each tool ends and reports what it found, with any content of the files."""
    random = Random(seed)
    directory = tmp_path_factory.mktemp("fuzz")
    root = directory / "store"
    fill(root, 30)
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size]
    for _ in range(random.randint(1, 5)):
        path = random.choice(files)
        if not path.exists():
            continue
        match random.randrange(4):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(path.read_bytes()[: random.randrange(path.stat().st_size + 1)])
            case _:
                at = random.randrange(max(1, path.stat().st_size))
                patch(path, at, random.randbytes(random.randint(1, 20)))
    check(root)
    list(Exporter(str(root)))
    survey("store", str(root))
    shutil.rmtree(directory)


# Looking


@pytest.mark.parametrize("version", VERSIONS)
def test_a_survey_counts_the_queues_of_an_apache_store(
    golden: Callable[[str], Any], version: str
) -> None:
    store = golden(version)
    found = survey("store", str(store.root))
    assert found.problem is None
    assert found.written_by == "RocketMQ"
    assert found.is_clean == (version != "5.5.0-killed")
    seen = {(q.topic, q.queue_id): (q.min_offset, q.max_offset) for q in found.queues}
    for row in store.queues:
        if row["maxOffset"]:
            expected = (row["minOffset"], row["maxOffset"])
            assert seen[row["topic"], row["queueId"]] == expected
    assert found.checkpoint.log_timestamp == store.checkpoint["physicMsgTimestamp"]
    assert (version == "4.9.7") == (found.foreign == [])


def test_a_survey_tells_ranges_and_times(tmp_path: Path) -> None:
    now = 10**12
    with MessageStore(tmp_path / "store", SMALL, time_ms=lambda: now) as store:
        for number in range(10):
            now += 1000
            store.append(draft(number))
            store.write()
        end = store.max_position
    found = survey("broker-a", str(tmp_path / "store"))
    assert (found.name, found.written_by, found.is_clean) == ("broker-a", "Penstock", True)
    assert (found.min_position, found.max_position) == (0, end)
    assert (found.first_ms, found.last_ms) == (10**12 + 1000, 10**12 + 10_000)
    assert [(q.count, q.first_ms, q.last_ms) for q in found.queues] == [
        (5, 10**12 + 1000, 10**12 + 9000),
        (5, 10**12 + 2000, 10**12 + 10_000),
    ]
    assert (found.files[0].kind, found.files[0].file_size) == ("commitlog", 4096)


def test_a_survey_of_a_store_that_cannot_be_opened_says_why(root: Path) -> None:
    segments(root)[1].unlink()
    found = survey("store", str(root))
    assert found.problem is not None
    assert "no segment at position 4096" in found.problem
    assert found.files[0].count == len(segments(root))


def test_strange_files_are_reported(root: Path) -> None:
    (root / "notes.txt").write_text("mine")
    (root / "index" / "readme").write_text("mine")
    found = survey("store", str(root))
    assert [line.partition(":")[0] for line in found.foreign] == ["index/readme", "notes.txt"]
