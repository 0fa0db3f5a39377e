"""``penstock group list | create | describe | delete``.

``lag`` is in `group_lag`, ``reset`` in `group_reset`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.commands import Group, Number, argument, option
from penstock.cli.group_lag import show_lag
from penstock.cli.group_mode import group_mode
from penstock.cli.group_reset import reset_group
from penstock.cli.name_completion import group_argument, guessing_group
from penstock.cli.output import Column, Table, json_flag, names_flag, yes_flag
from penstock.cli.target import Target, on_cluster
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock import Admin
    from penstock.admin.reports import Member, QueueLag
    from penstock.model import MessageQueue

app = Group(
    help="Consumer groups: list, create, describe, lag, mode, reset, delete.\n\n"
    "Example: penstock group lag billing",
)

_LIST_COLUMNS = (
    Column("group"),
    Column("members", align="right"),
    Column("topics"),
    Column("lag", align="right"),
)


@app.command("list")
@on_cluster
@option("--internal", is_flag=True, help="Also the groups of RocketMQ itself.")
@names_flag
@json_flag
def list_groups(
    target: Target,
    internal: bool,
    names_only: bool,
    as_json: bool,
) -> None:
    """All consumer groups, with their connected members and lag.

    Example: penstock group list --namesrv 127.0.0.1:9876
    """
    with target.admin() as admin:
        names = admin.groups(internal=internal)
        if names_only:
            output.show_names(names, as_json=as_json)
            return
        output.show_summaries(
            names,
            lambda name: _summary(admin, name),
            _LIST_COLUMNS,
            empty="There are no consumer groups yet; a consumer creates its own on connecting.",
            as_json=as_json,
        )


def _summary(admin: Admin, group: str) -> dict[str, object]:
    """A group in one line; what its brokers do not tell is left open."""
    from penstock.model.names import RETRY_PREFIX

    row: dict[str, object] = {"group": group, "members": None, "topics": None, "lag": None}
    try:
        row["members"] = len(admin.clients(group))
        queues = admin.group_lag(group)
    except PenstockError:
        # Deleted meanwhile, or a broker is away: the others are still worth listing.
        return row
    return row | {
        # Retries count as lag, but are not subscribed topics.
        "topics": sorted({q.topic for q in queues if not q.topic.startswith(RETRY_PREFIX)}),
        "lag": sum(queue.lag for queue in queues) if queues else None,
    }


@app.command("create")
@on_cluster
@argument("group", help="Name of the group.")
@option(
    "--max-retries",
    type=Number(at_least=-1),
    default=16,
    help="Failures before a message is a dead letter; -1: never.",
)
@option("--orderly", is_flag=True, help="Its consumers take each queue in order.")
@json_flag
def create_group(
    target: Target,
    group: str,
    max_retries: int,
    orderly: bool,
    as_json: bool,
) -> None:
    """Make a consumer group on every broker, or change it.

    Brokers create a group when its first consumer connects, unless configured otherwise.

    Example: penstock group create billing --max-retries 5
    """
    with target.admin() as admin:
        admin.create_group(group, retry_max_times=max_retries, consume_message_orderly=orderly)
        configs = admin.group_config(group)
    rows: list[dict[str, object]] = [
        {
            "group": group,
            "broker": broker,
            "max_retries": config.retry_max_times,
            "orderly": config.consume_message_orderly,
        }
        for broker, config in configs.items()
    ]
    columns = (
        Column("group"),
        Column("broker"),
        Column("max_retries", align="right"),
        Column("orderly"),
    )
    output.show(Table(columns, rows), as_json=as_json)


_MEMBER_COLUMNS = (
    Column("client_id", "client", whole=True),
    Column("address"),
    Column("language"),
    Column("release", "version"),
    Column("orderly"),
    Column("holds"),
)
_SUBSCRIPTION_COLUMNS = (Column("topic"), Column("expression"), Column("type"))
_LAG_BY_TOPIC_COLUMNS = (
    Column("topic"),
    Column("queues", align="right"),
    Column("lag", align="right"),
    Column("last_ms", "consumed up to", format=output.local_time),
)
_SETTING_COLUMNS = (
    Column("broker"),
    Column("may_consume"),
    Column("broadcasting"),
    # Only brokers that hand out messages themselves act on it; members say how they consume.
    Column("orderly", "orderly pop"),
    Column("retry_queues", align="right"),
    Column("max_retries", align="right"),
)


@app.command("describe")
@on_cluster
@group_argument
@json_flag
def describe_group(
    target: Target,
    group: str,
    as_json: bool,
) -> None:
    """One group: settings, connected members, subscriptions and progress.

    Example: penstock group describe billing
    """
    with target.admin() as admin, guessing_group(admin, group):
        settings: list[dict[str, object]] = [
            {
                "broker": broker,
                "may_consume": config.consume_enable,
                "broadcasting": config.consume_broadcast_enable,
                "orderly": config.consume_message_orderly,
                "retry_queues": config.retry_queue_nums,
                "max_retries": config.retry_max_times,
            }
            for broker, config in admin.group_config(group).items()
        ]
        members = [_member(member) for member in admin.members(group)]
        subscriptions: list[dict[str, object]] = [
            {"topic": wanted.topic, "expression": wanted.expression, "type": wanted.expression_type}
            for wanted in admin.subscriptions(group)
        ]
        lag = _by_topic(admin.group_lag(group))
    if as_json:
        output.print_json(
            {
                "group": group,
                "settings": settings,
                "members": members,
                "subscriptions": subscriptions,
                "topics": lag,
            }
        )
        return
    output.show_all(
        Table(_SETTING_COLUMNS, settings, title=f"Group {group}"),
        Table(_MEMBER_COLUMNS, members, empty="No member is connected."),
        Table(_SUBSCRIPTION_COLUMNS, subscriptions, empty="So nothing is subscribed to."),
        Table(_LAG_BY_TOPIC_COLUMNS, lag, empty="It has committed no offsets."),
    )


def _member(member: Member) -> dict[str, object]:
    from penstock.admin.plain_rows import client_row

    held = None if member.queues is None else _consumed(member.queues)
    return {
        **client_row(member.client),
        "orderly": member.is_orderly,
        "queues": None if held is None else list(map(str, held)),
        "holds": None if held is None else _ranges(held),
    }


def _consumed(queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Without retries, which every group has."""
    from penstock.model.names import RETRY_PREFIX

    return [queue for queue in queues if not queue.topic.startswith(RETRY_PREFIX)]


