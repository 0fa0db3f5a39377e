"""Every command of the README and the documentation runs and prints what the page shows."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, commands, comparable, files, name_of, pages
from tools.translations import TRANSLATIONS

from penstock.cli.target import DEFAULT_NAMESRV
from penstock.runtime.child_process import ChildProcess

# The commands of a translation are those of the English page, as test_translations shows.
PAGES = [page for page in pages() if commands(page) and name_of(page) not in TRANSLATIONS.values()]
# Commands that install the project or take minutes have tests of their own.
ELSEWHERE = re.compile(r"(make|pip|git|cd|python3? -m (build|venv|pip)|penstock demo)\b")
FREE_PORTS = ("--nameserver-port", "0", "--broker-port", "0")
SECONDS = 100
ID = re.compile(r"\b[0-9A-F]{32}\b")


class Terminal:
    """Runs the commands of a page in one directory; a started broker keeps running."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._namesrv = DEFAULT_NAMESRV
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(directory / "config"),
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }
        self._environment.pop("NAMESRV_ADDR", None)

    def run(self, line: str) -> str:
        """Run one command line and return its output."""
        if re.match(r"penstock up\b", line):
            return self._serve(line)
        line = line.replace(DEFAULT_NAMESRV, self._namesrv)
        done = subprocess.run(
            ["bash", "-c", line],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            cwd=self._directory,
            env=self._environment,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout + done.stderr

    def _serve(self, line: str) -> str:
        arguments = line.rstrip("& ").split()[2:]
        child = self._stack.enter_context(
            ChildProcess(
                (sys.executable, "-m", "penstock", "up", *arguments, *FREE_PORTS),
                directory=self._directory,
                environment=self._environment,
            )
        )
        ready = child.wait_for_line(r"^ready namesrv=(\S+).*$")
        self._namesrv = ready[1]
        if "--auth" not in arguments:
            # With users, the server has saved a context with its address and the keys.
            self._environment["NAMESRV_ADDR"] = ready[1]
        return ready[0]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with contextlib.ExitStack() as stack:
        yield Terminal(tmp_path, stack)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=[name_of(page) for page in PAGES])
def test_the_commands_of_a_page_print_what_it_says(
    page: Path, terminal: Terminal, tmp_path: Path
) -> None:
    for name, content in files(page).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    ran = 0
    # A later command may use an id that an earlier one printed.
    ids: dict[str, str] = {}
    for command in commands(page):
        if ELSEWHERE.match(command.line):
            continue
        printed = terminal.run(ID.sub(lambda shown: ids.get(shown[0], shown[0]), command.line))
        ids.update(zip(ID.findall(command.printed), ID.findall(printed), strict=False))
        if command.printed:
            assert comparable(printed) == comparable(command.printed), command.line
        ran += 1
    assert ran or any(ELSEWHERE.match(command.line) for command in commands(page))
