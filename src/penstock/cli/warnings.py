"""Warnings of commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def warn(warnings: Sequence[str]) -> None:
    """Print warnings to stderr."""
    for warning in warnings:
        print(f"penstock: warning: {warning}", file=sys.stderr)  # noqa: T201 - the command line
