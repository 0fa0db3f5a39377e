"""Every Python block of the README and the documentation runs and prints what the page shows.

The blocks that use Spark run in ``tests/spark``, where they share one session.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import Program, plain_programs

PROGRAMS = plain_programs()


def test_the_readme_shows_a_program_and_its_output() -> None:
    assert any(program.page == "README.md" and program.printed for program in PROGRAMS)


@pytest.mark.parametrize(
    "program", PROGRAMS, ids=[f"{program.page}-{program.number}" for program in PROGRAMS]
)
def test_a_program_of_a_page_runs_and_prints_what_the_page_says(
    program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(program.code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, file],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    if program.printed is not None:
        assert done.stdout == program.printed
