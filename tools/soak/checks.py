"""Repeats randomised tests with new seeds.

Kills: processes killed at random moments, and what the next start finds (`tests/crash`): plain
sends, transactions, timers, popped messages; from `make soak MINUTES=60` on in their long forms.
Faults: a broker with all kinds of traffic, and what an operating system does to it
(`tests/faults`): processes without time, full, read-only and vanished disks, flipped bits, no
descriptors, connections that are dead at one end, kills during recovery, retention, deletion and
rolling. Every message is accounted for; from `make soak MINUTES=60` on in the long forms.
Fuzzers: every property test, with more examples than in `make test` and a new seed each time.
pytest prints what fails; the seed is printed so that the run can be repeated.
Spark: its processes and the broker killed in mid-batch, and every row counted (`tools.spark_soak`).
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.soak.outcome import Outcome, say

ROOT: Final = Path(__file__).parents[2]
FAULTS: Final = ("tests/faults",)
CRASHES: Final = ("tests/crash", "tests/simulation/test_pop_members.py")
LONG_SECONDS: Final = 600.0
"""With so much time, these tests run in their long forms (`PENSTOCK_LONG`), which take minutes."""
EXAMPLES: Final = 1_000
"""Examples for each property test that sets no number of its own."""
_PASSED: Final = re.compile(r"(\d+) passed")
_TAIL_LINES: Final = 60


def property_tests() -> list[str]:
    """The files with property tests, except those that start Spark."""
    found = [
        path.relative_to(ROOT)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "from hypothesis import" in path.read_text()
    ]
    return [str(path) for path in found if path.parts[1] != "spark"]


def kill(seconds: float) -> Outcome:
    """Kill writers and brokers repeatedly."""
    return rounds("kills", CRASHES, form(seconds), seconds, "killed at random")


def starve(seconds: float) -> Outcome:
    """Take from brokers what they live on, and give it back."""
    return rounds("faults", FAULTS, form(seconds), seconds, "every message accounted for")


def form(seconds: float) -> dict[str, str]:
    """What makes tests take their long forms, if there is time for it."""
    return {"PENSTOCK_LONG": "1"} if seconds >= LONG_SECONDS else {}


def fuzz(seconds: float) -> Outcome:
    """Run the property tests repeatedly with new seeds."""
    more = {"PENSTOCK_EXAMPLES": str(EXAMPLES)}
    return rounds("fuzzers", property_tests(), more, seconds, f"{EXAMPLES} examples each")


def kill_spark(seconds: float) -> Outcome:
    """Kill Spark and the broker repeatedly, and account for every message and every copy."""
    say(f"spark: {seconds:.0f} s")
    until = time.monotonic() + seconds
    count = 0
    failures: list[str] = []
    while not count or time.monotonic() < until:
        seed = random.SystemRandom().getrandbits(16)
        words = ["--messages", "20000", "--kills", "3", "--broker-kills", "2", "--seed", str(seed)]
        command = [sys.executable, "-m", "tools.spark_soak", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        count += 1
        if done.returncode:
            say("\n".join((done.stdout + done.stderr).splitlines()[-_TAIL_LINES:]))
            failures.append(f"python -m tools.spark_soak {' '.join(words)}")
        say(f"spark: round {count}, {len(failures)} rounds failed")
    return Outcome("spark", f"{count} rounds of 20,000 messages, killed at random", failures)


def rounds(
    part: str, paths: Sequence[str], more: dict[str, str], seconds: float, what: str
) -> Outcome:
    """Run these tests with new seeds until the time is up, at least once."""
    say(f"{part}: {seconds:.0f} s")
    until = time.monotonic() + seconds
    count = checks = 0
    failures: list[str] = []
    while not count or time.monotonic() < until:
        seed = random.SystemRandom().getrandbits(32)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [f"--hypothesis-seed={seed}", *paths]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        count += 1
        passed = _PASSED.search(done.stdout)
        checks += int(passed[1]) if passed else 0
        if done.returncode:
            say("\n".join((done.stdout + done.stderr).splitlines()[-_TAIL_LINES:]))
            failures.append(f"{part} with --hypothesis-seed={seed}")
        say(f"{part}: round {count}, {checks} checks passed, {len(failures)} rounds failed")
    return Outcome(part, f"{count} rounds, {checks} checks, {what}", failures)
