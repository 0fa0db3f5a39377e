"""Records that Apache RocketMQ 4.9.7 and 5.5.0 wrote, read and written again byte for byte."""

from __future__ import annotations

import gzip
import json
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import VECTORS

from penstock.model.hosts import unpack_host
from penstock.model.properties import encode_properties, get_property, parse_properties
from penstock.model.record_layout import BLANK_MAGIC
from penstock.protocol.filters.tags import compile_sql
from penstock.protocol.records.batches import decode_batch, encode_batch
from penstock.protocol.records.codec import (
    Record,
    decode_record,
    decode_records,
    encode_record,
    peek_record,
)
from penstock.protocol.records.pulled import message_from_record, messages_from_pull

STORES = ["4.9.7", "5.5.0", "5.5.0-killed"]
RECORDS_AND_BLANKS = {"4.9.7": (861, 3), "5.5.0": (867, 3), "5.5.0-killed": (1691, 7)}
RELEASES = ["4.9.7", "5.5.0"]
CARRY_RECORDS = {
    "PULL_MESSAGE",
    "LITE_PULL_MESSAGE",
    "POP_MESSAGE",
    "QUERY_MESSAGE",
    "VIEW_MESSAGE_BY_ID",
}


def encode(record: Record) -> bytes:
    """The record written again from its fields."""
    return encode_record(
        record.topic.encode(),
        record.body,
        record.properties,
        record.queue_id,
        record.queue_offset,
        record.log_position,
        record.store_timestamp,
        record.born_timestamp,
        record.born_host,
        record.store_host,
        record.flag,
        record.sys_flag,
        record.reconsume_times,
        record.prepared_transaction_offset,
    )


def commit_log(store: str) -> Iterator[tuple[int, bytes]]:
    """The commit-log files of a store, each with the log position it starts at."""
    with tarfile.open(VECTORS / f"store-{store}.tar.gz") as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            path = Path(member.name)
            if path.parent.name == "commitlog":
                content = archive.extractfile(member)
                assert content is not None
                yield int(path.name), content.read()


def log_records(store: str) -> tuple[dict[int, Record], int]:
    """The records of a commit log by position, and the number of blanks."""
    records: dict[int, Record] = {}
    blanks = 0
    for start, segment in commit_log(store):
        position = 0
        while position < len(segment):
            size, magic = peek_record(segment, position)
            if size == 0:
                break  # nothing was written from here on
            if magic == BLANK_MAGIC:
                blanks += 1
                assert position + size == len(segment)
            else:
                record = decode_record(segment, position, check_crc=True)
                assert encode(record) == segment[position : position + size]
                assert record.log_position == start + position
                records[record.log_position] = record
            position += size
    return records, blanks


