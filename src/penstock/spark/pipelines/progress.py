"""The progress of a pipeline."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the name of the step, how much of it is done, and the total."""


def silent(what: str, done: int, total: int) -> None:
    """Reports nothing; the default."""
