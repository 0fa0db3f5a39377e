"""Dead letters found, repaired, sent once and written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock import Message, PushConsumer
from penstock.admin import DeadLetterRow
from penstock.errors import GroupNotFound, InvalidArgument
from penstock.model import StoredMessage
from penstock.spark.pipelines.dead_letters import dead_letters
from penstock.spark.pipelines.redrive import redrive, redrive_audit

from .conftest import Shop, bury, wait_until

DOOMED = ["o-1", "o-2", "o-4", "o-5", "o-9"]


@pytest.fixture
def billed(shop: Shop) -> Shop:
    """Ten orders, five of which the billing gave up on."""
    shop.order(10)
    bury(shop.mq, "billing", DOOMED)
    return shop


def consumed_again(shop: Shop, count: int) -> dict[str, bytes]:
    """What the group gets when it runs again."""
    got: dict[str, bytes] = {}
    topics = set()
    consumer = PushConsumer("billing", namesrv=shop.mq.namesrv)

    @consumer.on("orders")
    def bill(message: StoredMessage) -> None:
        topics.add(message.topic)
        assert message.keys[0] not in got
        got[message.keys[0]] = message.body

    with consumer:
        wait_until(lambda: len(got) >= count)
    assert topics == {"orders"}
    return got


def with_price(letter: DeadLetterRow) -> bytes | None:
    """Repair: an even amount gets a price, order 9 is left, order 5 cannot be repaired."""
    order = json.loads(letter.message.body)
    if order["order"] == "o-9":
        return None
    if order["order"] == "o-5":
        raise KeyError("price of o-5")
    return json.dumps({**order, "price": 1}).encode()


def test_texts_that_sql_made_of_body_and_keys_are_sent_as_they_are(
    spark: SparkSession, billed: Shop, tmp_path: Path
) -> None:
    letters = dead_letters(spark, "billing", namesrv=billed.mq.namesrv)
    texts = letters.withColumns(
        {"body": F.lit("Grüße"), "keys": F.concat(F.col("keys")[0], F.lit(" by-hand"))}
    )
    redrive(texts, group="billing", audit=tmp_path / "a", namesrv=billed.mq.namesrv)
    assert consumed_again(billed, 5) == dict.fromkeys(DOOMED, "Grüße".encode())


def test_dead_letters_are_a_table_with_reason_attempts_and_origin(
    spark: SparkSession, billed: Shop
) -> None:
    rows = dead_letters(spark, "billing", namesrv=billed.mq.namesrv).collect()
    assert sorted(row["keys"][0] for row in rows) == DOOMED
    for row in rows:
        assert row["reason"] == f"no price for {row['keys'][0]}"
        assert row["reason_type"].endswith("DeadLetter")
        assert row["origin_topic"] == "orders"
        assert row["consumer_group"] == "billing"
        assert row["redrives"] == 0
        assert bytes(row["body"]) == billed.sent[row["keys"][0]]
    expected = {letter.message.msg_id: letter for letter in billed.mq.admin.dead_letters("billing")}
    for row in rows:
        letter = expected[row["msg_id"]]
        assert row["attempts"] == letter.attempts
        assert row["origin_msg_id"] == letter.origin_msg_id


def test_letters_are_repaired_sent_once_and_written_down(
    spark: SparkSession, billed: Shop, tmp_path: Path
) -> None:
    namesrv, audit = billed.mq.namesrv, tmp_path / "audit"
    letters = dead_letters(spark, "billing", namesrv=namesrv)
    wishes: dict[str, Any] = {"group": "billing", "repair": with_price, "namesrv": namesrv}
    dry = redrive(letters, audit=None, dry_run=True, **wishes)
    assert (dry.letters, dry.redriven, dry.skipped, dry.failed) == (5, 3, 1, 1)
    first = redrive(letters, audit=audit, by="ann", **wishes)
    assert (first.redriven, first.skipped, first.failed, first.already) == (3, 1, 1, 0)
    assert first.details == (("repair: KeyError: 'price of o-5'", 1),)
    # The same rows once more, and the group's letters as they are now: nothing is sent twice.
    second = redrive(letters, audit=audit, by="bob", **wishes)
    assert (second.redriven, second.skipped, second.failed, second.already) == (0, 1, 1, 3)
    fresh = dead_letters(spark, "billing", namesrv=namesrv)
    third = redrive(fresh, audit=audit, **wishes)
    assert (third.redriven, third.skipped, third.failed) == (0, 1, 1)

    got = consumed_again(billed, 3)
    assert set(got) == {"o-1", "o-2", "o-4"}
    assert all(json.loads(body)["price"] == 1 for body in got.values())

    rows = redrive_audit(spark, audit).where("outcome = 'redriven'").collect()
    assert {row["by"] for row in rows} == {"ann"}
    assert {row["run"] for row in rows} == {first.run}
    letter_ids = {
        letter.message.offset_msg_id: letter.message.keys[0]
        for letter in billed.mq.admin.dead_letters("billing", settled=True)
    }
    assert {letter_ids[row["letter_id"]] for row in rows} == {"o-1", "o-2", "o-4"}
    for row in rows:
        assert row["sent_to"] == "%RETRY%billing"
        assert billed.mq.admin.message(row["copy_id"]).msg_id == row["msg_id"]
    assert redrive_audit(spark, audit).count() == 10 + third.letters


@pytest.mark.parametrize("rate", [None, 1000.0])
def test_a_letter_that_is_there_twice_is_sent_once(
    spark: SparkSession, billed: Shop, tmp_path: Path, rate: float | None
) -> None:
    letters = dead_letters(spark, "billing", namesrv=billed.mq.namesrv)
    # In one task, and in another one.
    pairs = letters.withColumn("pair", F.explode(F.array(F.lit(1), F.lit(2))))
    twice = pairs.unionByName(pairs)
    assert twice.count() == 20
    result = redrive(twice, group="billing", audit=tmp_path, rate=rate, namesrv=billed.mq.namesrv)
    assert (result.letters, result.redriven) == (5, 5)
    copies = spark.read.format("penstock").options(
        namesrv=billed.mq.namesrv, topic="%RETRY%billing"
    )
    assert sorted(row["keys"][0] for row in copies.load().collect()) == DOOMED
    assert redrive_audit(spark, tmp_path).count() == 5


def test_columns_changed_in_spark_are_what_is_sent(
    spark: SparkSession, billed: Shop, tmp_path: Path
) -> None:
    letters = (
        dead_letters(spark, "billing", namesrv=billed.mq.namesrv)
        .where("reason like '%o-4'")
        .withColumn("body", F.lit(b"mended"))
        .withColumn("tags", F.lit("again"))
        .withColumn("properties", F.map_concat("properties", F.create_map(F.lit("x"), F.lit("y"))))
    )
    result = redrive(letters, group="billing", audit=tmp_path, namesrv=billed.mq.namesrv)
    assert (result.letters, result.redriven) == (1, 1)
    (row,) = redrive_audit(spark, tmp_path).collect()
    copy = billed.mq.admin.message(row["copy_id"])
    assert (copy.body, copy.tag, copy.keys) == (b"mended", "again", ("o-4",))
    assert copy.properties["x"] == "y"
    assert copy.properties["shop"] == "s1"
    assert billed.mq.admin.dead_letters("billing")


def replaced(letter: DeadLetterRow) -> Message:
    """Repair: another message altogether."""
    return Message("ignored", b"new", tag="t", keys=["k-1", "k-2"], properties={"p": "q"})


def test_a_repair_may_return_a_whole_message_and_a_topic_may_be_named(
    spark: SparkSession, billed: Shop, tmp_path: Path
) -> None:
    billed.mq.admin.create_topic("mended", 1)
    letters = dead_letters(spark, "billing", namesrv=billed.mq.namesrv).limit(1)
    wishes: dict[str, Any] = {"group": "billing", "to": "mended", "namesrv": billed.mq.namesrv}
    result = redrive(letters, repair=replaced, audit=tmp_path, rate=100.0, **wishes)
    assert result.redriven == 1
    assert result.sent_to == "mended"
    rows = spark.read.format("penstock").options(namesrv=billed.mq.namesrv, topic="mended").load()
    (row,) = rows.collect()
    assert (bytes(row["body"]), row["tags"], row["keys"]) == (b"new", "t", ["k-1", "k-2"])
    assert row["properties"]["p"] == "q"
    assert "shop" not in row["properties"]


def test_what_the_command_line_redrove_is_not_redriven_again(
    spark: SparkSession, billed: Shop, tmp_path: Path
) -> None:
    admin = billed.mq.admin
    chosen = [one for one in admin.dead_letters("billing") if one.message.keys[0] == "o-2"]
    admin.redrive("billing", chosen)
    letters = dead_letters(spark, "billing", namesrv=billed.mq.namesrv)
    result = redrive(letters, group="billing", audit=tmp_path, namesrv=billed.mq.namesrv)
    assert (result.redriven, result.already) == (4, 1)
    # And the other way round: all are dealt with, so the group has none pending.
    assert admin.dead_letters("billing") == []
    assert len(admin.redriven("billing", admin.dead_letters("billing", settled=True))) == 5


def test_a_run_that_died_is_written_down_by_the_next(
    spark: SparkSession, billed: Shop, tmp_path: Path
) -> None:
    wishes: dict[str, Any] = {"group": "billing", "namesrv": billed.mq.namesrv}
    letters = dead_letters(spark, "billing", namesrv=billed.mq.namesrv)
    dead = redrive(letters.where("reason not like '%o-9'"), audit=tmp_path, by="ann", **wishes)
    # As if it had been killed after sending: neither rows nor the note that they are there.
    (tmp_path / "_penstock" / f"run-{dead.run}.finished.json").unlink()
    for part in (tmp_path / f"run={dead.run}").iterdir():
        part.unlink()
    assert redrive_audit(spark, tmp_path).count() == 0
    result = redrive(letters, audit=tmp_path, by="bob", **wishes)
    assert (result.redriven, result.already) == (1, 4)
    rows = redrive_audit(spark, tmp_path).where("outcome = 'redriven'").collect()
    assert sorted((row["by"], row["run"] == dead.run) for row in rows) == (
        [("ann", True)] * 4 + [("bob", False)]
    )


def test_an_unknown_group_is_an_error_and_one_in_good_health_is_not(
    spark: SparkSession, billed: Shop
) -> None:
    with pytest.raises(GroupNotFound, match=r"'biling'; expected one with dead letters: billing"):
        dead_letters(spark, "biling", namesrv=billed.mq.namesrv)
    billed.mq.admin.create_group("healthy")
    none = dead_letters(spark, "healthy", namesrv=billed.mq.namesrv)
    assert none.count() == 0
    assert "reason" in none.columns


def test_rows_without_a_place_and_redrives_without_an_audit_are_refused(
    spark: SparkSession, billed: Shop
) -> None:
    letters = dead_letters(spark, "billing", namesrv=billed.mq.namesrv)
    with pytest.raises(InvalidArgument, match="no column 'offset'"):
        redrive(letters.drop("offset"), group="billing", audit=None, namesrv=billed.mq.namesrv)
    with pytest.raises(InvalidArgument, match="without an audit"):
        redrive(letters, group="billing", audit=None, namesrv=billed.mq.namesrv)
