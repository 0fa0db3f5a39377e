"""The data directory of the brokers on one machine: ``DATA/<broker name>``, one store each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import StoreError

_LETTERS = 26


def broker_names(first: str, count: int) -> list[str]:
    """broker-a, broker-b, ...; other names are numbered."""
    if count == 1:
        return [first]
    stem, separator, letter = first.rpartition("-")
    if separator and letter == "a" and count <= _LETTERS:
        return [f"{stem}-{chr(ord('a') + index)}" for index in range(count)]
    return [first, *(f"{first}-{index}" for index in range(2, count + 1))]


def refuse_lost_stores(data: Path, names: Sequence[str]) -> None:
    """Refuse to run fewer brokers than have stores here: their messages would be missing."""
    # Every store that was ever opened has a lock file.
    found = sorted(path.parent.name for path in data.glob("*/lock"))
    lost = [name for name in found if name not in names]
    if lost:
        raise StoreError(
            f"{data} holds the stores of {', '.join(found)}, but only {', '.join(names)} would run",
            expected=f"--brokers {len(found)} (brokers={len(found)} in Python), "
            "or the names of all of them",
            hint=f"move {data / lost[0]} away if its messages are not needed",
        )


def make_data_directory(data: Path) -> None:
    """Create the data directory; `StoreError` if it cannot be used."""
    if data.exists() and not data.is_dir():
        raise StoreError(
            f"data directory {data} is a file",
            expected="a directory, or a name that does not exist yet",
        )
    if os.path.isdir(data / "commitlog"):  # noqa: PTH112 - false where it may not be looked at
        # A broker would create an empty store inside it and not find the messages.
        raise StoreError(
            f"{data} is itself the store of one broker",
            expected="a directory with stores in it, each called like its broker",
            hint=f"{data.absolute().parent}, if the broker is called {data.absolute().name}; "
            f"otherwise move it to DIR/broker-a, and give DIR",
        )
    try:
        data.mkdir(parents=True, exist_ok=True)
        probe = data / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StoreError(
            f"data directory {data} cannot be written: {error.strerror or error}",
            hint="give another one, or change its owner",
        ) from error
