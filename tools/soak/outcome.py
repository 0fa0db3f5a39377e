"""What one part of a soak tried and found."""

from __future__ import annotations

import sys
from typing import NamedTuple


class Outcome(NamedTuple):
    """The end of one part."""

    part: str
    tried: str
    failures: list[str]
    """What failed, each so that it can be tried again."""


def say(text: str) -> None:
    """Tell whoever waits."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
