"""``penstock query``: find messages by id, by key, or by the time they were stored."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from penstock.cli import messages, output
from penstock.cli.commands import Number, argument, command, option
from penstock.cli.message_format import check_one_form, format_option
from penstock.cli.messages import tag_option, where_option
from penstock.cli.name_completion import complete_topics, guessing_topic
from penstock.cli.output import Column, Table, json_flag
from penstock.cli.target import Target, on_cluster
from penstock.cli.times import end_ms, end_option, start_ms
from penstock.errors import InvalidArgument
from penstock.model.message_json import message_json

if TYPE_CHECKING:
    from penstock import Admin
    from penstock.cli.messages import Filter
    from penstock.model import StoredMessage

LIMIT = 64

ROW_COLUMNS = (
    Column("store_timestamp", "stored", format=output.local_time),
    Column("place", "queue@offset"),
    Column("msg_id", whole=True),
    Column("tags"),
    Column("keys"),
    Column("text", "body"),
)
ONE_COLUMNS = (
    Column("topic"),
    Column("place", "queue@offset"),
    Column("msg_id"),
    Column("offset_msg_id"),
    Column("tags"),
    Column("keys"),
    Column("reconsume_times", "tried before"),
    Column("born_timestamp", "born", format=output.local_time),
    Column("born_host", "by"),
    Column("store_timestamp", "stored", format=output.local_time),
    Column("store_host", "at"),
)


@command
@on_cluster
@argument(
    "topic",
    required=False,
    help="Topic to search; optional with --id.",
    shell_complete=complete_topics,
)
@option("--id", "msg_id", help="Message id from the producer, or offset id.")
@option("--key", help="Key of the message.")
@option("--from", "start", metavar="TIME", help="Stored at or after: 2026-11-16T14:30, 10m (ago).")
@end_option("Stored before.")
@tag_option
@where_option
@option("--limit", type=Number(at_least=1), default=LIMIT, help="Maximum number.")
@format_option
@json_flag
def query(
    target: Target,
    topic: str | None,
    msg_id: str | None,
    key: str | None,
    start: str | None,
    end: str | None,
    tag: str | None,
    where: str | None,
    limit: int,
    line_format: str | None,
    as_json: bool,
) -> None:
    """Find messages by id, by key, or by the time they were stored.

    Keys are looked up in the brokers' index. For a time range, the queues are read.

    Example: penstock query orders --key o-1 --from 2h
    """
    wanted = messages.Filter(tag, None, where)
    written = check_one_form(line_format, as_json=as_json)
    with target.admin() as admin:
        if msg_id is not None:
            _refuse(key=key, start=start, end=end)
            message = _one(admin, msg_id, topic)
            if written is not None:
                written.print(message)
            else:
                show_message(message, as_json=as_json)
            return
        if topic is None or (key is None and start is None and end is None):
            raise InvalidArgument(
                "nothing to search for", expected="--id, or a TOPIC with --key or --from and --to"
            )
        with guessing_topic(admin, topic):
            if key is not None:
                found = _by_key(admin, topic, key, start, end, limit, wanted)
            else:
                found = _by_time(admin, topic, start, end, limit, wanted)
    rows = [row(message) for message in found]
    more = f"There may be more: --limit {limit}." if len(rows) == limit else wanted.complaint()
    if as_json:
        output.print_json([message_json(message) for message in found])
        return
    if written is not None:
        for message in found:
            written.print(message)
        if more:
            output.note(more)
        return
    output.show(Table(ROW_COLUMNS, rows, note=more, empty="No message was found."), as_json=False)


def _refuse(**others: object) -> None:
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise InvalidArgument(
            "--id together with --key, --from or --to",
            expected="an id alone: it names one message",
        )


def row(message: StoredMessage) -> dict[str, object]:
    """A message as a row of a table."""
    queue = message.queue
    return {
        **message_json(message),
        "place": f"{queue.broker_name}:{queue.queue_id}@{message.queue_offset}",
        "text": messages.body_text(message.body, messages.BODY_SHOWN),
    }


def _one(admin: Admin, msg_id: str, topic: str | None) -> StoredMessage:
    if topic is None:
        return admin.message(msg_id)
    with guessing_topic(admin, topic):
        return admin.message(msg_id, topic=topic)


def show_message(message: StoredMessage, *, as_json: bool) -> None:
    """Print everything known about a message."""
    if as_json:
        output.print_json(message_json(message))
        return
    output.show_one(ONE_COLUMNS, row(message), as_json=False)
    output.say("properties")
    for name, value in sorted(message.properties.items()):
        output.say(f"  {output.plain(name)} = {output.plain(value)}")
    output.say(f"body ({len(message.body)} bytes)")
    output.say(messages.body_text(message.body))


def _by_key(
    admin: Admin,
    topic: str,
    key: str,
    start: str | None,
    end: str | None,
    limit: int,
    wanted: Filter,
) -> list[StoredMessage]:
    begin, before = _moments(start, end)
    found = admin.query(topic, key, count=limit, begin=begin, end=before)
    # Brokers include the end, and some compare whole seconds only.
    exact = (m for m in found if _within(m, begin, before) and wanted(m))
    return list(exact)[:limit]


def _by_time(
    admin: Admin, topic: str, start: str | None, end: str | None, limit: int, wanted: Filter
) -> list[StoredMessage]:
    from penstock.admin import queue_reading

    begin, before = _moments(start, end)
    first = admin.offsets_at(topic, begin or "first")
    # One message too many: the timestamps decide below.
    last = admin.offsets_at(topic, "last" if before is None else before)
    stretches = {
        queue: queue_reading.Stretch(offset, max(offset, last.get(queue, offset) + 1))
        for queue, offset in first.items()
    }
    with output.progress(sum(p.end - p.start for p in stretches.values()), "reading") as bar:
        found = queue_reading.read(admin, stretches, on_read=bar.advance)
        exact = (m for m in found if _within(m, begin, before) and wanted(m))
        return list(itertools.islice(exact, limit))


def _moments(start: str | None, end: str | None) -> tuple[int | None, int | None]:
    begin, before = start_ms(start), end_ms(end)
    if begin is not None and before is not None and before <= begin:
        raise InvalidArgument(f"--from {start} --to {end}", expected="an end after the start")
    return begin, before


def _within(message: StoredMessage, begin: int | None, before: int | None) -> bool:
    return (begin is None or message.store_timestamp >= begin) and (
        before is None or message.store_timestamp < before
    )
