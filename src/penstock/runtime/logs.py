"""Where log lines go and what they look like.

A line has a time, a level, the name of the logger, a fixed phrase and ``key=value`` pairs:

    2024-05-01T12:00:00.123Z INFO penstock.broker.broker broker started name=broker-a port=10911
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final, TextIO

from penstock.errors import ConfigError

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FILE_BYTES: Final = 64 * 1024 * 1024
FILES_KEPT: Final = 5

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
    level: str = "INFO",
    *,
    stream: TextIO | None = None,
    file: Path | None = None,
    as_json: bool = False,
) -> Callable[[], None]:
    """Send log lines to stderr (or ``stream``) and, if given, to a file that is rotated.

    ``as_json`` makes each line an object; see `json_logs`.

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
        handler.setFormatter(_formatter(as_json=as_json))
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


def _formatter(*, as_json: bool) -> logging.Formatter:
    if not as_json:
        return LineFormatter()
    from penstock.runtime.json_logs import JsonFormatter

    return JsonFormatter()


_HANDLER_NAME: Final = "penstock"


def _remove_our_handlers(logger: logging.Logger) -> None:
    for handler in [handler for handler in logger.handlers if handler.name == _HANDLER_NAME]:
        logger.removeHandler(handler)
        handler.close()
