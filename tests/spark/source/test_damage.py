"""Damaged and unreadable messages, from brokers and from store directories. No Spark here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.spark.source.brokers import create, numbered, produce, read
from tests.spark.source.stores import Writer, scan

from penstock import MessageQueue
from penstock.columnar.bad_records import UNKNOWN_OFFSET, BadRecord
from penstock.errors import StoreDamaged
from penstock.model.record_layout import MAGIC_V1
from penstock.protocol.records.sys_flags import SysFlag
from penstock.spark.source.data_loss import BadRecords
from penstock.spark.source.options import parse_read
from penstock.spark.source.ranges import Range
from penstock.store import Draft
from penstock.testing.embedded import Embedded

QUEUE = MessageQueue("orders", "broker-a", 0)


def change(root: Path, old: bytes, new: bytes) -> None:
    """Overwrite bytes of the commit log, also under a broker that has it mapped."""
    assert len(old) == len(new)
    for path in sorted((root / "commitlog").iterdir()):
        at = path.read_bytes().find(old)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(new)
            return
    raise AssertionError(f"{old!r} is not in the log")


def test_a_damaged_body_from_a_broker_is_an_error_that_names_it(mq: Embedded) -> None:
    create(mq.namesrv, "orders", 1)
    produce(mq.namesrv, numbered("orders", range(1000, 1200)), QUEUE)
    change(mq.data / "broker-a", b"1077", b"1O77")
    with pytest.raises(StoreDamaged, match=r"offset 77 of .*orders.*checksum.*store verify.*false"):
        read(mq.namesrv, topic="orders")
    # Where the body is not read, or in another range, it does no harm.
    assert len(read(mq.namesrv, ("offset",), topic="orders")) == 200
    ending = '{"orders": {"broker-a": {"0": 77}}}'
    assert len(read(mq.namesrv, topic="orders", endingOffsets=ending)) == 77


def test_a_damaged_body_may_be_null_with_a_warning(
    mq: Embedded, caplog: pytest.LogCaptureFixture
) -> None:
    create(mq.namesrv, "orders", 1)
    produce(mq.namesrv, numbered("orders", range(1000, 1200)), QUEUE)
    change(mq.data / "broker-a", b"1077", b"1O77")
    with caplog.at_level(logging.WARNING):
        rows = read(mq.namesrv, ("offset", "body"), topic="orders", failOnDataLoss="false")
    assert rows == [(n, None if n == 77 else b"%d" % (1000 + n)) for n in range(200)]
    assert "offset 77" in caplog.text
    unchecked = read(mq.namesrv, ("body",), topic="orders", checkCrcs="false")
    assert unchecked[77] == (b"1O77",)


def test_a_damaged_first_record_of_a_pull_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    part = Range(QUEUE, 500, 600)
    first = BadRecord(UNKNOWN_OFFSET, "a wrong magic", is_damaged=True)
    with pytest.raises(StoreDamaged, match=r"unknown offset of .*orders.* is damaged: a wrong mag"):
        BadRecords(parse_read({"namesrv": "a:1", "topic": "orders"}), part, "DIR")(first)
    lenient = {"namesrv": "a:1", "topic": "orders", "failOnDataLoss": "false"}
    with caplog.at_level(logging.WARNING):
        BadRecords(parse_read(lenient), part, "DIR")(first)
    assert "unknown offset" in caplog.text
    of_others = BadRecord(499, "a wrong magic", is_damaged=True)
    BadRecords(parse_read({"namesrv": "a:1", "topic": "orders"}), part, "DIR")(of_others)


@pytest.mark.parametrize("field", ["body", "magic"])
def test_a_damaged_record_of_a_store_costs_one_message(
    writer: Callable[..., Writer], field: str, caplog: pytest.LogCaptureFixture
) -> None:
    live = writer()
    live.send("orders", 0, 20)
    live.store.flush(thorough=True)
    if field == "body":
        change(live.root, b"message 7", b"massage 7")
    else:
        # The head of the eighth message: a magic in front of its offset in the queue.
        head = MAGIC_V1.to_bytes(4, "big")
        (first,) = [p for p in sorted((live.root / "commitlog").iterdir())][:1]
        data = first.read_bytes()
        at = data.rfind(head, 0, data.find(b"message 7"))
        with first.open("r+b") as file:
            file.seek(at)
            file.write(b"\x00")
    with pytest.raises(StoreDamaged, match=r"offset 7 of .*orders.*penstock store verify .*-a"):
        scan(live.root)
    with caplog.at_level(logging.WARNING):
        rows = scan(live.root, ("offset", "body"), failOnDataLoss="false")
    expected = {n: b"message %d" % n for n in range(20)}
    expected_row = {7: None} if field == "body" else {}
    del expected[7]
    assert {row["offset"]: row["body"] for row in rows} == {**expected, **expected_row}
    assert "offset 7" in caplog.text


def test_a_poison_message_is_a_row_without_a_body(
    writer: Callable[..., Writer], caplog: pytest.LogCaptureFixture
) -> None:
    live = writer()
    live.send("orders", 0, 2)
    live.store.append(
        Draft(
            "orders",
            0,
            b"no inner batch",
            b"TAGS\x01poison\x02",
            born_timestamp=live.now,
            born_host=bytes([10, 0, 0, 1, 0, 0, 0x1F, 0x90]),
            store_host=bytes([10, 0, 0, 5, 0, 0, 0x2A, 0x9F]),
            sys_flag=SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH,
        )
    )
    live.send("orders", 0, 2)
    with caplog.at_level(logging.WARNING):
        rows = scan(live.root, ("offset", "tags", "body"))
    assert [(row["offset"], row["tags"], row["body"] is None) for row in rows] == [
        (0, None, False),
        (1, None, False),
        (2, "poison", True),
        (3, None, False),
        (4, None, False),
    ]
    assert "offset 2" in caplog.text
    assert "not readable" in caplog.text