def _ranges(queues: Sequence[MessageQueue]) -> list[str]:
    """Sorted queues in few words: ``orders@broker-a:0-3``."""
    runs: list[list[MessageQueue]] = []
    for queue in queues:
        last = runs[-1][-1] if runs else None
        if last is not None and queue == last._replace(queue_id=last.queue_id + 1):
            runs[-1].append(queue)
        else:
            runs.append([queue])
    return [f"{run[0]}-{run[-1].queue_id}" if len(run) > 1 else f"{run[0]}" for run in runs]


def _by_topic(queues: list[QueueLag]) -> list[dict[str, object]]:
    return [
        {
            "topic": topic,
            "queues": len(own),
            "lag": sum(queue.lag for queue in own),
            "last_ms": max(queue.last_timestamp for queue in own) or None,
        }
        for topic in sorted({queue.topic for queue in queues})
        if (own := [queue for queue in queues if queue.topic == topic])
    ]


app.add_command(show_lag, "lag")
app.add_command(group_mode, "mode")
app.add_command(reset_group, "reset")


@app.command("delete")
@on_cluster
@group_argument
@option(
    "--keep-offsets", is_flag=True, help="Keep the offsets, in case the group is created again."
)
@yes_flag
@json_flag
def delete_group(
    target: Target,
    group: str,
    keep_offsets: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Forget a group on every broker, with its retries and dead letters.

    A group that is connected comes back with its next heartbeat: stop its consumers first.

    Example: penstock group delete billing --yes
    """
    listed = "penstock group list --names"
    with target.admin() as admin, guessing_group(admin, group, hint=listed):
        admin.group_config(group)
        members = len(admin.clients(group))
        connected = f"{output.counted(members, 'member')} connected. " if members else ""
        output.confirm(
            f"{connected}Delete group {group} with its retries and dead letters "
            f"at {target.namesrv}?",
            yes=yes,
        )
        admin.delete_group(group, keep_offsets=keep_offsets)
    if as_json:
        output.print_json({"group": group, "deleted": True, "members": members})
        return
    output.say(f"Deleted {output.plain(group)}.")
    if members:
        output.note(f"{output.counted(members, 'member')} connected: the group comes back.")
