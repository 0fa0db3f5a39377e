"""Shows which rows of the behaviour checklist have tests, and whether they pass.

    python -m tools.spec_table            run every test marked with a row, then print the table
    python -m tools.spec_table --list     only list the tests, run nothing
    python -m tools.spec_table --missing  also fail if a row has no test

A test names the rows it shows: ``@pytest.mark.spec("S42")``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROWS_FILE = Path(__file__).with_name("spec_rows.txt")


def read_rows(text: str) -> dict[str, str]:
    """Map each row to its short name, in the order of the file."""
    rows: dict[str, str] = {}
    for line in text.splitlines():
        row, _, name = line.partition(" ")
        if not name or row in rows:
            raise ValueError(f"line {line!r} of {ROWS_FILE.name} is not a new row with a name")
        rows[row] = name
    return rows


@dataclass(eq=False)
class Outcomes:
    """A pytest plugin that runs only marked tests and records their results."""

    tests: dict[str, set[str]] = field(default_factory=dict)
    """Maps each row to the ids of its tests."""
    failed: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        kept: list[pytest.Item] = []
        others: list[pytest.Item] = []
        for item in items:
            rows = {str(row) for mark in item.iter_markers("spec") for row in mark.args}
            (kept if rows else others).append(item)
            for row in rows:
                self.tests.setdefault(row, set()).add(item.nodeid)
        items[:] = kept
        config.hook.pytest_deselected(items=others)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call":
            self.passed.add(report.nodeid)

    def verdict(self, row: str) -> str:
        """The state of a row."""
        tests = self.tests.get(row, set())
        if not tests:
            return "no test"
        if tests & self.failed:
            return "FAIL"
        return "pass" if tests <= self.passed else "not run"


def table(rows: dict[str, str], outcomes: Outcomes) -> Iterable[str]:
    """The lines of the table."""
    width = max(map(len, rows.values()))
    for row, name in rows.items():
        tests = outcomes.tests.get(row, set())
        # All parameters of a test count as one test.
        shown = sorted({test.partition("[")[0].removeprefix("tests/") for test in tests})
        yield f"{row:<5} {outcomes.verdict(row):<8} {name:<{width}}  {len(tests):>3}  " + (
            shown[0] + (f" (+{len(shown) - 1})" if len(shown) > 1 else "") if shown else ""
        )
    missing = [row for row in rows if not outcomes.tests.get(row)]
    yield ""
    yield f"{len(rows) - len(missing)} of {len(rows)} rows have tests"
    if missing:
        yield f"without one: {' '.join(missing)}"
    unknown = sorted(outcomes.tests.keys() - rows.keys())
    if unknown:
        yield f"no such rows: {' '.join(unknown)}"


def main(arguments: list[str]) -> int:
    """Run the tests, print the table, return 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="spec_table", description=__doc__)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--missing", action="store_true")
    options = parser.parse_args(arguments)
    rows = read_rows(ROWS_FILE.read_text())
    outcomes = Outcomes()
    command = ["-q", "--no-header", "-p", "no:cacheprovider", "tests"]
    if options.list:
        command = ["--collect-only", "-qqq", *command]
    status = int(pytest.main(command, plugins=[outcomes]))
    sys.stdout.write("\n".join(table(rows, outcomes)) + "\n")
    if outcomes.tests.keys() - rows.keys():
        return 1
    if options.missing and rows.keys() - outcomes.tests.keys():
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
