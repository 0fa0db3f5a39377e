"""``penstock demo``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.output import JsonFlag


def demo(
    orders: Annotated[int, typer.Option("--orders", min=1, help="How many orders to place.")] = 500,
    as_json: JsonFlag = False,
) -> None:
    """Place orders, bill and ship them, fail, retry, repair: all on a broker in this process.

    Example: penstock demo --orders 1000
    """
    # Loaded only when it runs: every other verb starts faster without it.
    from penstock.cli.shop import run_shop

    if not run_shop(orders, as_json=as_json):
        raise typer.Exit(1)
