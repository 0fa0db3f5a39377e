"""``penstock timer list | recall``."""

from __future__ import annotations

from penstock.cli import output
from penstock.cli.commands import Group, Number, argument, option
from penstock.cli.name_completion import topic_argument
from penstock.cli.output import Column, Table, json_flag
from penstock.cli.target import Target, on_cluster

app = Group(
    help="Timer messages that wait for their time: list, recall.\n\nExample: penstock timer list",
)

_COLUMNS = (
    Column("due_ms", "due", format=output.local_time),
    Column("topic"),
    Column("broker"),
    Column("queue_id", "queue", align="right"),
    Column("keys"),
    Column("msg_id", whole=True),
    Column("recall_handle", "recall handle", whole=True),
)


@app.command("list")
@on_cluster
@option("--topic", metavar="TOPIC", help="Only those for this topic.")
@option("--limit", type=Number(at_least=1), default=100, help="Maximum number.")
@json_flag
def list_timers(target: Target, topic: str | None, limit: int, as_json: bool) -> None:
    """Messages that brokers keep until their delivery time, the earliest first.

    Messages with one of the 18 delay levels are not among them.

    Example: penstock timer list --topic orders
    """
    from penstock.admin.plain_rows import timer_row

    with target.admin() as admin:
        found = admin.timers(topic)
    output.show(
        Table(
            _COLUMNS,
            [timer_row(one) for one in found[:limit]],
            empty="No timer message waits.",
        ),
        as_json=as_json,
    )
    if len(found) > limit:
        output.note(f"{len(found) - limit:,} more wait: --limit {len(found)}")


@app.command("recall")
@on_cluster
@topic_argument
@argument("handle", help="The recall handle of the message, as listed or as its receipt has it.")
@json_flag
def recall_timer(target: Target, topic: str, handle: str, as_json: bool) -> None:
    """Take a message back before it is due.

    The broker must allow it: recallMessageEnable=true.

    Example: penstock timer recall orders djEgb3JkZXJz...
    """
    with target.admin() as admin:
        msg_id = admin.recall_timer(topic, handle)
    if as_json:
        output.print_json({"recalled": msg_id})
    else:
        output.say(f"Message {msg_id} is recalled: it will not be delivered.")