def lines(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(VECTORS / name, "rt", encoding="utf-8") as text:
        for line in text:
            yield json.loads(line)


@pytest.mark.parametrize("store", STORES)
def test_commit_logs_of_apache_are_read_and_written_byte_for_byte(store: str) -> None:
    records, blanks = log_records(store)
    assert (len(records), blanks) == RECORDS_AND_BLANKS[store]


@pytest.mark.parametrize("store", STORES)
def test_messages_are_what_the_official_client_made_of_them(store: str) -> None:
    records, _ = log_records(store)
    seen = 0
    for line in lines(f"store-{store}.manifest.jsonl.gz"):
        if line["kind"] != "message":
            continue
        seen += 1
        record = records[line["physicalOffset"]]
        message = message_from_record(record, "broker-a")
        assert (record.size, record.body_crc) == (line["size"], line["bodyCRC"])
        assert len(record.body) == line["storedBodyLength"]
        assert record.sys_flag == line["sysFlag"]
        assert {
            "topic": message.topic,
            "queueId": message.queue.queue_id,
            "queueOffset": message.queue_offset,
            "msgId": message.offset_msg_id,
            "flag": message.flag,
            "bornTimestamp": message.born_timestamp,
            "bornHost": message.born_host,
            "storeTimestamp": message.store_timestamp,
            "storeHost": message.store_host,
            "reconsumeTimes": message.reconsume_times,
            "preparedTransactionOffset": message.prepared_transaction_offset,
            "bodyLength": len(message.body),
            "bodyCrc32": zlib.crc32(message.body) & 0x7FFF_FFFF,
            "properties": message.properties,
        }.items() <= line.items()
        assert message.tag == line.get("tags")
        assert message.keys == tuple(line.get("keys", "").split())
        assert message.msg_id == line.get("uniqKey", line["msgId"])
        assert message.sys_flag & 1 == 0
    assert seen > 800


@pytest.mark.parametrize("store", STORES)
def test_property_strings_of_apache_are_written_again(store: str) -> None:
    records, _ = log_records(store)
    for record in records.values():
        parsed = parse_properties(record.properties)
        written = encode_properties(parsed)
        assert parse_properties(written) == parsed
        # 4.9.1 to 5.1 leave the last separator out; 4.9 says WAIT twice in messages of a batch.
        if record.properties.count(b"\x01") == len(parsed):
            assert written.rstrip(b"\x02") == record.properties.rstrip(b"\x02")
        for key, value in parsed.items():
            assert get_property(record.properties, key.encode()) == value.encode()


def bodies(release: str, names: set[str]) -> Iterator[bytes]:
    for frame in lines(f"frames-{release}.jsonl.gz"):
        if frame["request_code_name"] in names and frame["body_length"]:
            yield bytes.fromhex(frame["frame_hex"])[-frame["body_length"] :]


@pytest.mark.parametrize("release", RELEASES)
def test_bodies_of_answers_are_read_and_written_byte_for_byte(release: str) -> None:
    count = 0
    for body in bodies(release, CARRY_RECORDS):
        records = decode_records(body, check_crc=True)
        assert b"".join(map(encode, records)) == body
        messages = messages_from_pull(body, "broker-a", check_crc=True)
        assert messages == [message_from_record(record, "broker-a") for record in records]
        count += len(records)
    assert count > 20


@pytest.mark.parametrize("release", RELEASES)
def test_records_pushed_to_clients_are_read(release: str) -> None:
    pushed = [
        bytes.fromhex(frame["frame_hex"])[-frame["body_length"] :]
        for frame in lines(f"frames-{release}.jsonl.gz")
        if frame["request_code_name"] in ("CHECK_TRANSACTION_STATE", "CONSUME_MESSAGE_DIRECTLY")
        and frame["direction"] == "broker->client"
        and frame["flag"] & 1 == 0
        and frame["body_length"]
    ]
    assert len(pushed) == 2
    for body in pushed:
        assert encode(decode_record(body, check_crc=True)) == body


@pytest.mark.parametrize("release", RELEASES)
def test_batches_of_apache_are_read_and_written_byte_for_byte(release: str) -> None:
    sent = [
        bytes.fromhex(frame["frame_hex"])[-frame["body_length"] :]
        for frame in lines(f"frames-{release}.jsonl.gz")
        if frame["request_code_name"] == "SEND_BATCH_MESSAGE" and frame["flag"] & 1 == 0
    ]
    assert sent
    for body in sent:
        items = decode_batch(body)
        assert len(items) > 1
        assert encode_batch(items) == body
        assert all(get_property(item.properties, b"UNIQ_KEY") for item in items)


def test_a_filter_chooses_what_apache_chose() -> None:
    frames = [f for f in lines("frames-5.5.0.jsonl.gz") if f["step"] == "pull.sql"]
    asked = next(f["ext_fields"]["subscription"] for f in frames if f["code"] == 11)
    answer = next(f for f in frames if f["flag"] & 1)
    body = bytes.fromhex(answer["frame_hex"])[-answer["body_length"] :]
    matches = compile_sql(asked)
    chosen = messages_from_pull(body, "broker-a")
    assert chosen
    assert all(matches(message.properties) for message in chosen)
    records, _ = log_records("5.5.0")
    everything = [parse_properties(record.properties) for record in records.values()]
    assert 0 < sum(map(matches, everything)) < len(everything)


def test_hosts_of_apache_are_the_loopback_address() -> None:
    records, _ = log_records("5.5.0")
    assert {unpack_host(record.store_host) for record in records.values()} == {"127.0.0.1:23321"}
