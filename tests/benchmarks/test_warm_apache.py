"""While one side of a comparison is measured, the other is stopped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.warm_apache import alternate, generator

LOAD = """
import json, sys
from pathlib import Path
for row in sys.stdin:
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
              for pid in sys.argv[1:]]
    found = {"row": row.strip(), "own_stopped": states[0] == "T", "other_stopped": states[1] == "T"}
    print(json.dumps(found), flush=True)
"""


@contextmanager
def server() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def both(*, stops_others: bool) -> list[tuple[float, float]]:
    """For each measurement whether the servers of its own and of the other side were stopped."""
    with ExitStack() as stack:
        pids = {name: stack.enter_context(server()) for name in ("one", "two")}
        load = {}
        for name, other in (("one", "two"), ("two", "one")):
            command = [sys.executable, "-c", LOAD, str(pids[name]), str(pids[other])]
            load[name] = stack.enter_context(generator(command, f"test-{name}", [pids[name]]))
        found = alternate(load, 2, ["row"], 0, stops_others=stops_others)
    return [
        (own, other)
        for name in load
        for own, other in zip(
            found[name]["row:own_stopped"], found[name]["row:other_stopped"], strict=True
        )
    ]


def test_the_side_whose_turn_it_is_not_is_stopped() -> None:
    assert both(stops_others=True) == [(False, True)] * 4


def test_servers_that_others_share_are_left_alone() -> None:
    assert both(stops_others=False) == [(False, False)] * 4
