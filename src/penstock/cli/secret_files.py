"""Secrets that a user gives: in a file or on stdin, never on a command line, which ``ps`` shows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError

STDIN: Final = "-"
_MAX_SECRET_BYTES: Final = 4096


def read_secret(file: Path, flag: str) -> str:
    """The secret in the file that was given with ``flag``; ``-`` is stdin."""
    try:
        if str(file) == STDIN:
            text = sys.stdin.read(_MAX_SECRET_BYTES + 1)
        else:
            with file.open(encoding="utf-8") as opened:
                text = opened.read(_MAX_SECRET_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{flag} {file} cannot be read: {error}", expected="a file with the secret"
        ) from error
    secret = text.strip()
    if not secret or len(text) > _MAX_SECRET_BYTES:
        raise ConfigError(
            f"{flag} {file} has {len(text)} characters",
            expected=f"a secret, at most {_MAX_SECRET_BYTES}",
        )
    return secret
