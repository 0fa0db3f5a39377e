"""Stores written by Apache RocketMQ read back as its own client read them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

Row = dict[str, Any]
Unpack = Callable[[str], tuple[Path, list[Row]]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def shown(row: Row) -> Row:
    """A row of ours in the words of the manifest."""
    body = row["body"]
    return {
        "topic": row["topic"],
        "queueId": row["queue_id"],
        "queueOffset": row["offset"],
        "id": row["msg_id"],
        "tags": row["tags"],
        "keys": row["keys"],
        "sysFlag": row["sys_flag"],
        "bornTimestamp": (row["born_timestamp"] - _EPOCH) // timedelta(milliseconds=1),
        "bornHost": row["born_host"],
        "storeTimestamp": (row["store_timestamp"] - _EPOCH) // timedelta(milliseconds=1),
        "storeHost": row["store_host"],
        "reconsumeTimes": row["reconsume_times"],
        "bodyLength": len(body),
        "bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF,
        "properties": row["properties"],
    }


def expected_row(row: Row) -> Row:
    """A row of the manifest; it leaves out what is null."""
    keys = row.get("keys")
    return {
        **{name: row[name] for name in shown_names if name in row},
        "id": row.get("uniqKey") or row["msgId"],
        "tags": row.get("tags"),
        "keys": None if keys is None else keys.split(),
    }


shown_names = (
    "topic",
    "queueId",
    "queueOffset",
    "sysFlag",
    "bornTimestamp",
    "bornHost",
    "storeTimestamp",
    "storeHost",
    "reconsumeTimes",
    "bodyLength",
    "bodyCrc32",
    "properties",
)


def place(row: Row) -> tuple[str, int, int]:
    return row["topic"], row["queueId"], row["queueOffset"]


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0", "5.5.0-killed"])
def test_every_message_of_the_manifest_is_read_and_no_other(
    version: str, unpacked: Unpack, read: Callable[..., list[Row]]
) -> None:
    root, messages = unpacked(version)
    topics = ",".join(sorted({row["topic"] for row in messages}))
    rows = read(root, cores=2, topic=topics, brokerName="broker-a")
    assert {row["broker"] for row in rows} == {"broker-a"}
    found = sorted(map(shown, rows), key=place)
    assert found == sorted(map(expected_row, messages), key=place)


def test_without_a_topic_all_but_system_topics_are_read(
    unpacked: Unpack, read: Callable[..., list[Row]]
) -> None:
    root, messages = unpacked("5.5.0")
    rows = read(root, ("topic", "broker"))
    found = {row["topic"] for row in rows}
    assert found == {"golden-one", "golden-four", "%RETRY%golden-cg", "%DLQ%golden-cg"} | {
        row["topic"] for row in messages if row["topic"].startswith("golden")
    }
    assert {row["broker"] for row in rows} == {"store"}


def test_a_tag_is_found_by_its_hash_and_text(
    unpacked: Unpack, read: Callable[..., list[Row]]
) -> None:
    root, messages = unpacked("5.5.0")
    expected = [
        place(row)
        for row in messages
        if row["topic"] == "golden-four" and row.get("tags") in ("Even", "nobody")
    ]
    rows = read(root, ("topic", "queue_id", "offset"), topic="golden-four", tags="Even || nobody")
    assert sorted(tuple(row.values()) for row in rows) == sorted(expected)
    assert expected
