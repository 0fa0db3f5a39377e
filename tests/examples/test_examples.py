"""Every example runs as a reader would run it, and prints what happened."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# What each must print; the patterns must occur in this order.
PRINTED = {
    "hello": [r"sent SEND_OK", r"billing 'two books', keys \('order-1',\), tag created", r"done"],
    "async_client": [r"sent 100 messages to \d queues", r"billed 100 orders"],
    "orderly": [
        *(f"{name}: created > paid > packed > shipped" for name in ("ann", "bob", "cem")),
        r"every customer failed once: True",
        r"in order: True",
    ],
    "delay": [
        r"22:13:20  sending three messages",
        r"at once",
        r"22:13:3\d  after ten seconds",
        r"22:43:2\d  after half an hour",
    ],
    "broadcast": [f"{name} dropped /about, /home, /prices" for name in ("r-1", "r-2", "r-3")],
    "retry_and_redrive": [
        r"flowers: billed at attempt 2",
        r"two books: failed at attempt 4",
        r"dead letter: a coat, from orders, attempts: 1, DeadLetter: the card has expired",
        r"dead letter: two books, from orders, attempts: 4, ValueError: card number cannot be read",
        r"billed\n",
        r"dead letters left: 0",
    ],
    "batch": [
        r"a batch of 100 went to one queue",
        r"900 single messages went to 2 queues",
        r"handlers got 1000 messages, up to \d+ at once",
        r"the sum is right: True",
    ],
    "middleware": [
        r"4 messages sent, 4 delivered",
        r"billed once each: order-1, order-2, order-3",
    ],
    "request_reply": [r"a book costs 12", r"a coat costs 80", r"unicorn: RequestTimeout"],
    "topic_in_duckdb": [r"Rome: 2 orders, 14\nOslo: 1 orders, 7\nLima: 1 orders, 4\n"],
    "polars_into_topic": [
        r"3 messages sent",
        r"""\['{"id":1,"amount":5}', '{"id":3,"amount":9}'\]""",
    ],
    "outbox": [
        *(rf"order-{number}: killed (before|after) .*, exit status -9" for number in range(5)),
        r"order-5: killed never, exit status 0",
        r"in the database: order-3, order-4, order-5\n",
        r"billed: +order-3, order-4, order-5\n",
        r"the same orders, each once: True",
    ],
    "fastapi_app": [
        r"POST /orders: 202",
        r"GET /bills/o-1: 200 {'number': 'o-1', 'amount': 42}",
        r"GET /bills/o-2: 404",
    ],
    "pytest_usage": [r"4 passed"],
    "move_to_a_cluster": [
        r"on the laptop: billed 20 of 20",
        r"copied: 20 messages",
        r"on the cluster of 2 brokers: billed 50 of 50",
        r"lag there: 0",
    ],
}


def run(name: str, directory: Path) -> str:
    """Run an example in an empty directory and return its output."""
    environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=directory,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_and_prints_what_happened(name: str, tmp_path: Path) -> None:
    printed = run(name, tmp_path)
    position = 0
    for pattern in PRINTED[name]:
        found = re.compile(pattern).search(printed, position)
        assert found is not None, f"{pattern!r} not found, or out of order, in:\n{printed}"
        position = found.end()
    assert list(tmp_path.iterdir()) == [], "the example left files behind"


def test_every_example_is_run_and_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    # The examples that need Spark run in tests/spark.
    names = {path.stem for path in EXAMPLES.glob("*.py") if not path.stem.startswith("spark_")}
    assert names == set(PRINTED)
    assert all(f"({name}.py)" in listed for name in names)
