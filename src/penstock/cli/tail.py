"""``penstock tail``: print the messages of a topic, beside its consumer groups or as a member."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.cli import messages, output
from penstock.cli.commands import Number, command, option
from penstock.cli.message_format import check_one_form, format_option
from penstock.cli.messages import key_option, tag_option, where_option
from penstock.cli.name_completion import complete_groups, guessing_topic, topic_argument
from penstock.cli.output import json_flag
from penstock.cli.target import Target, on_cluster
from penstock.errors import InvalidArgument, PenstockError
from penstock.model.message_json import message_json

if TYPE_CHECKING:
    from penstock import Admin
    from penstock.admin.queue_reading import Stretch
    from penstock.cli.messages import Filter
    from penstock.model import MessageQueue, StoredMessage

LAST = 10
_QUEUES_NAMED = 8


@command
@on_cluster
@topic_argument
@option("--follow", "-f", is_flag=True, help="Continue with new messages until Ctrl-C.")
@option(
    "--last",
    type=Number(at_least=0),
    help="Start with this many of the newest.",
    show_default=str(LAST),
)
@option(
    "--from",
    "start",
    metavar="WHERE",
    help="Start at first, last, an offset, or a time: 2026-11-16T14:30, 14:30, 10m.",
)
@option("--queue", "queue_id", type=Number(at_least=0), help="Only this queue of each broker.")
@tag_option
@key_option
@where_option
@option("--limit", type=Number(at_least=1), help="Stop after this many.")
@option(
    "--group",
    metavar="GROUP",
    help="Consume as a member of this group: what is printed is acknowledged.",
    shell_complete=complete_groups,
)
@format_option
@json_flag
def tail(
    target: Target,
    topic: str,
    follow: bool,
    last: int | None,
    start: str | None,
    queue_id: int | None,
    tag: str | None,
    keys: tuple[str, ...],
    where: str | None,
    limit: int | None,
    group: str | None,
    line_format: str | None,
    as_json: bool,
) -> None:
    """Print the newest messages of a topic, or those from a given point.

    It joins no consumer group and changes no offset, unless --group is given. With --json, one
    message per line.

    Example: penstock tail orders --follow --tag paid --where "json['total'] > 100"
    """
    if start is not None and last is not None:
        raise InvalidArgument("both --from and --last", expected="one of them")
    wanted = messages.Filter(tag, keys, where)
    written = check_one_form(line_format, as_json=as_json)
    show = _print_json if as_json else _print_line if written is None else written.print
    if group is not None:
        from penstock.cli.tail_member import consume

        _refuse_with_group(last=last, queue=queue_id, key=keys or None, where=where)
        consume(target, topic, group, tag=tag, start=start, limit=limit, show=show)
        return
    with target.admin() as admin, guessing_topic(admin, topic):
        found = _messages(
            admin, topic, follow, LAST if last is None else last, start, queue_id, wanted
        )
        try:
            for message in found if limit is None else itertools.islice(found, limit):
                show(message)
        except KeyboardInterrupt:
            if not follow:
                raise
        finally:
            complaint = wanted.complaint()
            if complaint:
                output.note(complaint)


def _refuse_with_group(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidArgument(
                f"--group together with --{name}",
                expected="--group with --tag, --from or --limit: a member gets what its group "
                "subscribes to and acknowledges all of it",
            )


def _messages(
    admin: Admin,
    topic: str,
    is_following: bool,
    last: int,
    start: str | None,
    queue_id: int | None,
    wanted: Filter,
) -> Iterable[StoredMessage]:
    from penstock.admin import queue_reading
    from penstock.cli.start_offsets import start_at

    held = {
        queue: part
        for queue, part in queue_reading.ends(admin, topic).items()
        if queue_id is None or queue.queue_id == queue_id
    }
    if not held and queue_id is not None:
        raise InvalidArgument(f"--queue {queue_id}: topic {topic!r} has no such queue")
    if start is None:
        yield from queue_reading.newest(admin, held, last, wanted)
    else:
        begin = start_at(admin, topic, start, held, option="--from")
        stretches = {
            q: queue_reading.Stretch(begin.offsets.get(q, p.start), p.end) for q, p in held.items()
        }
        if not is_following and not any(part.start < part.end for part in stretches.values()):
            output.note(_nothing_left(topic, held))
        for message in queue_reading.read(admin, stretches):
            if message.store_timestamp >= begin.not_before_ms and wanted(message):
                yield message
    if is_following:
        ends = {queue: part.end for queue, part in held.items()}
        yield from filter(
            wanted, queue_reading.follow(admin, topic, ends, queue_id=queue_id, on_trouble=_tell)
        )


def _nothing_left(topic: str, held: Mapping[MessageQueue, Stretch]) -> str:
    if all(part.start == part.end for part in held.values()):
        return f"Topic {topic} holds no messages."
    ends = [
        f"{queue.broker_name}:{queue.queue_id}@{part.end}" for queue, part in sorted(held.items())
    ]
    more = ", ..." if len(ends) > _QUEUES_NAMED else ""
    return f"Nothing after that; {topic} ends at {', '.join(ends[:_QUEUES_NAMED])}{more}."


def _print_line(message: StoredMessage) -> None:
    output.say(messages.as_line(message))


def _tell(trouble: PenstockError | None) -> None:
    """Say on stderr that it waits for servers, or that they are back."""
    if trouble is None:
        output.note("Connected again.")
    else:
        output.note(output.plain(f"{trouble.what}; waiting for it; Ctrl-C stops"))


def _print_json(message: StoredMessage) -> None:
    output.print_json_line(message_json(message))
