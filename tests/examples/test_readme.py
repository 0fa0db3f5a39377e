"""Every Python block of the README runs, and prints what the README says it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)
BLOCKS = BLOCK.findall(README.read_text(encoding="utf-8"))


def test_the_readme_has_a_snippet_and_its_output() -> None:
    assert any(printed for _, printed in BLOCKS)


@pytest.mark.parametrize(("code", "printed"), BLOCKS)
def test_a_block_of_the_readme_runs_and_prints_what_it_says(
    code: str, printed: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
