"""A report of a real cluster: the numbers on the page are those of the messages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import InvalidArgument, PenstockError, TopicNotFound
from penstock.spark.pipelines.report.data import ReasonCount
from penstock.spark.pipelines.report.group_watch import GroupWatch
from penstock.spark.pipelines.report.report import report

from ..conftest import Shop, bury, wait_until


def test_the_numbers_are_those_of_the_messages(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.mq.admin.create_topic("idle", 1)
    shop.order(4)
    bury(shop.mq, "billing", [])
    with GroupWatch(namesrv=shop.mq.namesrv, interval=0.05) as watch:
        wait_until(lambda: watch.samples)
        shop.order(16)
        bury(shop.mq, "billing", ["o-5", "o-6"])
        shop.order(5)
    said: list[tuple[str, int, int]] = []
    page = tmp_path / "report.html"
    data = report(
        spark,
        page,
        samples=watch.samples,
        namesrv=shop.mq.namesrv,
        progress=lambda *step: said.append(step),
    )
    topics = {topic.topic: topic for topic in data.topics}
    assert topics["orders"].messages == 25
    assert topics["orders"].bytes == sum(map(len, shop.sent.values()))
    assert topics["idle"].messages == 0
    assert sum(point.value for point in data.throughput["orders"]) == 25
    (billing,) = data.groups
    assert (billing.group, billing.dead, billing.lag) == ("billing", 2, 5)
    assert billing.behind_ms is not None
    assert data.dead_letters == tuple(
        ReasonCount("billing", f"DeadLetter: no price for {key}", 1) for key in ("o-5", "o-6")
    )
    # What was consumed before the last order was watched, from birth to commit.
    assert data.end_to_end
    assert billing.p50_ms is not None
    assert 0 <= billing.p50_ms <= data.to_ms - data.from_ms
    assert data.lag["billing"][-1].value == 5
    assert said[-1] == ("drawing", 4, 4)
    text = page.read_text()
    # Each of the four plots twice: for wide pages and for phones.
    assert text.count("<svg") == 8
    assert "no price for o-5" in text


def test_redriven_letters_are_counted_and_the_counting_itself_is_no_group(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.order(4)
    bury(shop.mq, "billing", ["o-1", "o-2"])
    letter = shop.mq.admin.dead_letters("billing")[0]
    shop.mq.admin.redrive("billing", [letter])
    for _ in range(2):
        data = report(spark, tmp_path / "r.html", namesrv=shop.mq.namesrv)
        (billing,) = data.groups
        assert (billing.group, billing.dead, billing.redriven) == ("billing", 2, 1)
        assert billing.retries == 0
    assert "penstock_spark" in shop.mq.admin.groups(internal=True)


def test_a_page_that_cannot_be_written_is_reported_before_any_work(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match="cannot be written: No such file or directory"):
        report(spark, tmp_path / "no" / "report.html", namesrv="127.0.0.1:1")


def test_without_matplotlib_no_page_is_begun(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = tmp_path / "report.html"
    with pytest.raises(PenstockError, match="needs matplotlib"):
        report(spark, page, namesrv="127.0.0.1:1")
    assert not page.exists()


def test_an_unknown_topic_is_an_error(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(TopicNotFound, match="'ordesr'"):
        report(spark, tmp_path / "r.html", topics=["ordesr"], namesrv=shop.mq.namesrv)
