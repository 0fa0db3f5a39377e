"""``penstock group reset``: shows where a group would go, asks, and moves it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
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
    from penstock import Admin, MessageQueue

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


@dataclass(frozen=True, slots=True)
class Move:
    """One queue: where the group stands, and where it would go."""

    queue: MessageQueue
    committed: int | None
    target: int
    latest: int

    def row(self) -> dict[str, object]:
        return {
            "topic": self.queue.topic,
            "broker": self.queue.broker_name,
            "queue_id": self.queue.queue_id,
            "committed": self.committed,
            "target": self.target,
            "change": None if self.committed is None else self.target - self.committed,
            "lag": max(0, self.latest - self.target),
        }


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
    help="In this queue alone, such as broker-a:3; an offset needs one.",
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

    Shows what changes and asks before it does. Moving back delivers messages once more, moving
    ahead leaves messages out.

    Example: penstock group reset billing --topic orders --to 2026-11-16T01:40
    """
    goal = position(to, option="--to")
    with target.admin() as admin, guessing_group(admin, group):
        where = topic or _only_topic(admin, group)
        with guessing_topic(admin, where):
            moves = _plan(admin, group, where, goal, queue)
        if dry_run or not as_json:
            output.show(_table(moves, group, target), as_json=as_json)
        if dry_run:
            return
        known = group in admin.groups()
        output.confirm(_question(moves, group, where, is_known=known), yes=yes)
        one = moves[0].queue if queue is not None or isinstance(goal, int) else None
        stands = admin.reset_offsets(group, where, goal, queue=one)
    if as_json:
        rows = [{**move.row(), "target": stands.get(move.queue, move.target)} for move in moves]
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


def _plan(
    admin: Admin, group: str, topic: str, goal: int | str | datetime, queue: str | None
) -> list[Move]:
    """Where each queue stands and would go; nothing is changed."""
    from penstock import MessageQueue

    ranges = {
        MessageQueue(row.topic, row.broker_name, row.queue_id): row
        for row in admin.topic_stats(topic)
    }
    chosen = list(ranges) if queue is None else [_queue(queue, topic, list(ranges))]
    if isinstance(goal, int):
        if len(chosen) != 1:
            raise InvalidArgument(
                f"--to {goal} in {len(chosen)} queues of topic {topic!r}",
                expected="one queue, since an offset means something else in each",
                hint=f"--queue {chosen[0].broker_name}:{chosen[0].queue_id}" if chosen else None,
            )
        ends = ranges[chosen[0]]
        if not ends.min_offset <= goal <= ends.max_offset:
            raise InvalidArgument(
                f"--to {goal} in queue {queue}", expected=f"{ends.min_offset} to {ends.max_offset}"
            )
        goals = {chosen[0]: goal}
    else:
        goals = admin.offsets_at(topic, goal)
    committed = {
        MessageQueue(row.topic, row.broker_name, row.queue_id): row.committed
        for row in admin.group_lag(group, topic=topic)
    }
    return [
        Move(one, committed.get(one), goals[one], ranges[one].max_offset)
        for one in chosen
        if one in goals
    ]


def _queue(text: str, topic: str, known: list[MessageQueue]) -> MessageQueue:
    broker, _, number = text.rpartition(":")
    for queue in known:
        if (queue.broker_name, str(queue.queue_id)) == (broker, number):
            return queue
    names = [f"{queue.broker_name}:{queue.queue_id}" for queue in known]
    raise InvalidArgument(
        f"--queue {text!r} of topic {topic!r}",
        expected=f"BROKER:ID, one of {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}",
    )


def _table(moves: list[Move], group: str, target: Target) -> Table:
    return Table(
        _COLUMNS,
        [move.row() for move in moves],
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
    changes = [move.target - move.committed for move in moves if move.committed is not None]
    again = -sum(change for change in changes if change < 0)
    left_out = sum(change for change in changes if change > 0)
    return (
        f"{output.counted(again, 'message')} come again, {left_out} are left out. "
        f"Move {group} in {output.counted(len(moves), 'queue')} of {topic}?"
    )
