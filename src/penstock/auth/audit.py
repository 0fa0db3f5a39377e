"""``audit.jsonl``: what was refused and what was changed, one JSON object a line.

Lines are written by a thread of their own, since the event loop never waits for a disk. When the
disk is slower than the requests, or full, lines are dropped and counted; the next line that can be
written has the number. The file is renamed at a size, and a few old ones are kept.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, Protocol

log = logging.getLogger(__name__)

FILE_NAME: Final = "audit.jsonl"
MAX_WAITING: Final = 10_000
MAX_FILE_BYTES: Final = 64 << 20
KEPT_FILES: Final = 5


class AuditLine(NamedTuple):
    """Who asked for what, from where, and whether it was allowed."""

    time_ms: int
    server: str
    user: str
    remote: str
    tls: bool
    code: int
    request: str
    resources: tuple[str, ...]
    allowed: bool
    entry: str | None = None
    reason: str | None = None

    def as_json(self) -> str:
        time = datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        return json.dumps(
            {
                "ts": time.replace("+00:00", "Z"),
                "server": self.server,
                "user": self.user,
                "remote": self.remote,
                "tls": self.tls,
                "code": self.code,
                "action": self.request,
                "resources": list(self.resources),
                "decision": "allow" if self.allowed else "deny",
                "entry": self.entry,
                "reason": self.reason,
            },
            ensure_ascii=False,
        )


class AuditSink(Protocol):
    """Where lines go."""

    def add(self, line: AuditLine) -> None:
        """Take a line, without waiting."""


class NoAudit:
    """Keeps nothing."""

    def add(self, line: AuditLine) -> None:
        """Drop the line."""


class AuditFile:
    """Appends lines to a file in a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: queue.Queue[AuditLine | None] = queue.Queue(MAX_WAITING)
        self.dropped = 0
        self._is_writable = True
        self._thread = threading.Thread(target=self._write_all, name="audit", daemon=True)
        self._thread.start()

    def add(self, line: AuditLine) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what waits, then end."""
        self._lines.put(None)
        self._thread.join()

    def _write_all(self) -> None:
        ended = False
        while not ended:
            lines = [self._lines.get()]
            while not self._lines.empty() and len(lines) < MAX_WAITING:
                lines.append(self._lines.get())
            ended = lines[-1] is None
            texts = [line.as_json() for line in lines if line is not None]
            if not texts:
                continue
            dropped, self.dropped = self.dropped, 0
            if dropped:
                texts.append(json.dumps({"dropped": dropped}))
            try:
                self._append("\n".join(texts) + "\n")
            except OSError as error:
                self.dropped += len(lines) + dropped
                if self._is_writable:
                    log.error("audit lines lost path=%s error=%s", self._path, error)
                self._is_writable = False
            else:
                self._is_writable = True

    def _append(self, text: str) -> None:
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(text)
            size = file.tell()
        if size >= MAX_FILE_BYTES:
            self._rotate()

    def _rotate(self) -> None:
        for number in range(KEPT_FILES - 1, 0, -1):
            older = self._path.with_suffix(f".{number}.jsonl")
            if older.exists():
                older.replace(self._path.with_suffix(f".{number + 1}.jsonl"))
        self._path.replace(self._path.with_suffix(".1.jsonl"))
