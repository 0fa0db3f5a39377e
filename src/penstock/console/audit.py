"""A line for each change made through the console: who, what, before, after."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger(__name__)

KEPT = 500
MAX_FILE_BYTES = 8 << 20


@dataclass(slots=True)
class Audit:
    """The newest changes in memory, and all of them in a file if there is one."""

    path: Path | None = None
    newest: deque[dict[str, object]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, **facts: object) -> None:
        """Note a change."""
        entry = {"time": time.time_ns() // 1_000_000, **facts}
        self.newest.appendleft(entry)
        if self.path is None:
            return
        try:
            if self.path.exists() and self.path.stat().st_size > MAX_FILE_BYTES:
                self.path.replace(self.path.with_suffix(".1" + self.path.suffix))
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, default=str) + "\n")
        except OSError as error:
            log.error("audit line not written path=%s error=%s", self.path, error)
