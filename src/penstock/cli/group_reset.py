"""``penstock group reset``: shows where a group would go, asks, and moves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.commands import command, option
from penstock.cli.name_completion import (
    complete_topics,
    group_argument,
    guessing_group,
    guessing_topic,
)
from penstock.cli.output import Column, Table, json_flag, yes_flag
from penstock.cli.target import Target, on_cluster
from penstock.cli.times import position
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock import Admin
    from penstock.admin import Move

_RETRIES = "%RETRY%"

_COLUMNS = (
    Column("topic"),
    Column("broker"),
    Column("queue_id", "queue", align="right"),
    Column("committed", "from", align="right"),
    Column("target", "to", align="right"),
    Column("change", align="right", format=lambda change: f"{change:+d}"),
    Column("lag", "lag then", align="right"),
)


@command
@on_cluster
@group_argument
@option(
    "--to",
    required=True,
    metavar="WHERE",
    help="first, last, a time (2026-11-16T01:40), a duration ago (2h), or an offset.",
)
@option(
    "--topic",
    help="In this topic.",
    show_default="the only one it consumes",
    shell_complete=complete_topics,
)
@option(
    "--queue",
    metavar="BROKER:ID",
    help="Only this queue, such as broker-a:3; required for an offset.",
    show_default="all",
)
@option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@yes_flag
@json_flag
def reset_group(
    target: Target,
    group: str,
    to: str,
    topic: str | None,
    queue: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Move a group to other offsets; connected consumers follow.

    Shows what will change and asks first. Moving back delivers messages again, moving ahead skips
    messages.

    Example: penstock group reset billing --topic orders --to 2026-11-16T01:40
    """
    from penstock.admin.plain_rows import move_row

    goal = position(to, option="--to")
    with target.admin() as admin, guessing_group(admin, group):
        where = topic or _only_topic(admin, group)
        with guessing_topic(admin, where):
            moves = admin.plan_reset(group, where, goal, queue=queue)
        if dry_run or not as_json:
            output.show(_table(moves, group, target), as_json=as_json)
        if dry_run:
            return
        known = group in admin.groups()
        output.confirm(_question(moves, group, where, is_known=known), yes=yes)
        one = moves[0].queue if queue is not None or isinstance(goal, int) else None
        stands = admin.reset_offsets(group, where, goal, queue=one)
    if as_json:
        rows = [{**move_row(move), "target": stands.get(move.queue, move.target)} for move in moves]
        output.print_json(rows)
    else:
        queues = output.counted(len(stands), "queue")
        output.say(f"Moved {output.plain(group)} in {queues} of {where}.")
        for move in moves:
            stands_at = stands.get(move.queue, move.target)
            if stands_at != move.target:
                # Messages came or were deleted meanwhile, or the broker looks up times its way.
                output.note(f"{move.queue} is at {stands_at}, not {move.target}.")


def _only_topic(admin: Admin, group: str) -> str:
    """The topic that is meant when none is given."""
    topics = sorted({row.topic for row in admin.group_lag(group)})
    consumed = [topic for topic in topics if not topic.startswith(_RETRIES)]
    if len(consumed) != 1:
        known = ", ".join(consumed)
        raise InvalidArgument(
            f"group {group!r} consumes {len(consumed)} topics" + (f": {known}" if known else ""),
            expected="--topic",
            hint=f"--topic {consumed[0]}" if consumed else None,
        )
    return consumed[0]


def _table(moves: list[Move], group: str, target: Target) -> Table:
    from penstock.admin.plain_rows import move_row

    return Table(
        _COLUMNS,
        [move_row(move) for move in moves],
        title=f"Group {group} at {target.namesrv}",
        empty="The topic has no queues.",
    )


def _question(moves: list[Move], group: str, topic: str, *, is_known: bool) -> str:
    if not is_known:
        # May be meant, to say where a group is to start; may be a typing error.
        return (
            f"No broker knows group {group} yet. "
            f"Place it in {output.counted(len(moves), 'queue')} of {topic}?"
        )
    changes = [move.change for move in moves if move.change is not None]
    again = -sum(change for change in changes if change < 0)
    skipped = sum(change for change in changes if change > 0)
    return (
        f"This delivers {output.counted(again, 'message')} again and skips {skipped}. "
        f"Move {group} in {output.counted(len(moves), 'queue')} of {topic}?"
    )
