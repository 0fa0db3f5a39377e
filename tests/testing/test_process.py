"""Real child processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from penstock.runtime.child_process import OUTPUT_LINES_KEPT, ChildProcess, ProcessFailed

SAYS_READY_AND_WAITS = "print('ready port=1234', flush=True); import time; time.sleep(600)"


def python(program: str) -> list[str]:
    return [sys.executable, "-u", "-c", program]


def is_alive(pid: int) -> bool:
    # A killed grandchild may stay a zombie until its new parent looks; that is dead enough.
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_until_dead(pid: int) -> None:
    for _ in range(1000):
        if not is_alive(pid):
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} still lives")


def test_a_line_is_awaited_and_its_groups_are_returned() -> None:
    with ChildProcess(python(SAYS_READY_AND_WAITS)) as child:
        assert child.wait_for_line(r"ready port=(\d+)")[1] == "1234"
        # A line that was said before counts too.
        assert child.wait_for_line("ready")
        assert child.is_running
    assert not child.is_running


def test_sigkill_ends_the_process_at_once() -> None:
    with ChildProcess(python(SAYS_READY_AND_WAITS)) as child:
        child.wait_for_line("ready")
        assert child.kill() == -signal.SIGKILL


def test_sigterm_lets_it_clean_up() -> None:
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(7)))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.01)"
    )
    with ChildProcess(python(program)) as child:
        child.wait_for_line("ready")
        assert child.terminate() == 7
        assert child.output.endswith("bye")


def test_a_process_that_ignores_sigterm_is_killed_and_reported() -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('ready', flush=True); time.sleep(600)"
    )
    with ChildProcess(python(program)) as child:
        child.wait_for_line("ready")
        with pytest.raises(ProcessFailed, match="did not end"):
            child.terminate(0.05)
        assert not child.is_running


def test_killing_takes_grandchildren_along() -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('grandchild', child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    with ChildProcess(python(program)) as child:
        grandchild = int(child.wait_for_line(r"grandchild (\d+)")[1])
        assert is_alive(grandchild)
        child.kill()
    wait_until_dead(grandchild)


def test_a_signal_may_be_sent_to_it_alone() -> None:
    program = (
        "import signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('got it', flush=True))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.01)"
    )
    with ChildProcess(python(program)) as child:
        child.wait_for_line("ready")
        child.send_signal(signal.SIGUSR1)
        child.wait_for_line("got it")


def test_both_streams_are_captured_and_a_lot_of_output_does_not_block() -> None:
    program = (
        "import sys\n"
        f"for number in range({OUTPUT_LINES_KEPT + 500}): print('line', number, 'x' * 80)\n"
        "print('to stderr', file=sys.stderr)\n"
        "print('the end')"
    )
    child = ChildProcess(python(program)).start()
    assert child.wait() == 0
    lines = child.output.splitlines()
    assert len(lines) == OUTPUT_LINES_KEPT
    assert "to stderr" in lines
    assert "the end" in lines
    assert "line 0 " not in child.output


def test_a_process_that_dies_early_is_reported_with_its_output() -> None:
    child = ChildProcess(python("print('no licence'); raise SystemExit(3)")).start()
    with pytest.raises(ProcessFailed, match="never said 'ready': ended with 3") as caught:
        child.wait_for_line("ready")
    assert "no licence" in str(caught.value)
    child.wait()
    with pytest.raises(ProcessFailed, match="ended with 3"):
        child.send_signal(signal.SIGTERM)


def test_a_line_that_never_comes_is_reported() -> None:
    with ChildProcess(python(SAYS_READY_AND_WAITS)) as child:
        with pytest.raises(ProcessFailed, match=r"never said 'steady': in 0\.05 seconds"):
            child.wait_for_line("steady", 0.05)
        with pytest.raises(ProcessFailed, match="still runs after"):
            child.wait(0.05)


def test_it_can_be_started_again_with_the_same_command(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, time\n"
        "path = pathlib.Path('starts')\n"
        "path.write_text(path.read_text() + 'x' if path.exists() else 'x')\n"
        "print('start', path.read_text(), os.environ['MOOD'], flush=True)\n"
        "time.sleep(600)"
    )
    child = ChildProcess(python(program), environment={"MOOD": "fine"}, directory=tmp_path)
    with child:
        child.wait_for_line("start x fine")
        first = child.pid
        child.restart()
        child.wait_for_line("start xx fine")
        assert child.pid != first
        assert child.starts == 2
        with pytest.raises(ProcessFailed, match="already runs"):
            child.start()
    wait_until_dead(first)


def test_a_process_that_was_never_started_says_so() -> None:
    child = ChildProcess(["true"])
    with pytest.raises(ProcessFailed, match="true was never started"):
        child.kill()
    assert not child.is_running


def test_the_child_has_a_session_of_its_own() -> None:
    with ChildProcess(python(SAYS_READY_AND_WAITS)) as child:
        child.wait_for_line("ready")
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
