"""The soak tool: it stops in time, and a failing seed is reported and fails the run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tools.soak import checks, memory, simulation, streams
from tools.soak.__main__ import SHARES, main

from penstock.client.consuming.process_queue import ProcessQueue


def test_a_seed_is_run_again_and_its_summary_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "4"]) == 0
    assert "Summary(seed=4," in capsys.readouterr().out


def test_a_seed_that_fails_prints_its_plan_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessQueue, "commit", lambda *_: 1_000_000)
    monkeypatch.setattr(ProcessQueue, "remove", lambda *_: 1_000_000)
    assert main(["--seed", "4"]) == 1
    printed = capsys.readouterr().out
    assert "was committed at 1000000" in printed
    assert "seed 4:" in printed
    assert "Repeat with: python -m tools.soak --seed 4" in printed


def test_seeds_follow_each_other_until_the_time_has_come() -> None:
    jobs = simulation.jobs(100, time.monotonic() + 3600)
    assert [next(jobs) for _ in range(5)] == [
        (100, True),
        (101, False),
        (102, False),
        (103, False),
        (104, True),
    ]
    assert list(simulation.jobs(100, time.monotonic())) == []


def test_a_short_soak_runs_in_other_processes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulation", "--minutes", "0.001", "--first", "5", "--processes", "1"]
    assert main(arguments) == 0
    assert "simulation: " in capsys.readouterr().out


def test_a_part_that_is_not_there_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulations"])
    printed = capsys.readouterr().err
    assert "'simulations'" in printed
    assert all(part in printed for part in SHARES)


def test_a_broker_under_load_and_nonsense_keeps_its_memory() -> None:
    outcome = memory.watch(6)
    assert outcome.failures == []
    assert " 0 messages sent" not in outcome.tried
    assert " 0 requests with changed bytes" not in outcome.tried


def test_checks_that_fail_are_reported_with_their_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "test_broken.py"
    broken.write_text("def test_this_fails():\n    assert False\n")
    outcome = checks.rounds("fuzzers", [str(broken)], {}, 0, "of one")
    assert outcome.tried == "1 rounds, 0 checks, of one"
    [failure] = outcome.failures
    assert failure.startswith("fuzzers with --hypothesis-seed=")
    assert "test_this_fails" in capsys.readouterr().out


def test_an_hour_is_enough_for_the_long_forms_of_all_kills() -> None:
    assert checks.form(3600 * SHARES["kills"]) == {"PENSTOCK_LONG": "1"}
    assert checks.form(3600 * SHARES["faults"]) == {"PENSTOCK_LONG": "1"}
    assert checks.form(600 * SHARES["kills"]) == {}
    kills = {path.name for path in (checks.ROOT / checks.CRASHES[0]).glob("test_*.py")}
    assert {f"test_{what}_kill.py" for what in ("transaction", "timer", "pop")} <= kills


def test_property_tests_are_found() -> None:
    found = checks.property_tests()
    assert "tests/protocol/test_frames.py" in found
    assert not any("spark" in path for path in found)


def test_streams_that_grow_are_reported() -> None:
    steady = [streams.Sample(40_000 + step, 90, 40, 41, 380 + step) for step in range(9)]
    assert streams.growth(steady, 40) == []
    more = streams.Sample(80_000, 180, 41, 60, 900)
    found = streams.growth([*steady[:6], more, more, more], 40)
    assert [failure.split()[0] for failure in found] == ["memory", "connections", "tasks", "41"]
    assert streams.growth(steady[:2], 40) == []
