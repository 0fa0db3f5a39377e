"""Every Python block of the README and the documentation runs and prints what the page shows.

The blocks that use Spark run in ``tests/spark``, where they share one session.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs import checked_run
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
    done = run(file)
    assert done.returncode == 0, done.stderr
    if program.printed is not None:
        assert done.stdout == program.printed


def run(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, checked_run.__file__, file],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=file.parent,
    )


TEST = "def test_it(penstock):\n    assert penstock.namesrv{}\n"


@pytest.mark.parametrize(
    ("code", "ends_with"),
    [
        ("assert True\n", 0),
        ("assert False\n", 1),
        ("def check():\n    assert True\n\n\ncheck()\n", 0),
        ("def check():\n    assert False\n", checked_run.NOT_RUN),
        ("if False:\n    assert False\n", checked_run.NOT_RUN),
        (f"import pytest\nTEST = {TEST!r}\nprint('exit code', 1)\n", checked_run.NOT_RUN),
        (TEST.format(""), 0),
        ("import pytest\n\n\n@pytest.mark.skip\n" + TEST.format(""), checked_run.NOT_RUN),
    ],
)
def test_a_program_whose_assertions_do_not_run_is_noticed(
    code: str, ends_with: int, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(code, encoding="utf-8")
    assert run(file).returncode == ends_with
