"""``penstock spark ...``: the pipelines from the command line, in this process's session."""

from __future__ import annotations

import logging
import re
import tempfile
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cli.running import fail, run, succeed

from penstock.cli.spark_runner import Bars, running_spark
from penstock.errors import InvalidArgument, PenstockError
from penstock.spark.pipelines.archive.reading import read_archive

from .conftest import Shop, bury

REPAIRS = """
TAX = 2

def with_tax(letter):
    if letter.message.keys[0] == "o-1":
        raise ValueError("no tax for o-1")
    return letter.message.body.strip() + b" tax %d" % TAX

not_a_function = 7
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No contexts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


def test_archive_and_replay_from_the_command_line(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    cluster = ("--namesrv", shop.mq.namesrv)
    shop.mq.admin.create_topic("again", 1)
    shop.order(8)
    where = str(tmp_path / "archive")
    done = succeed("spark", "archive", "orders", where, *cluster, "--json").json
    assert (done["archived"], done["total"], done["gaps"]) == (8, 8, [])
    assert read_archive(spark, where).count() == 8
    table = succeed("spark", "archive", "orders", where, *cluster).lines
    assert ["archived", "0"] in table
    assert ["total", "8"] in table

    keys = tmp_path / "keys.txt"
    keys.write_text("o-2\n\no-5\n")
    choice = ("spark", "replay", "again", "--archive", where, "--keys-file", str(keys), *cluster)
    plan = run(*choice, "--key", "o-7", "--dry-run")
    assert plan.code == 0
    assert "3 messages of archive" in plan.err
    assert "--yes" in fail(*choice)
    sent = run(*choice, "--yes")
    assert "Sent 2 of 2 messages" in sent.out
    (replay_id,) = re.findall(r"with --resume (\S+) sends", sent.err)
    assert f"replay {replay_id}." in sent.out
    assert "Sent 0 of 2 messages" in succeed(*choice, "--yes", "--resume", replay_id).out
    (range_,) = shop.mq.admin.topic_stats("again")
    assert range_.max_offset == 2


def test_a_mistake_that_spark_wraps_is_reported_in_its_own_words(spark: SparkSession) -> None:
    with (
        pytest.raises(InvalidArgument, match="topc") as refused,
        running_spark("mistaken", None) as session,
    ):
        session.read.format("penstock").option("topc", "orders").load()
    assert "Traceback" not in str(refused.value)


def test_a_stopped_job_reports_what_stays_and_how_to_go_on(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut_short() -> None:
        # What Spark's bridge logs then.
        logging.getLogger("py4j.clientserver").error("Exception while sending command.")
        raise KeyboardInterrupt

    stopped = "Stopped. The same command goes on."
    with pytest.raises(KeyboardInterrupt), running_spark("stopped", None, stopped=stopped):
        cut_short()
    assert capsys.readouterr().err == "Stopped. The same command goes on.\n"


@pytest.mark.parametrize("end", [KeyboardInterrupt(), PenstockError("no Java")], ids=repr)
def test_a_start_that_is_cut_short_leaves_no_directory(
    spark: SparkSession,
    end: BaseException,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut_short(*args: object, **kwargs: object) -> None:
        raise end

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("penstock.spark.session", cut_short)
    with pytest.raises(type(end)), running_spark("unborn", None):
        pass
    assert list(tmp_path.iterdir()) == []


def test_in_a_log_progress_is_a_line_for_each_thing_and_one_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([0.0, 1.0, 11.0, 12.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    with Bars(quiet=False) as bars:
        for what, done in (("reading", 0), ("reading", 1), ("reading", 2), ("writing", 0)):
            bars(what, done, 3)
    assert capsys.readouterr().err == "reading: 0 of 3\nreading: 2 of 3\nwriting: 0 of 3\n"
    with Bars(quiet=True) as bars:
        bars("reading", 0, 3)
    assert capsys.readouterr().err == ""


def test_dead_letters_are_shown_repaired_and_redriven(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.order(4)
    bury(shop.mq, "billing", ["o-1", "o-2"])
    repairs = tmp_path / "repairs.py"
    repairs.write_text(REPAIRS)
    choice = ("spark", "dlq", "billing", "--namesrv", shop.mq.namesrv)
    rows = succeed(*choice, "--json").json
    assert {row["reason"]: row["letters"] for row in rows} == {
        "no price for o-1": 1,
        "no price for o-2": 1,
    }
    assert {row["origin_topic"] for row in rows} == {"orders"}
    audit = ("--audit", str(tmp_path / "audit"))
    redrive = (*choice, "--redrive", "--repair", f"{repairs}:with_tax", *audit)
    assert "--yes" in fail(*redrive)
    plan = run(*redrive, "--dry-run", "--json")
    assert (plan.json["redriven"], plan.json["failed"], plan.code) == (1, 1, 1)
    done = run(*redrive, "--yes")
    assert done.code == 1
    assert "1 failed: repair: ValueError: no tax for o-1" in done.err
    again = run(*redrive, "--yes", "--json", "--where", "reason like '%o-2'", "--all")
    assert (again.json["redriven"], again.json["already"], again.code) == (0, 1, 0)
    rows = spark.read.format("penstock").options(namesrv=shop.mq.namesrv, topic="%RETRY%billing")
    (copy,) = rows.load().collect()
    assert bytes(copy["body"]).endswith(b" tax 2")


def test_a_report_is_written(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    shop.order(3)
    page = tmp_path / "r.html"
    cluster = ("--namesrv", shop.mq.namesrv)
    done = succeed("spark", "report", "-o", str(page), "--watch", "100ms", "--json", *cluster).json
    assert sum(topic["messages"] for topic in done["topics"]) == 3
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert f"Wrote {page}: 3 messages" in succeed("spark", "report", "-o", str(page), *cluster).out


def test_mistakes_are_one_sentence_each(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    cluster = ("--namesrv", shop.mq.namesrv)
    repairs = tmp_path / "repairs.py"
    repairs.write_text(REPAIRS)
    assert "orders" in fail("spark", "archive", "ordrs", str(tmp_path / "a"), *cluster)
    assert "source of the replay is missing" in fail("spark", "replay", "again", *cluster)
    assert f"there is no archive in {tmp_path};" in fail(
        "spark", "replay", "again", "--archive", str(tmp_path), "--dry-run", *cluster
    )
    shop.mq.admin.create_group("billing")
    dlq = ("spark", "dlq", "billing", "--repair")
    assert "FILE.py:FUNCTION" in fail(*dlq, "nonsense", *cluster)
    assert "no function 'not_a_function'" in fail(*dlq, f"{repairs}:not_a_function", *cluster)
    assert "cannot be loaded" in fail(*dlq, f"{tmp_path}/missing.py:f", *cluster)
    unknown = fail("spark", "dlq", "biling", *cluster)
    assert "no broker knows consumer group 'biling'; did you mean billing?" in unknown
    # Without anything to do there is no question to confirm.
    nowhere = fail("spark", "replay", "again", "--archive", str(tmp_path / "no"), *cluster)
    assert f"there is no archive in {tmp_path / 'no'};" in nowhere
    file = tmp_path / "file"
    file.touch()
    refused = fail("spark", "archive", "orders", str(file / "archive"), *cluster)
    assert f"{file / 'archive'} cannot be created: not a directory" in refused
    assert "penstock up" in fail("spark", "report", "--namesrv", "127.0.0.1:1")
    wrong = fail("spark", "dlq", "billing", "--where", "raeson = 1", *cluster)
    assert "raeson" in wrong
    assert "--from" in fail("spark", "report", "--from", "whenever", *cluster)
