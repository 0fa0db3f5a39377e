"""The soak tool: it stops in time, and a failing seed is told and fails it."""

from __future__ import annotations

import time

import pytest

from penstock.client.process_queue import ProcessQueue
from tools import soak


def test_a_seed_is_run_again_and_its_summary_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--seed", "4"]) == 0
    assert "Summary(seed=4," in capsys.readouterr().out


def test_a_seed_that_fails_prints_its_plan_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessQueue, "commit", lambda *_: 1_000_000)
    monkeypatch.setattr(ProcessQueue, "remove", lambda *_: 1_000_000)
    assert soak.main(["--seed", "4"]) == 1
    printed = capsys.readouterr().out
    assert "was committed at 1000000" in printed
    assert "seed 4:" in printed
    assert "Again: python -m tools.soak --seed 4" in printed


def test_seeds_follow_each_other_until_the_time_has_come() -> None:
    jobs = soak.jobs(100, time.monotonic() + 3600)
    assert [next(jobs) for _ in range(5)] == [
        (100, True),
        (101, False),
        (102, False),
        (103, False),
        (104, True),
    ]
    assert list(soak.jobs(100, time.monotonic())) == []


def test_a_short_soak_runs_in_other_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--minutes", "0.001", "--first", "5", "--processes", "1"]) == 0
    assert "0 failed" in capsys.readouterr().out
