"""Log lines of what repeats: an outage of hours is a dozen lines, not one each second."""

from __future__ import annotations

import logging


def level_of_repeat(count: int, level: int = logging.WARNING) -> int:
    """The level of a repeated line: ``level`` for the 1st, 2nd, 4th, 8th and so on, else DEBUG."""
    return level if count & (count - 1) == 0 else logging.DEBUG
