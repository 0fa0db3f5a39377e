"""``penstock demo``, as a newcomer runs it: in an empty directory, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("quick_java")
def test_the_demo_accounts_for_every_order_and_writes_its_report(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "demo", "--orders", "100", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told.pop("seconds") > 0
    assert told == {
        "orders": 100,
        "sent": 100,
        "billed": 98,
        "retried": 5,
        "dead": 2,
        "shipped": 100,
        "checked_on_spark": 100,
        "archived": 100,
        "redriven": 2,
        "billed_after_repair": 2,
        "sums_agree": True,
        "report": "demo-report.html",
    }
    page = (tmp_path / "demo-report.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 3
    assert "the card has expired" in page
