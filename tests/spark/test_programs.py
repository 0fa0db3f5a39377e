"""Examples and programs of the documentation that use Spark, run on the session of the tests.

`session()` returns the running session, so a program needs no Java of its own to be tried.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.docs.pages import ROOT, Program, spark_programs

EXAMPLES = {
    "spark_ingest": [
        "sum of all orders: 50500",
        "rows in Parquet: 100",
        "lag of group warehouse: 0",
        "messages in large-orders: 10",
    ],
    "spark_archive_and_replay": [
        "archived 60, 60 in all",
        "archived 1, 61 in all",
        "a replay would send 21",
        "sent 21 to orders-again",
    ],
    "spark_dead_letters": [
        "|amount cannot be read|orders      |4    |",
        "redriven: 4",
        "dead letters left: 0",
    ],
}
PROGRAMS = spark_programs()


def test_no_example_is_left_out() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("spark_*.py")} == EXAMPLES.keys()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_happened(
    name: str, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line in EXAMPLES[name]] == EXAMPLES[name]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "program", PROGRAMS, ids=[f"{program.page}-{program.number}" for program in PROGRAMS]
)
def test_a_program_of_a_page_prints_what_the_page_says(
    program: Program,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "program.py"
    file.write_text(program.code, encoding="utf-8")
    runpy.run_path(str(file), run_name="__main__")
    printed = capsys.readouterr().out
    if program.printed is not None:
        assert printed == program.printed
