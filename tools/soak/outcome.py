"""The result of one part of a soak."""

from __future__ import annotations

import sys
from typing import NamedTuple


class Outcome(NamedTuple):
    """What one part tried and which checks failed."""

    part: str
    tried: str
    failures: list[str]
    """Failed checks, each with how to repeat it."""


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
