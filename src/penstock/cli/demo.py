"""``penstock demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import JsonFlag


def demo(
    orders: Annotated[
        int, typer.Option("--orders", min=100, help="How many orders to place.")
    ] = 500,
    report: Annotated[
        Path, typer.Option("--report", help="Where the page with plots is written.")
    ] = Path("demo-report.html"),
    as_json: JsonFlag = False,
) -> None:
    """A day in a shop: orders are billed, shipped, checked and archived with Spark, repaired.

    Runs on a broker and a Spark of its own in this process, in a minute or so.

    Example: penstock demo --orders 1000
    """
    # Loaded only when it runs: every other verb starts faster without it.
    from penstock.cli.demo_day import run_day

    if not run_day(orders, report, as_json=as_json):
        raise typer.Exit(1)
