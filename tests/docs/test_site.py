"""The documentation builds, and a page that is missing or a link that leads nowhere is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    commands = (tmp_path / "site/reference/cli.html").read_text(encoding="utf-8")
    for command in (
        "penstock up",
        "penstock topic create",
        "penstock dlq redrive",
        "penstock doctor",
    ):
        assert f">{command}<" in commands
    assert "PushConsumer" in (tmp_path / "site/reference/client.html").read_text(encoding="utf-8")
