"""Runs a program that executes scenarios with one client and prints a JSON line for each."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.interop.results import FAIL, LIMIT, SKIP, Cell
from tests.interop.toolchain import BUILD

RUN_SECONDS = 900

# Features that penstock refuses so far; a cell is a "limit" only if the refusal was observed.
REFUSED = re.compile(r"CODE: \d+,?\s+DESC: .*not supported by this broker yet")


def run_program(
    command: Sequence[str],
    names: Sequence[str],
    section: str,
    column: str,
    *,
    limits: Mapping[str, re.Pattern[str]] | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Cell]:
    """Run ``command``; yield a cell as each of ``names`` ends, a failure if it never did."""
    log = BUILD / "logs" / f"scenarios-{column.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    open_names = dict.fromkeys(names)
    for line in _lines(command, log, env or {}):
        found = json.loads(line)
        name, status, evidence = found["scenario"], found["status"], found["evidence"]
        open_names.pop(name, None)
        refusal = (limits or {}).get(name)
        if status == FAIL and refusal is not None and refusal.search(evidence):
            status = LIMIT
        yield Cell(section, name, column, status, evidence, found["ms"])
    for name in open_names:
        yield Cell(section, name, column, FAIL, f"the program ended without a result; see {log}")


def not_run(names: Sequence[str], section: str, column: str, reason: object) -> Iterator[Cell]:
    """A cell with the reason for each of ``names`` that was not run."""
    for name in names:
        yield Cell(section, name, column, SKIP, str(reason))


def program_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program."""
    return {**os.environ, **more}


def _lines(command: Sequence[str], log: Path, env: Mapping[str, str]) -> Iterator[str]:
    with (
        log.open("w") as errors,
        subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=program_environment(env),
        ) as program,
    ):
        try:
            assert program.stdout is not None
            for line in program.stdout:
                if line.startswith("{"):
                    yield line
            program.wait(RUN_SECONDS)
        finally:
            program.kill()
