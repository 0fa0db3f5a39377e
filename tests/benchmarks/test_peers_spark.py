"""Spark's part of the comparison: its jars, and the report of its figures."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers.plots import draw
from benchmarks.peers.servers.server import JARS, Unavailable, check_hashes
from benchmarks.peers.spark.plan import (
    BROKER,
    IDLE,
    KAFKA,
    PARQUET,
    PATH,
    SCAN,
    SINK,
    STREAM,
)
from benchmarks.peers.spark.run import CONNECTOR
from benchmarks.peers.spark.tables import compared, spark_markdown

# Jars


def pinned(directory: Path, *jars: Path) -> Path:
    lines = [f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n" for jar in jars]
    file = directory / "pinned.sha256"
    file.write_text("".join(lines))
    return file


def jar(directory: Path, name: str) -> Path:
    file = directory / name
    file.write_bytes(name.encode())
    return file


def test_jars_that_are_what_was_expected_are_taken(tmp_path: Path) -> None:
    jars = [jar(tmp_path, "a.jar"), jar(tmp_path, "b.jar")]
    check_hashes(jars, pinned(tmp_path, *jars))


def test_a_jar_with_other_bytes_is_refused(tmp_path: Path) -> None:
    jars = [jar(tmp_path, "a.jar"), jar(tmp_path, "b.jar")]
    file = pinned(tmp_path, *jars)
    jars[1].write_bytes(b"something else")
    with pytest.raises(Unavailable, match=r"^b\.jar: not what pinned\.sha256 expects$"):
        check_hashes(jars, file)


def test_a_jar_too_many_or_too_few_is_refused(tmp_path: Path) -> None:
    jars = [jar(tmp_path, "a.jar"), jar(tmp_path, "b.jar")]
    with pytest.raises(Unavailable, match=r"b\.jar"):
        check_hashes(jars, pinned(tmp_path, jars[0]))
    with pytest.raises(Unavailable, match=r"b\.jar"):
        check_hashes(jars[:1], pinned(tmp_path, *jars))


def test_every_jar_of_the_connector_has_a_hash() -> None:
    lines = (JARS / f"spark_kafka-{CONNECTOR}.sha256").read_text().splitlines()
    names = [line.split()[1] for line in lines]
    assert f"spark-sql-kafka-0-10_2.13-{CONNECTOR}.jar" in names
    assert len(names) == (JARS / "spark_kafka.xml").read_text().count("<dependency>")


# The report


def rates(*values: float) -> dict[str, list[float]]:
    return {"per_second": list(values), "spark_microseconds": [2.0], "server_microseconds": [1.0]}


def document() -> dict[str, Any]:
    """What two rounds might have come to."""
    return {
        "plan": {"rounds": 2, "messages": 1000, "batches": 4, "written": 500},
        "versions": {"spark": "4.3.0", KAFKA: "4.2.0"},
        "rows": {
            SCAN: {
                BROKER: rates(300, 600),
                PATH: rates(900, 1000),
                KAFKA: rates(400, 500),
                PARQUET: rates(1800, 2000),
            },
            STREAM: {BROKER: {"per_second": [200.0, 200.0]}},
            SINK: {BROKER: rates(100, 120), KAFKA: rates(200, 240)},
            IDLE: {
                BROKER: {"batch_ms": [50.0, 60.0], "send_to_end_ms": [70.0, 80.0]},
                KAFKA: {"batch_ms": [100.0, 180.0], "send_to_end_ms": [120.0, 200.0]},
            },
        },
        "failures": [{"who": KAFKA, "row": STREAM, "why": "KafkaException no"}],
        "skipped": [],
    }


def test_ours_stand_beside_theirs_and_a_shorter_time_is_the_faster_one() -> None:
    found = {
        (one["row"], one["ours"], one["beside"]): (one["median"], one["met"])
        for one in compared(document()["rows"])
    }
    assert found == {
        (SCAN, BROKER, KAFKA): (pytest.approx(0.975), False),
        (SCAN, BROKER, PARQUET): (pytest.approx(0.2333, abs=1e-3), None),
        (SCAN, PATH, KAFKA): (pytest.approx(2.125), True),
        (SCAN, PATH, PARQUET): (0.5, None),
        (SINK, BROKER, KAFKA): (0.5, False),
        (IDLE, BROKER, KAFKA): (2.5, True),
    }


def test_the_section_about_spark_shows_figures_their_spread_and_targets() -> None:
    text = spark_markdown(document())
    assert "| penstock, broker | 450 (300 to 600) | 200 (200 to 200) | 110 (100 to 120) |" in text
    assert "| sink, penstock, broker | spark-sql-kafka | 0.5 (0.5 to 0.5) | 1 | no |" in text
    assert "The connector is that of Spark 4.2.0, used with Spark 4.3.0" in text
    assert "| parquet | 1,900 (1,800 to 2,000) | - | - | - | - |" in text


def test_the_plot_of_spark_has_a_panel_for_each_row(tmp_path: Path) -> None:
    written = draw({"rows": {}, "servers": {}, "growth": {}, "spark": document()}, tmp_path)
    assert [path.name for path in written] == ["peers-spark.svg"]
    drawn = written[0].read_text()
    for row in ("scan: rows a second", "idle: ms a micro-batch"):
        assert f"<!-- Spark, {row} -->" in drawn
