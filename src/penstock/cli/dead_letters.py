"""``penstock dlq list | show | redrive | purge``: dead letters.

`penstock.admin.dead_letters` explains what redriving and purging do to a cluster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.cli import messages, output
from penstock.cli.commands import Group, Number, argument, option
from penstock.cli.dead_letter_rows import LETTER_COLUMNS, Choice
from penstock.cli.messages import key_option, settled_flag, tag_option, where_option
from penstock.cli.name_completion import complete_groups, group_argument, nearest
from penstock.cli.output import Column, Table, json_flag, yes_flag
from penstock.cli.target import Target, on_cluster
from penstock.cli.times import rate_option
from penstock.errors import GroupNotFound, InvalidArgument, NoPermission, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock import Admin
    from penstock.admin import DeadLetterQueue
    from penstock.admin.redrive_task import RedriveTask
    from penstock.model import MessageQueue

app = Group(
    help="Dead letters: list, show, redrive, purge.\n\nExample: penstock dlq list",
)

LIMIT = 100

reason_option = option(
    "--reason", metavar="TEXT", help="Only where the reason or its type contains this."
)
id_option = option(
    "--id", "ids", multiple=True, help="Only the dead letter with this id; may be repeated."
)


@contextlib.contextmanager
def _letters_of(target: Target, group: str) -> Iterator[Admin]:
    """An administrator; names the remedy where the broker forbids reading dead letters."""
    with target.admin() as admin:
        try:
            yield admin
        except NoPermission as error:
            raise NoPermission(
                f"the dead letters of {group!r} may not be read: {error.what}",
                code=error.code,
                hint=f"allow it: penstock topic create '%DLQ%{group}' --permission rw",
            ) from error


def _places(admin: Admin, group: str) -> list[DeadLetterQueue]:
    places = admin.dead_letter_queues(group)
    if not places and group not in (groups := admin.groups()):
        known = admin.dead_letter_groups()
        near = nearest(group, groups)
        raise GroupNotFound(
            f"no broker knows consumer group {group!r}",
            expected=f"one with dead letters: {', '.join(known)}" if known else "a group",
            hint="penstock dlq list" if near is None else f"did you mean {near}?",
        )
    return places


# List

_GROUP_COLUMNS = (
    Column("group"),
    Column("pending", align="right", style=lambda n: "red" if n else ""),
    Column("stored", align="right"),
    Column("last_ms", "last one", format=output.local_time),
)


@app.command("list")
@on_cluster
@argument(
    "group",
    required=False,
    help="Consumer group; without it, all groups with dead letters.",
    shell_complete=complete_groups,
)
@tag_option
@key_option
@where_option
@reason_option
@option("--limit", type=Number(at_least=1), default=LIMIT, help="Maximum number, the newest.")
@settled_flag
@json_flag
def list_letters(
    target: Target,
    group: str | None,
    tag: str | None,
    keys: tuple[str, ...],
    where: str | None,
    reason: str | None,
    limit: int,
    settled: bool,
    as_json: bool,
) -> None:
    """The groups with dead letters, or the dead letters of one group with the reason.

    Example: penstock dlq list billing --reason Timeout --where "attempts > 3"
    """
    from penstock.admin import DeadLetterRow, queue_reading
    from penstock.admin.plain_rows import dead_letter
    from penstock.admin.redrive_task import redriven_anywhere, stretches_of

    if group is None:
        with target.admin() as admin:
            output.show(_groups(admin), as_json=as_json)
        return
    with _letters_of(target, group) as admin:
        choice = Choice(messages.Filter(tag, keys, where), reason)
        places = _places(admin, group)
        found = [
            DeadLetterRow.from_message(message)
            for message in queue_reading.newest(
                admin,
                stretches_of(places, settled=settled),
                limit,
                lambda message: choice(DeadLetterRow.from_message(message)),
            )
        ]
        done = redriven_anywhere(admin, group, found)
    settled_before = {place.queue: place.settled for place in places}
    rows = [dead_letter(letter, done, settled_before) for letter in found]
    if as_json:
        output.print_json(rows)
        return
    hidden = sum(place.settled - place.min_offset for place in places)
    empty = f"Group {group} has no dead letters."
    if hidden and not settled:
        empty = f"Group {group} has no pending dead letters; --all shows {hidden} settled ones."
    note = choice.wanted.complaint() or (
        f"There may be more: --limit {limit}." if len(rows) == limit else None
    )
    output.show(Table(LETTER_COLUMNS, rows, note=note, empty=empty), as_json=False)


def _groups(admin: Admin) -> Table:
    from penstock.admin.plain_rows import dead_letter_group

    rows = [
        dead_letter_group(group, admin.dead_letter_queues(group))
        for group in admin.dead_letter_groups()
    ]
    return Table(_GROUP_COLUMNS, rows, empty="No group has dead letters.")


# Show


@app.command("show")
@on_cluster
@group_argument
@argument("msg_id", metavar="ID", help="Its id, from dlq list.")
@json_flag
def show_letter(
    target: Target,
    group: str,
    msg_id: str,
    as_json: bool,
) -> None:
    """One dead letter: the reason, its origin, its properties and its body.

    Example: penstock dlq show billing 7F000001000D1B4A7E4F5A274F000000
    """
    from penstock.admin import DeadLetterRow, queue_reading
    from penstock.admin.plain_rows import NOT_RECORDED, dead_letter
    from penstock.admin.redrive_task import redriven_anywhere, stretches_of
    from penstock.cli.query import show_message

    with _letters_of(target, group) as admin:
        places = _places(admin, group)
        # A message that failed again after a redrive has its id twice: show the newest.
        found = queue_reading.newest(
            admin,
            stretches_of(places, settled=True),
            1,
            lambda message: msg_id in (message.msg_id, message.offset_msg_id),
        )
        if not found:
            raise NotFound(
                f"group {group!r} has no dead letter {msg_id!r}",
                expected="a msg_id or offset_msg_id",
                hint=f"penstock dlq list {group} --all",
            )
        letter = DeadLetterRow.from_message(found[0])
        done = redriven_anywhere(admin, group, [letter])
    values = dead_letter(letter, done, {place.queue: place.settled for place in places})
    if as_json:
        output.print_json(values)
        return
    columns = (
        Column("state"),
        Column("reason_type", "failed with"),
        Column("reason"),
        Column("attempts"),
        Column("host", "on"),
        Column("origin_topic", "from topic"),
        Column("origin_msg_id", "from message"),
        Column("redrives", "redriven before"),
    )
    missing = {"reason": NOT_RECORDED} if letter.reason_type is None else {}
    output.show_one(columns, {**values, **missing}, as_json=False)
    show_message(letter.message, as_json=False)


# Redrive


@app.command("redrive")
@on_cluster
@group_argument
@id_option
@tag_option
@key_option
@where_option
@reason_option
@option(
    "--to-topic",
    "to",
    metavar="TOPIC",
    help="Send to this topic, so all of its groups receive them, instead of to the group.",
)
@option("--limit", type=Number(at_least=1), help="Maximum number.")
@rate_option
@option("--again", is_flag=True, help="Also redriven and purged ones.")
@option("--dry-run", is_flag=True, help="Show what would be redriven; change nothing.")
@yes_flag
@json_flag
def redrive_letters(
    target: Target,
    group: str,
    ids: tuple[str, ...],
    tag: str | None,
    keys: tuple[str, ...],
    where: str | None,
    reason: str | None,
    to: str | None,
    limit: int | None,
    rate: float | None,
    again: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Deliver dead letters to their group again, with a fresh retry count.

    They are sent to the group's retry topic, oldest first, so no other group receives them.
    Those redriven before are skipped, so an interrupted run can be started again.

    Example: penstock dlq redrive billing --reason Timeout --rate 50 --dry-run
    """
    from penstock.admin.redrive_task import RedriveTask

    choice = Choice(messages.Filter(tag, keys, where), reason, frozenset(ids or ()))
    with _letters_of(target, group) as admin:
        plan = RedriveTask(admin, group, to, _places(admin, group), again)
        total = sum(place.count if again else place.pending for place in plan.queues)
        with output.progress(total, "reading", quiet=as_json) as bar:
            plan.plan(choice, limit, on_read=bar.advance)
        aim = f"topic {to}" if to else f"group {group}"
        if plan.chosen and not dry_run:
            output.confirm(
                f"Redrive {len(plan.chosen)} of {output.counted(total, 'dead letter')} to {aim} "
                f"at {target.namesrv}?",
                yes=yes,
            )
            with output.progress(len(plan.chosen), "redriving", quiet=as_json) as bar:
                try:
                    plan.run(rate, on_sent=bar.advance)
                except BaseException:
                    output.note(f"{len(plan.sent)} were redriven; the same command continues.")
                    raise
    complaint = choice.wanted.complaint()
    if complaint:
        output.note(complaint)
    if as_json:
        output.print_json(plan.report(dry_run=dry_run))
    elif dry_run or not plan.chosen:
        _show_plan(plan)
    else:
        letters = output.counted(len(plan.sent), "dead letter")
        output.say(f"Redrove {letters} to {aim}; {plan.left} left pending.")


