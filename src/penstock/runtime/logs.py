"""Where log lines go, what they look like, and how often one may be repeated.

A line is a moment, a level, who speaks, a fixed phrase and ``key=value`` pairs:

    2024-05-01T12:00:00.123Z INFO penstock.broker.broker broker started name=broker-a port=10911
"""

from __future__ import annotations

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final, TextIO

from penstock.errors import ConfigError

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FILE_BYTES: Final = 64 * 1024 * 1024
FILES_KEPT: Final = 5
MAX_KEYS: Final = 1_000

_FORMAT: Final = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"
_DATE_FORMAT: Final = "%Y-%m-%dT%H:%M:%S"


class LineFormatter(logging.Formatter):
    """One line a record, in UTC; line breaks inside a message are shown, not made.

    Texts from peers end up in messages; without this one could write lines of its own.
    """

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__(_FORMAT, _DATE_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.replace("\r", "\\r").replace("\n", "\\n")
        return super().formatMessage(record)


def set_up_logging(
    level: str = "INFO", *, stream: TextIO | None = None, file: Path | None = None
) -> Callable[[], None]:
    """Send log lines to stderr (or ``stream``) and, if given, to a file that is rotated.

    ``level`` is for our own lines; other libraries are heard from WARNING up. Called again, it
    replaces what the last call set up. Returns a function that undoes it.
    """
    wanted = level.upper()
    if wanted not in LEVELS:
        raise ConfigError(f"log level is {level!r}", expected=", ".join(LEVELS))
    handlers: list[logging.Handler] = [logging.StreamHandler(stream or sys.stderr)]
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handlers.append(
                RotatingFileHandler(
                    file, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8"
                )
            )
        except OSError as error:
            raise ConfigError(
                f"log file {file} cannot be opened: {error.strerror}",
                hint="choose another with --log-file",
            ) from error
    root, ours = logging.getLogger(), logging.getLogger("penstock")
    _remove_our_handlers(root)
    before = (root.level, ours.level)
    for handler in handlers:
        handler.setFormatter(LineFormatter())
        handler.set_name(_HANDLER_NAME)
        root.addHandler(handler)
    root.setLevel(logging.WARNING)
    ours.setLevel(wanted)

    def undo() -> None:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(before[0])
        ours.setLevel(before[1])

    return undo


_HANDLER_NAME: Final = "penstock"


def _remove_our_handlers(logger: logging.Logger) -> None:
    for handler in [handler for handler in logger.handlers if handler.name == _HANDLER_NAME]:
        logger.removeHandler(handler)
        handler.close()


class LogLimiter:
    """Keeps one cause from filling the log.

    Keys may come from peers, so only the `MAX_KEYS` last used are remembered; a forgotten key is
    merely logged once more.

        if limiter.once(("no topic", topic)): log.warning(...)
        if (held := limiter.every(peer, 10.0)) is not None: log.warning("... before=%d", held)
    """

    def __init__(
        self, *, monotonic: Callable[[], float] = time.monotonic, max_keys: int = MAX_KEYS
    ) -> None:
        self._monotonic = monotonic
        self._max_keys = max_keys
        # key -> (when it was last let through, how often not since)
        self._seen: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def once(self, key: Hashable) -> bool:
        """True the first time only."""
        if key in self._seen:
            self._seen.move_to_end(key)
            return False
        self._remember(key, self._monotonic(), 0)
        return True

    def every(self, key: Hashable, seconds: float) -> int | None:
        """How many were held back since the last, at most once in ``seconds``; None: hold back."""
        now = self._monotonic()
        last = self._seen.get(key)
        if last is not None and now - last[0] < seconds:
            self._remember(key, last[0], last[1] + 1)
            return None
        self._remember(key, now, 0)
        return last[1] if last is not None else 0

    def forget(self, key: Hashable) -> None:
        """Let the next one through: the cause went away, and its return is news."""
        self._seen.pop(key, None)

    def __len__(self) -> int:
        return len(self._seen)

    def _remember(self, key: Hashable, when: float, held_back: int) -> None:
        self._seen[key] = (when, held_back)
        self._seen.move_to_end(key)
        if len(self._seen) > self._max_keys:
            self._seen.popitem(last=False)
