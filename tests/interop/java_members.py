"""A JVM with consumers and a producer of the official client, told what to do line by line."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.interop.client_lab import Failed
from tests.interop.servers import Cluster
from tests.interop.toolchain import BUILD, Toolchain

ANSWER_SECONDS = 60.0


class Got(NamedTuple):
    """A message that a member of either kind handled, and when it did."""

    member: str
    queue_id: int
    queue_offset: int
    attempt: int
    began: float
    ended: float
    body: str


class JavaMembers:
    """The official client's side of mixed groups."""

    def __init__(self, jvm: subprocess.Popen[str]) -> None:
        self._jvm = jvm
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._lock = threading.Lock()
        self._told: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, name="java members", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._jvm.stdout is not None
        for line in self._jvm.stdout:
            if not line.startswith("{"):
                continue
            told = json.loads(line)
            if "member" in told:
                with self._lock:
                    self._told.append(told)
            else:
                self._answers.put(told)

    def answer(self) -> str:
        """The next answer; an error of the official client fails the scenario."""
        try:
            told = self._answers.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise Failed(f"the JVM said nothing for {ANSWER_SECONDS:.0f} s") from None
        if "error" in told:
            raise Failed(f"the official client: {told['error']}")
        return str(told["answer"])

    def tell(self, *words: object) -> str:
        """Run one command of ``Member.java`` and return its answer."""
        assert self._jvm.stdin is not None
        self._jvm.stdin.write("\t".join(map(str, words)) + "\n")
        self._jvm.stdin.flush()
        return self.answer()

    def consume(self, member: str, kind: str, group: str, topic: str, pause_ms: int = 0) -> None:
        """Start a consumer."""
        self.tell("consume", member, kind, group, topic, pause_ms)

    def assigned(self, member: str) -> set[int]:
        """The ids of the queues that a consumer holds."""
        return set(json.loads(self.tell("assigned", member)))

    def fields(self, member: str) -> list[dict[str, Any]]:
        """Everything told about what a consumer got."""
        with self._lock:
            return [told for told in self._told if told["member"] == member]

    def got(self, member: str) -> list[Got]:
        """What a consumer got."""
        return [
            Got(
                member,
                told["queue"],
                told["offset"],
                told["attempt"],
                told["began"] / 1000,
                told["ended"] / 1000,
                told["body"],
            )
            for told in self.fields(member)
        ]


@contextmanager
def java_members(toolchain: Toolchain, cluster: Cluster) -> Iterator[JavaMembers]:
    """The JVM, ready for commands; it ends with the block."""
    log = BUILD / "logs" / f"members-{toolchain.version}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    unique = f"{time.time_ns() // 1_000_000:x}"
    with log.open("w") as errors:
        jvm = subprocess.Popen(
            toolchain.command("Member", cluster.namesrv, unique, heap="256m"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        members = JavaMembers(jvm)
        members.answer()
        yield members
    finally:
        assert jvm.stdin is not None
        jvm.stdin.close()
        try:
            jvm.wait(20)
        except subprocess.TimeoutExpired:
            jvm.kill()
            jvm.wait()
