"""``penstock cluster overview``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli import output
from penstock.cli.commands import Group
from penstock.cli.output import Column, Table, json_flag
from penstock.cli.target import Target, on_cluster
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock import Admin
    from penstock.admin.plain_rows import BrokerJson
    from penstock.admin.reports import BrokerAddress

app = Group(
    help="The brokers of a cluster: addresses, rates, disk.\n\nExample: penstock cluster overview",
)

_NEARLY_FULL = 0.85


def _percent(ratio: object) -> str:
    return f"{ratio:.0%}" if isinstance(ratio, float) else output.cell(ratio)


_COLUMNS = (
    Column("cluster"),
    Column("broker"),
    Column("role"),
    Column("address"),
    Column("version"),
    Column("in_per_second", "in/s", align="right"),
    Column("out_per_second", "out/s", align="right"),
    Column("in_today", "in today", align="right"),
    Column("out_today", "out today", align="right"),
    Column(
        "disk_used",
        "disk used",
        align="right",
        format=_percent,
        style=lambda used: "red" if isinstance(used, float) and used > _NEARLY_FULL else "",
    ),
    Column("problem", style=lambda _: "red"),
)


@app.command("overview")
@on_cluster
@json_flag
def overview(
    target: Target,
    as_json: bool,
) -> None:
    """Every broker: its address, version, rates, totals of today and disk.

    Ends with code 1 if a broker is registered but does not answer.

    Example: penstock cluster overview --namesrv 127.0.0.1:9876
    """
    from penstock.admin.plain_rows import MASTER

    with target.admin() as admin:
        rows = [_row(admin, broker) for broker in admin.cluster()]
    # Terminals are narrow: columns with one value for all brokers are left out.
    clusters = {str(row["cluster"]) for row in rows}
    hidden = {"cluster"} if len(clusters) == 1 else set()
    hidden |= {"role"} if all(row["role"] == MASTER for row in rows) else set()
    hidden |= set() if any(row["problem"] for row in rows) else {"problem"}
    output.show(
        Table(
            [column for column in _COLUMNS if column.name not in hidden],
            rows,
            title=f"Cluster {clusters.pop()}" if len(clusters) == 1 else None,
            empty=f"No broker is registered at {target.namesrv}; "
            f"start one: penstock broker --namesrv {target.namesrv}",
        ),
        as_json=as_json,
    )
    if not rows or any(row["problem"] for row in rows):
        raise click.exceptions.Exit(1)


def _row(admin: Admin, broker: BrokerAddress) -> BrokerJson:
    from penstock.admin.plain_rows import broker_row

    try:
        return broker_row(broker, admin.broker_info(broker.address))
    except PenstockError as error:
        return broker_row(broker, {}, error.what)
