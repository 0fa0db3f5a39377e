"""``penstock demo``."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.commands import PATH, Number, command, option
from penstock.cli.output import json_flag


@command
@option("--orders", type=Number(at_least=100), default=500, help="How many orders to place.")
@option(
    "--report",
    type=PATH,
    default=Path("demo-report.html"),
    help="Where the page with plots is written.",
)
@option(
    "--stay",
    is_flag=True,
    help="Keep the broker and its console running at the end, until Ctrl-C.",
)
@json_flag
def demo(
    orders: int,
    report: Path,
    stay: bool,
    as_json: bool,
) -> None:
    """Run a demo shop: send, bill, ship, check and archive with Spark, repair.

    Runs on a broker and a Spark of its own in this process, in a minute or so.

    Example: penstock demo --orders 1000
    """
    # Loaded only when it runs: every other verb starts faster without it.
    from penstock.cli.demo_day import run_day

    if not run_day(orders, report, as_json=as_json, stay=stay):
        raise click.exceptions.Exit(1)
