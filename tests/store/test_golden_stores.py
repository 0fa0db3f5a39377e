"""Stores written by Apache RocketMQ 4.9.7 and 5.5.0, opened, checked and rebuilt."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.model.hosts import unpack_host
from penstock.model.properties import parse_properties
from penstock.protocol.records.codec import body_crc, decode_record, decode_records
from penstock.store import MessageStore, ReadStatus, StoreConfig

VERSIONS = ("4.9.7", "5.5.0", "5.5.0-killed")
LOG_ENDS = {"4.9.7": None, "5.5.0": None, "5.5.0-killed": None}


def check_message(store: MessageStore, row: dict[str, Any]) -> None:
    """A manifest row against the record the store finds by queue offset."""
    found = store.read(row["topic"], row["queueId"], row["queueOffset"], max_count=1)
    assert found.status is ReadStatus.FOUND
    assert found.count == 1
    record = decode_record(found.slices[0], check_crc=True)
    assert found.size == record.size == row["size"]
    assert record.log_position == row["physicalOffset"]
    assert (record.topic, record.queue_id) == (row["topic"], row["queueId"])
    assert record.queue_offset == row["queueOffset"]
    assert (record.flag, record.sys_flag) == (row["flag"], row["sysFlag"])
    assert record.born_timestamp == row["bornTimestamp"]
    assert record.store_timestamp == row["storeTimestamp"]
    assert unpack_host(record.born_host) == row["bornHost"]
    assert unpack_host(record.store_host) == row["storeHost"]
    assert record.reconsume_times == row["reconsumeTimes"]
    assert record.prepared_transaction_offset == row["preparedTransactionOffset"]
    assert (len(record.body), body_crc(record.body)) == (row["storedBodyLength"], row["bodyCRC"])
    assert parse_properties(record.properties) == row["properties"]


def check_everything(store: MessageStore, golden: Any) -> None:
    """All messages by queue offset, all queues' ends, all keys."""
    for row in golden.messages:
        check_message(store, row)
    for row in golden.queues:
        assert store.min_offset(row["topic"], row["queueId"]) == row["minOffset"]
        assert store.max_offset(row["topic"], row["queueId"]) == row["maxOffset"]
    for row in golden.messages:
        keys = [row["uniqKey"]] if "uniqKey" in row else []
        for key in keys + row.get("keys", "").split():
            hits = store.query(row["topic"], key, max_count=64)
            positions = {decode_record(hit).log_position for hit in hits.slices}
            assert row["physicalOffset"] in positions, (row["topic"], key)


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path.relative_to(root)): (
            path.stat().st_mtime_ns,
            path.stat().st_size,
            path.read_bytes(),
        )
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "timerwheel"
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_every_message_of_the_manifest_is_found_read_only(
    golden: Callable[[str], Any], version: str
) -> None:
    real = golden(version)
    before = tree(real.root)
    store = MessageStore.open_readonly(real.root)
    check_everything(store, real)
    store.close()
    assert tree(real.root) == before, "a read-only store changed its files"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_message_of_the_manifest_is_found_after_recovery(
    golden: Callable[[str], Any], version: str
) -> None:
    real = golden(version)
    store = MessageStore(real.root)
    recovery = store.open()
    assert recovery.kind == ("crash" if "killed" in version else "checked")
    check_everything(store, real)
    store.close()
    again = MessageStore(real.root)
    assert again.open().kind == "clean"
    check_everything(again, real)
    again.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_recovery_ends_where_the_last_record_ends(
    golden: Callable[[str], Any], version: str
) -> None:
    real = golden(version)
    last = max(real.messages, key=lambda row: row["physicalOffset"])
    with MessageStore(real.root) as store:
        end = store.max_position
        scan = store.commit_log.scan(0)
        records = list(scan)
    # In 4.9.7 the transaction marks are in the log, though no manifest row is about them.
    extra = [r for r in records if r.log_position > last["physicalOffset"]]
    assert all(r.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC" for r in extra)
    assert scan.damage is None
    assert end == records[-1].log_position + records[-1].size
    counts = {"4.9.7": 861, "5.5.0": 867, "5.5.0-killed": 1691}
    assert len(records) == counts[version]


def test_recovery_of_the_killed_store_removes_the_segment_prepared_ahead(
    golden: Callable[[str], Any],
) -> None:
    real = golden("5.5.0-killed")
    ahead = real.root / "commitlog" / "00000000000000524288"
    assert ahead.exists()
    assert not any(ahead.read_bytes())
    with MessageStore(real.root) as store:
        assert store.max_position < 524288
        assert not ahead.exists()


@pytest.mark.spec("S53")
@pytest.mark.parametrize("version", VERSIONS)
def test_queues_rebuilt_from_the_log_are_those_of_rocketmq_byte_for_byte(
    golden: Callable[[str], Any], version: str
) -> None:
    real = golden(version)
    original = real.root / "consumequeue"
    files = sorted(p for p in original.rglob("*") if p.is_file())
    contents = {path.relative_to(original): path.read_bytes() for path in files}
    for name in ("consumequeue", "index"):
        shutil.rmtree(real.root / name)
    (real.root / "checkpoint").unlink()
    with MessageStore(real.root, StoreConfig(mapped_file_size_consume_queue=6000)) as store:
        assert store.recovery is not None
        assert store.recovery.start == 0
    rebuilt = {
        path.relative_to(original): path.read_bytes()
        for path in original.rglob("*")
        if path.is_file()
    }
    # A killed broker may have left entries unwritten, or an empty file prepared ahead.
    for path, content in contents.items():
        ours = rebuilt.get(path, bytes(len(content)))
        if "killed" in version and ours != content:
            units = [(content[at : at + 20], ours[at : at + 20]) for at in range(0, 6000, 20)]
            assert all(old in (new, bytes(20)) for old, new in units), path
        else:
            assert ours == content, path
    assert set(rebuilt) - set(contents) == set()


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_an_index_rebuilt_from_the_log_is_that_of_rocketmq_byte_for_byte(
    golden: Callable[[str], Any], version: str
) -> None:
    real = golden(version)
    index = real.root / "index"
    contents = [path.read_bytes() for path in sorted(index.iterdir())]
    for name in ("consumequeue", "index"):
        shutil.rmtree(real.root / name)
    config = StoreConfig(
        max_hash_slot_num=100, max_index_num=400, index_tags=version.startswith("5.5")
    )
    with MessageStore(real.root, config):
        pass
    rebuilt = [path.read_bytes() for path in sorted(index.iterdir())]
    assert len(rebuilt) == len(contents)
    for old, new in zip(contents, rebuilt, strict=True):
        assert new[:40] == old[:40]
        assert new == old


@pytest.mark.parametrize("version", VERSIONS)
def test_sizes_are_read_off_the_files(golden: Callable[[str], Any], version: str) -> None:
    store = MessageStore.open_readonly(golden(version).root)
    assert store.commit_log.segment_size == 65536
    assert store.queue_table.segment_bytes == 6000
    assert store.key_index is not None
    assert store.key_index.shape == (100, 400)
    assert store.checkpoint.log_timestamp > 0


@pytest.mark.parametrize("version", VERSIONS)
def test_checkpoint_and_index_headers_are_read_as_rocketmq_reads_them(
    golden: Callable[[str], Any], version: str
) -> None:
    real = golden(version)
    store = MessageStore.open_readonly(real.root)
    assert store.checkpoint.log_timestamp == real.checkpoint["physicMsgTimestamp"]
    assert store.checkpoint.queue_timestamp == real.checkpoint["logicsMsgTimestamp"]
    assert store.checkpoint.index_timestamp == real.checkpoint["indexMsgTimestamp"]
    assert store.checkpoint.queue_position == real.checkpoint.get("logicsPhysicalOffset", 0)
    assert store.key_index is not None
    for row in real.index_files:
        header = store.key_index.headers[row["file"]]
        assert header.begin_timestamp == row["beginTimestamp"]
        assert header.end_timestamp == row["endTimestamp"]
        assert header.end_position == row["endPhyOffset"]
        assert (header.next_unit >= 400) == row["full"]


def test_what_is_not_supported_is_named_and_left_alone(golden: Callable[[str], Any]) -> None:
    store = MessageStore.open_readonly(golden("5.5.0").root)
    names = {note.partition(":")[0] for note in store.foreign}
    assert names == {"compaction", "rocksdbstore"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_store_takes_new_messages_behind_the_old_ones(
    golden: Callable[[str], Any], version: str, make_draft: Callable[..., Any]
) -> None:
    real = golden(version)
    before = {(row["topic"], row["queueId"]): row["maxOffset"] for row in real.queues}
    with MessageStore(real.root) as store:
        for number in range(400):
            appended = store.append(make_draft("golden-one", 0, b"new", KEYS=f"new-{number}"))
            assert appended.queue_offset == before["golden-one", 0] + number
            store.write()
        real.queues = []
        check_everything(store, real)
    with MessageStore(real.root) as store:
        found = store.read("golden-one", 0, before["golden-one", 0] + 399)
        (record,) = decode_records(b"".join(found.slices))
        assert record.body == b"new"
        (hit,) = store.query("golden-one", "new-123").slices
        assert decode_record(hit).queue_offset == before["golden-one", 0] + 123