def _show_plan(plan: RedriveTask) -> None:
    from penstock.admin.plain_rows import dead_letter

    rows = [dead_letter(letter, set(), {}) for letter in plan.sample]
    more = len(plan.chosen) - len(rows)
    note = f"{len(plan.chosen)} would be redriven" + (f", {more} not shown." if more else ".")
    empty = "There is nothing to redrive."
    output.show(
        Table(LETTER_COLUMNS[:-1], rows, note=note if rows else None, empty=empty), as_json=False
    )


# Purge


@app.command("purge")
@on_cluster
@group_argument
@option("--before", metavar="TIME", help="Only those stored before: 2026-11-16, 7d (ago).")
@option(
    "--delete-topic",
    is_flag=True,
    help="Delete the dead-letter topic itself; this cannot be undone.",
)
@option("--dry-run", is_flag=True, help="Count, and change nothing.")
@yes_flag
@json_flag
def purge_letters(
    target: Target,
    group: str,
    before: str | None,
    delete_topic: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Settle dead letters: they are no longer listed, counted or redriven.

    --all still shows them until their files expire, which is when RocketMQ frees the space. With
    --delete-topic they are gone at once.

    Example: penstock dlq purge billing --before 7d --yes
    """
    if delete_topic and before is not None:
        raise InvalidArgument(
            "both --before and --delete-topic",
            expected="one of them: a topic goes as a whole",
        )
    with target.admin() as admin:
        places = _places(admin, group)
        marks = _marks(admin, places, before)
        count = (
            sum(place.count for place in places)
            if delete_topic
            else sum(marks[place.queue] - place.settled for place in places)
        )
        if places and not dry_run and (count or delete_topic):
            how = "Delete the topic of" if delete_topic else "Purge"
            letters = output.counted(count, "dead letter")
            output.confirm(f"{how} {letters} of {group} at {target.namesrv}?", yes=yes)
            if delete_topic:
                admin.delete_dead_letters(group)
            else:
                admin.settle_dead_letters(group, marks)
    if as_json:
        output.print_json(
            {"group": group, "purged": 0 if dry_run else count, "found": count, "dry_run": dry_run}
        )
    elif dry_run:
        output.say(f"{output.counted(count, 'dead letter')} of {group} would be purged.")
    else:
        output.say(f"Purged {output.counted(count, 'dead letter')} of {group}.")


def _marks(
    admin: Admin, places: Iterable[DeadLetterQueue], before: str | None
) -> dict[MessageQueue, int]:
    """The offset in each queue at which the pending letters will start."""
    from penstock.cli.times import moment_ms

    if before is None:
        return {place.queue: place.max_offset for place in places}
    until = moment_ms(before, option="--before")
    marks: dict[MessageQueue, int] = {}
    for place in places:
        found = {
            (queue.broker_name, queue.queue_id): offset
            for queue, offset in admin.offsets_at(place.queue.topic, until).items()
        }
        mark = found.get((place.queue.broker_name, place.queue.queue_id), place.settled)
        # RocketMQ 4.9 finds the nearest message; keep those stored at or after that time.
        while mark > place.settled:
            last = admin.messages(place.queue, mark - 1, count=1).messages
            if not last or last[0].store_timestamp < until:
                break
            mark -= 1
        marks[place.queue] = max(mark, place.settled)
    return marks
