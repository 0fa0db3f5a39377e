"""Spark's own declarative pipelines, reading and writing ``penstock``: the example, as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "declarative_pipeline" / "run.py"


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("quick_java")
def test_a_declarative_pipeline_reads_a_topic_and_writes_tables_and_a_topic() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE], capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Order n costs 20 n: of shop 0 the orders 0, 3, ..., 27, and so on.
    expected = [
        f"shop-{shop}: 10 orders, {sum(20 * n for n in range(shop, 30, 3))} in all"
        for shop in range(3)
    ]
    assert done.stdout.splitlines()[1:] == [
        *expected,
        "large orders: o-25, o-26, o-27, o-28, o-29",
    ]
