"""Jobs killed with -9 in the middle of their work, and run again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.runtime.child_process import ChildProcess
from penstock.spark.pipelines.archive.archive import archive
from penstock.spark.pipelines.archive.reading import read_archive
from penstock.spark.pipelines.dead_letters import dead_letters
from penstock.spark.pipelines.redrive import redrive, redrive_audit

from .conftest import Shop, bury, wait_until

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("quick_java"),
]

PATIENCE = 280.0
"""Seconds for a Spark to start on a machine that does other things."""
SLOW_REPAIR = '''
import time
from pathlib import Path

def stuck(letter):
    """Repairs some, then never comes back."""
    if letter.message.keys[0] == "o-7":
        Path(__file__).with_suffix(".reached").touch()
        time.sleep(600)
    return b"mended"
'''


def test_an_archive_run_that_was_killed_doubles_and_loses_nothing(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    where = tmp_path / "archive"
    shop.order(60)
    arguments = ["archive", "orders", str(where), "--rows-per-commit", "4", "--master", "local[1]"]
    with spark_command(shop, *arguments) as process:
        # Somewhere in the third chunk: two are committed, the next is being written.
        states = where / "_penstock"
        second = states / "state-000000000002.json"
        wait_until(lambda: not process.is_running or second.exists(), PATIENCE)
        wait_until(lambda: not process.is_running or any((states / "staging").iterdir()))
        assert process.is_running, process.output
        process.kill()
    seen = spark.read.parquet(str(where))
    assert 0 < seen.count() < 60
    assert seen.select("queue_id", "offset").distinct().count() == seen.count()
    shop.order(5)
    result = archive(spark, "orders", where, namesrv=shop.mq.namesrv)
    assert result.total == 65
    for rows in (read_archive(spark, where), spark.read.parquet(str(where))):
        found = {row["keys"][0]: bytes(row["body"]) for row in rows.collect()}
        assert found == shop.sent
        assert rows.count() == 65
    assert list((where / "_penstock" / "staging").iterdir()) == []


def test_a_redrive_that_was_killed_sends_nothing_twice_when_it_is_run_again(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    doomed = shop.order(10)
    bury(shop.mq, "billing", doomed)
    repairs, audit = tmp_path / "repairs.py", tmp_path / "audit"
    repairs.write_text(SLOW_REPAIR)
    arguments = ["dlq", "billing", "--redrive", "--yes", "--repair", f"{repairs}:stuck"]
    arguments += ["--audit", str(audit), "--rate", "4", "--master", "local[1]"]
    with spark_command(shop, *arguments) as process:
        wait_until(
            lambda: not process.is_running or repairs.with_suffix(".reached").exists(), PATIENCE
        )
        assert process.is_running, process.output
        process.kill()
    letters = dead_letters(spark, "billing", namesrv=shop.mq.namesrv)
    result = redrive(
        letters, group="billing", audit=audit, repair=lambda _: b"mended", by="rerun",
        namesrv=shop.mq.namesrv,
    )  # fmt: skip
    assert result.redriven + result.already == 10
    assert result.already < 10
    copies = (
        spark.read.format("penstock")
        .options(namesrv=shop.mq.namesrv, topic="%RETRY%billing")
        .load()
        .collect()
    )
    assert sorted(row["keys"][0] for row in copies) == sorted(doomed)
    rows = redrive_audit(spark, audit).where("outcome = 'redriven'").collect()
    assert len(rows) == 10
    assert len({row["letter_id"] for row in rows}) == 10
    assert sum(row["by"] == "rerun" for row in rows) == result.redriven


def spark_command(shop: Shop, *arguments: str) -> ChildProcess:
    """``penstock spark ...`` in a process, and with children, of its own."""
    words = [sys.executable, "-m", "penstock", "spark", *arguments, "--namesrv", shop.mq.namesrv]
    return ChildProcess(words)
