"""How `benchmarks.warm_apache` measures: load generators, cores, turns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.warm_apache import alternate, generator, turns
from tests.support.waiting import wait_for

# Both are busy outside of what is measured, and idle in it.
PROGRAM = """
import json, sys, time
def burn():
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
for row in sys.stdin:
    burn()
    print("begin", flush=True)
    time.sleep(0.3)
    print("end", flush=True)
    burn()
    print(json.dumps({"row": row.strip(), "messages_per_second": 7.0}), flush=True)
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def state(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_cores_are_those_of_what_is_measured() -> None:
    with generator([sys.executable, "-c", PROGRAM], "test", []) as load:
        figures = load.run("a-row")
    assert figures["a-row:messages_per_second"] == 7.0
    assert figures["a-row:client_cores"] < 0.3


def test_a_generator_that_ends_is_an_error() -> None:
    with (
        generator([sys.executable, "-c", ""], "test", []) as load,
        pytest.raises((RuntimeError, BrokenPipeError)),
    ):
        load.run("a-row")


def test_only_one_target_runs_at_a_time(sleeper: subprocess.Popen[bytes]) -> None:
    given: list[str] = []
    with turns({"ours": [], "theirs": [sleeper.pid]}) as give_turn:
        give_turn("ours")
        wait_for(lambda: state(sleeper) == "T")
        give_turn("theirs")
        wait_for(lambda: state(sleeper) != "T")
        give_turn("ours")
    # At the end all run again, since a stopped process cannot end.
    wait_for(lambda: state(sleeper) != "T")
    with (
        generator([sys.executable, "-c", PROGRAM], "ours", []) as ours,
        generator([sys.executable, "-c", PROGRAM], "theirs", []) as theirs,
    ):
        load = {"ours": ours, "theirs": theirs}
        found = alternate(load, 2, ["row"], 0, given.append)
    assert given == ["ours", "theirs", "ours", "theirs", "theirs", "ours"]
    assert len(found["ours"]["row:messages_per_second"]) == 2
