"""A real child process for tests: started, read, killed, started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

OUTPUT_LINES_KEPT = 10_000
_JOIN_SECONDS = 5.0


class ProcessFailed(AssertionError):
    """The process ended, or did not say what was expected in time; the text has its output."""


class ChildProcess:
    """One command, run in a session of its own so that killing it kills all it started.

    Both output streams are read all the time, so the child never blocks on a full pipe; the last
    `OUTPUT_LINES_KEPT` lines are kept. Calls block; in asynchronous code use `asyncio.to_thread`.
    """

    def __init__(
        self,
        arguments: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self._arguments = [str(argument) for argument in arguments]
        self._environment = dict(environment) if environment is not None else None
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self._lines: deque[str] = deque(maxlen=OUTPUT_LINES_KEPT)
        self._first_kept = 0
        self._changed = threading.Condition()
        self.starts = 0

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the command; its output so far is forgotten."""
        if self.is_running:
            raise ProcessFailed(f"{self._shown} already runs as {self.pid}")
        self._lines.clear()
        self._first_kept = 0
        environment = {**os.environ, **self._environment} if self._environment else None
        self._process = subprocess.Popen(
            self._arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            cwd=self._directory,
            start_new_session=True,
        )
        self.starts += 1
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (self._process.stdout, self._process.stderr)
        ]
        for reader in self._readers:
            reader.start()
        return self

    def kill(self) -> int:
        """SIGKILL to the whole session, as a power cut for its memory; return the exit code."""
        return self._end(signal.SIGKILL, None)

    def terminate(self, timeout: float = 30.0) -> int:
        """SIGTERM, then wait; return the exit code."""
        return self._end(signal.SIGTERM, timeout)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process alone."""
        self._running().send_signal(number)

    def wait(self, timeout: float = 30.0) -> int:
        """Wait until the process ends by itself; return the exit code."""
        process = self._started()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ProcessFailed(
                f"{self._shown} still runs after {timeout} seconds\n{self.output}"
            ) from None
        self._join()
        return code

    def restart(self) -> Self:
        """Kill it if it runs, and start the same command again."""
        if self.is_running:
            self.kill()
        return self.start()

    def __enter__(self) -> Self:
        return self if self.is_running else self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._end(signal.SIGKILL, None)

    # -- what it says -------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def output(self) -> str:
        """What it wrote to both streams since its start, as far as it is kept."""
        with self._changed:
            return "\n".join(self._lines)

    def wait_for_line(self, pattern: str, timeout: float = 30.0) -> re.Match[str]:
        """The first line, old or new, in which ``pattern`` is found; `ProcessFailed` otherwise."""
        wanted = re.compile(pattern)
        deadline = time.monotonic() + timeout
        seen = 0
        with self._changed:
            while True:
                fresh = max(0, seen - self._first_kept)
                for line in list(self._lines)[fresh:]:
                    if found := wanted.search(line):
                        return found
                seen = self._first_kept + len(self._lines)
                left = deadline - time.monotonic()
                has_ended = not any(reader.is_alive() for reader in self._readers)
                if has_ended or left <= 0:
                    break
                # A dying reader thread does not notify after its last look; look again soon.
                self._changed.wait(min(left, 0.1))
        state = f"ended with {self._started().poll()}" if has_ended else f"in {timeout} seconds"
        raise ProcessFailed(f"{self._shown} never said {pattern!r}: {state}\n{self.output}")

    # -- inside -------------------------------------------------------------------------------

    @property
    def _shown(self) -> str:
        return " ".join(self._arguments)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise ProcessFailed(f"{self._shown} was never started")
        return self._process

    def _running(self) -> subprocess.Popen[str]:
        process = self._started()
        if process.poll() is not None:
            raise ProcessFailed(f"{self._shown} ended with {process.returncode}\n{self.output}")
        return process

    def _end(self, number: int, timeout: float | None) -> int:
        process = self._started()
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass  # the whole session is gone already
        except PermissionError:
            process.send_signal(number)  # macOS refuses a group that holds only a zombie
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._join()
            raise ProcessFailed(
                f"{self._shown} did not end {timeout} seconds after signal {number}\n{self.output}"
            ) from None
        self._join()
        return code

    def _join(self) -> None:
        for reader in self._readers:
            # A grandchild that left the session may hold the pipe open; do not wait for it.
            reader.join(_JOIN_SECONDS)

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    if len(self._lines) == self._lines.maxlen:
                        self._first_kept += 1
                    self._lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
