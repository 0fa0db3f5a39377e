"""``penstock demo``, as a newcomer runs it: in an empty directory, on a machine without Java."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest


def _look(console: str) -> None:
    """The demo leaves something to look at."""

    def page(path: str) -> str:
        with urllib.request.urlopen(f"{console}c/local/{path}", timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    assert "fraud-check" in page("")
    assert re.search(r'data-label="Messages" class="num">1\d\d<', page("topics"))
    assert "total" in page("topics/orders/messages")
    assert page("groups/fraud-check/dead-letters").count('name="id"') > 0


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("quick_java")
def test_the_demo_accounts_for_every_order_and_writes_its_report(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "penstock", "demo", "--orders", "100", "--json", "--stay"],
        cwd=tmp_path,
        env=_without_java(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with demo:
        assert demo.stderr is not None
        said = []
        try:
            for line in demo.stderr:
                said.append(line)
                if found := re.search(r"Look at (http://\S+)", line):
                    _look(found[1])
                    demo.send_signal(signal.SIGINT)
                    break
            out, err = demo.communicate(timeout=120)
        finally:
            demo.kill()
    assert demo.returncode == 0, [*said, err]
    result = json.loads(out)
    assert result.pop("seconds") > 0
    assert result == {
        "orders": 100,
        "sent": 100,
        "billed": 98,
        "retried": 5,
        "dead": 2,
        "shipped": 100,
        "checked_on_spark": 100,
        "archived": 100,
        "redriven": 2,
        "billed_after_repair": 2,
        "sums_agree": True,
        "report": "demo-report.html",
    }
    page = (tmp_path / "demo-report.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 3
    assert "the card has expired" in page


def test_ctrl_c_while_spark_starts_is_heard_at_once(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "penstock", "demo"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stderr is not None
    try:
        while "placing" not in (line := demo.stderr.readline()):
            assert line, "it has ended"
        demo.send_signal(signal.SIGINT)
        said = demo.stderr.read().splitlines()
        assert demo.wait(60) == 130
    finally:
        demo.kill()
        demo.wait()
        demo.stderr.close()
    assert said[-1] == "Stopping ..."


def _without_java(directory: Path) -> dict[str, str]:
    """An environment whose PATH leads to all of this machine's tools but Java's."""
    tools = directory / "tools"
    tools.mkdir()
    for place in ("/usr/bin", "/bin"):
        for tool in Path(place).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    kept = {"HOME", "LANG", "TMPDIR", "PYTHONPATH", "JAVA_TOOL_OPTIONS"}
    environment = {name: value for name, value in os.environ.items() if name in kept}
    return {**environment, "PATH": str(tools), "XDG_CACHE_HOME": str(directory / "cache")}
