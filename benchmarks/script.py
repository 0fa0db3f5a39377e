"""The command line of a single benchmark."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable

from benchmarks.effort import FULL, QUICK, TINY, Effort, Figures


def effort_option(parser: argparse.ArgumentParser) -> None:
    """Add the options for the duration."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--full",
        dest="effort",
        action="store_const",
        const=FULL,
        default=QUICK,
        help="minutes instead of seconds, for figures to be quoted",
    )
    group.add_argument(
        "--tiny",
        dest="effort",
        action="store_const",
        const=TINY,
        help="only check that it works",
    )


def main(run: Callable[[Effort], Figures]) -> None:
    """Run one benchmark and print its results as JSON."""
    parser = argparse.ArgumentParser()
    effort_option(parser)
    logging.disable(logging.INFO)
    print(json.dumps(run(parser.parse_args().effort), indent=2))
