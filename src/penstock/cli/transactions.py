"""``penstock transaction list | resume``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.commands import Group, argument, option
from penstock.cli.output import Column, Table, json_flag
from penstock.cli.target import Target, on_cluster

if TYPE_CHECKING:
    from penstock.admin.reports import UndecidedTransaction

app = Group(
    help="Transactions without a decision: list, resume.\n\nExample: penstock transaction list",
)

_COLUMNS = (
    Column("state"),
    Column("topic"),
    Column("group"),
    Column("checks", align="right"),
    Column("stored_ms", "stored", format=output.local_time),
    Column("broker"),
    Column("msg_id", whole=True),
    Column("offset_msg_id", whole=True),
)


@app.command("list")
@on_cluster
@option("--group", metavar="GROUP", help="Only those of this producer group.")
@option("--topic", metavar="TOPIC", help="Only those of this topic.")
@json_flag
def list_transactions(target: Target, group: str | None, topic: str | None, as_json: bool) -> None:
    """Transactions that are neither committed nor rolled back, the oldest first.

    A broker asks the producers of the group about an open one. After 15 questions without an answer
    it gives the transaction up: resume it when its producers are there again.

    Example: penstock transaction list --group shop
    """
    with target.admin() as admin:
        found = [
            row
            for row in admin.transactions()
            if group in (None, row.group) and topic in (None, row.topic)
        ]
    output.show(
        Table(
            _COLUMNS,
            [_row(one) for one in found],
            empty="There are no transactions without a decision.",
        ),
        as_json=as_json,
    )


def _row(one: UndecidedTransaction) -> dict[str, object]:
    return {
        "state": "given up" if one.is_given_up else "open",
        "topic": one.topic,
        "group": one.group,
        "checks": one.checks,
        "stored_ms": one.stored_ms,
        "broker": one.broker_name,
        "msg_id": one.msg_id,
        "offset_msg_id": one.offset_msg_id,
    }


@app.command("resume")
@on_cluster
@argument("offset_id", help="The offset id of a transaction that was given up, as listed.")
@json_flag
def resume_transaction(target: Target, offset_id: str, as_json: bool) -> None:
    """Make the broker ask again about a transaction that it has given up.

    Example: penstock transaction resume 7F00000100002A9F0000000000000000
    """
    with target.admin() as admin:
        admin.resume_transaction(offset_id)
    if as_json:
        output.print_json({"resumed": offset_id})
    else:
        output.say(f"The producers of transaction {offset_id} are asked about it again.")
