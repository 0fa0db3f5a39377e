"""A program with consumers and a producer of another client, controlled by lines on stdin."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.interop.client_lab import Failed
from tests.interop.go_clients import environment
from tests.interop.servers import Cluster
from tests.interop.toolchain import BUILD, Toolchain

ANSWER_SECONDS = 60.0


class Got(NamedTuple):
    """A message that a member of either client handled, with start and end time."""

    member: str
    queue_id: int
    queue_offset: int
    attempt: int
    began: float
    ended: float
    body: str


class Members:
    """The other client's members of mixed groups; ``kind`` is its language."""

    def __init__(self, kind: str, program: subprocess.Popen[str]) -> None:
        self.kind = kind
        self._program = program
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._lock = threading.Lock()
        self._reports: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, name=f"{kind} members", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            if not line.startswith("{"):
                continue
            report = json.loads(line)
            if "member" in report:
                with self._lock:
                    self._reports.append(report)
            else:
                self._answers.put(report)

    def answer(self) -> str:
        """The next answer; an error in the other client fails the scenario."""
        try:
            report = self._answers.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise Failed(
                f"the {self.kind} client did not answer for {ANSWER_SECONDS:.0f} s"
            ) from None
        if "error" in report:
            raise Failed(f"the {self.kind} client: {report['error']}")
        return str(report["answer"])

    def command(self, *words: object) -> str:
        """Run one command (see ``Member.java``) and return its answer."""
        assert self._program.stdin is not None
        self._program.stdin.write("\t".join(map(str, words)) + "\n")
        self._program.stdin.flush()
        return self.answer()

    def consume(self, member: str, kind: str, group: str, topic: str, pause_ms: int = 0) -> None:
        """Start a consumer."""
        self.command("consume", member, kind, group, topic, pause_ms)

    def assigned(self, member: str) -> set[int]:
        """The ids of the queues assigned to a consumer."""
        return set(json.loads(self.command("assigned", member)))

    def fields(self, member: str) -> list[dict[str, Any]]:
        """All reports about messages that a consumer received."""
        with self._lock:
            return [report for report in self._reports if report["member"] == member]

    def got(self, member: str) -> list[Got]:
        """The messages that a consumer received."""
        return [
            Got(
                member,
                report["queue"],
                report["offset"],
                report["attempt"],
                report["began"] / 1000,
                report["ended"] / 1000,
                report["body"],
            )
            for report in self.fields(member)
        ]


@contextmanager
def members(
    kind: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[Members]:
    """The running program, ready for commands; it ends with the block."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as errors:
        program = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(env or {})},
        )
    try:
        talking = Members(kind, program)
        talking.answer()
        yield talking
    finally:
        assert program.stdin is not None
        program.stdin.close()
        try:
            program.wait(20)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()


def unique() -> str:
    """A suffix that distinguishes the clients of one program from those of the previous one."""
    return f"{time.time_ns() // 1_000_000:x}"


def java_members(toolchain: Toolchain, cluster: Cluster) -> AbstractContextManager[Members]:
    """A JVM with the official client."""
    command = toolchain.command("Member", cluster.namesrv, unique(), heap="256m")
    return members("Java", command, BUILD / "logs" / f"members-{toolchain.version}.log")


def go_members(program: Path, cluster: Cluster) -> AbstractContextManager[Members]:
    """A process with Apache's Go client."""
    command = [str(program), "--member", cluster.namesrv, unique()]
    return members("Go", command, BUILD / "logs" / "members-go.log", environment())
