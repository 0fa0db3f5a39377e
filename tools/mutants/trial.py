"""Tries one mistake: a copy of the project, the mistake in it, the tests that should notice.

The project itself is never changed. A trial runs in a process group of its own, so that what
tests have started ends with them when their time is up.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.mutants.catalogue import ROOT, Mutant

LIMIT_SECONDS: Final = 150.0
"""For all tests of one mistake; those of the lists take a few seconds when nothing is wrong."""
_TEST_SECONDS: Final = 60
_OUTPUT_CHARACTERS: Final = 2_000
NOTICED: Final = "noticed"
SURVIVED: Final = "survived"
TIME_UP: Final = "time was up"
UNCLEAR: Final = "unclear"
"""The tests could not be run: an import failed, or there is no such test."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a run of tests."""

    outcome: str
    seconds: float
    output: str = ""
    """The end of what pytest printed, where it explains the outcome."""

    @property
    def is_noticed(self) -> bool:
        """A test that no longer ends is a sign, too."""
        return self.outcome in (NOTICED, TIME_UP)


@contextlib.contextmanager
def project_copy(directory: Path, root: Path = ROOT) -> Iterator[Path]:
    """A copy of what tests need, without caches; removed at the end."""
    copy = directory / "project"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (root / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)
    try:
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def run_tests(copy: Path, tests: Sequence[str], limit_seconds: float = LIMIT_SECONDS) -> Verdict:
    """Run tests in the copy, stopping at the first that fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += [f"--timeout={_TEST_SECONDS}", "--no-header", "--tb=short", *tests]
    # Before the directory of the editable installation, for the commands that tests start as well.
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    begun = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            _end_group(process.pid)
            process.communicate()
            return Verdict(TIME_UP, time.monotonic() - begun)
    _end_group(process.pid)
    outcome = {0: SURVIVED, 1: NOTICED}.get(process.returncode, UNCLEAR)
    return Verdict(outcome, time.monotonic() - begun, output[-_OUTPUT_CHARACTERS:])


def try_mutant(copy: Path, mutant: Mutant, limit_seconds: float = LIMIT_SECONDS) -> Verdict:
    """Run the tests of a mistake while the copy has it."""
    path = copy / mutant.path
    right = path.read_text()
    try:
        _replace(path, mutant.applied(right))
        return run_tests(copy, mutant.tests, limit_seconds)
    finally:
        _replace(path, right)


def _replace(path: Path, text: str) -> None:
    path.write_text(text)
    # Compiled code is known by size and whole seconds, which two versions may have in common.
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def _end_group(pid: int) -> None:
    # Usually all of them have ended.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
