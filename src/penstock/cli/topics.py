"""``penstock topic list | create | describe | delete``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from penstock.cli import output
from penstock.cli.commands import Group, Number, argument, option
from penstock.cli.name_completion import complete_topics, guessing_topic, topic_argument
from penstock.cli.output import Column, Table, json_flag, names_flag, yes_flag
from penstock.cli.target import Target, on_cluster
from penstock.cli.topic_changes import (
    DEFAULT_QUEUES,
    TopicOptions,
    TopicPlan,
    TopicSettings,
    permission_text,
    plan_topic,
)
from penstock.errors import InvalidArgument, PenstockError, TopicNotFound

if TYPE_CHECKING:
    from penstock import Admin
    from penstock.admin.plain_rows import TopicSummaryJson
    from penstock.model import TopicRoute
    from penstock.protocol.bodies.topics import TopicConfig

app = Group(
    help="Topics: list, create, describe, delete.\n\nExample: penstock topic list",
)


_READ, _WRITE = 4, 2
_MESSAGE_TYPE = "message.type"
_PERMISSIONS = {"rw": _READ | _WRITE, "r": _READ, "w": _WRITE}

_TYPES = ["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"]

_LIST_COLUMNS = (
    Column("topic"),
    Column("message_type", "type"),
    Column("brokers"),
    Column("queues", align="right"),
    Column("messages", align="right"),
    Column("last_ms", "last message", format=output.local_time),
)


@app.command("list")
@on_cluster
@option("--internal", is_flag=True, help="Also system, retry and dead-letter topics.")
@names_flag
@json_flag
def list_topics(
    target: Target,
    internal: bool,
    names_only: bool,
    as_json: bool,
) -> None:
    """All topics, with their queues and messages.

    Example: penstock topic list --namesrv 127.0.0.1:9876
    """
    with target.admin() as admin:
        names = admin.topics(internal=internal)
        if names_only:
            output.show_names(names, as_json=as_json)
            return
        types = _message_types(admin)
        output.show_summaries(
            names,
            lambda name: {"message_type": types.get(name), **_summary(admin, name)},
            _LIST_COLUMNS,
            empty="There are no topics yet; create one: penstock topic create NAME",
            as_json=as_json,
        )


def _message_types(admin: Admin) -> dict[str, str]:
    try:
        return admin.message_types()
    except PenstockError:
        # A broker is away: the topics are still worth listing.
        return {}


def _summary(admin: Admin, topic: str) -> TopicSummaryJson:
    """A topic in one line; what its brokers do not tell is left open."""
    from penstock.admin.plain_rows import topic_summary

    try:
        return topic_summary(topic, admin.topic_stats(topic))
    except PenstockError:
        # Deleted meanwhile, or a broker is away: the others are still worth listing.
        return topic_summary(topic, None)


@app.command("create")
@on_cluster
@argument("topics", nargs=-1, required=True, metavar="TOPIC", help="Names of topics.")
@option(
    "--queues",
    "-q",
    type=Number(at_least=1),
    help="Queues on each broker.",
    show_default=f"{DEFAULT_QUEUES} if it is new",
)
@option(
    "--read-queues",
    type=Number(at_least=1),
    help="Queues to read, when a topic shrinks.",
    show_default="as many",
)
@option(
    "--permission",
    type=click.Choice(list(_PERMISSIONS)),
    help="What clients may do with it.",
    show_default="rw if it is new",
)
@option(
    "--type",
    "message_type",
    type=click.Choice(_TYPES, case_sensitive=False),
    help="Type of its messages, which gRPC clients check.",
    show_default="NORMAL if it is new",
)
@option("--order", is_flag=True, help="Keep each key in its queue even while the broker is down.")
@option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="KEY=VALUE",
    help="RocketMQ 5's, such as message.type=FIFO; may be repeated.",
)
@option(
    "--broker",
    "brokers",
    multiple=True,
    help="Only on this broker; may be repeated.",
    show_default="all",
)
@yes_flag
@json_flag
def create_topic(
    target: Target,
    topics: tuple[str, ...],
    queues: int | None,
    read_queues: int | None,
    permission: str | None,
    message_type: str | None,
    order: bool,
    attributes: tuple[str, ...],
    brokers: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Create or change topics; returns when the name servers list them.

    An existing topic keeps the settings that no option names. If queues with messages would no
    longer be read, the command counts those messages and asks first.

    Example: penstock topic create orders payments --queues 16 --type FIFO
    """
    options = TopicOptions(
        queues=queues,
        read_queues=read_queues,
        permission=None if permission is None else _PERMISSIONS[permission],
        order=order,
        attributes=_attributes(attributes, message_type),
    )
    rows: list[dict[str, object]] = []
    with target.admin() as admin:
        # Asked before the first change: a no to the last topic leaves all as they are.
        plans = [_plan(admin, topic, options, brokers) for topic in topics]
        for planned in plans:
            _confirm_what_is_hidden(admin, planned, yes=yes)
        for planned in plans:
            rows += [
                {
                    "topic": planned.topic,
                    "broker": part.broker_name,
                    "read_queues": part.read_queues,
                    "write_queues": part.write_queues,
                    "permission": permission_text(part.permission),
                    "existed": part.broker_name in planned.before,
                }
                for part in _apply(admin, planned, options, brokers).queues
            ]
    columns = (
        Column("topic"),
        Column("broker"),
        Column("read_queues", align="right"),
        Column("write_queues", align="right"),
        Column("permission"),
    )
    output.show(Table(columns, rows), as_json=as_json)
    for planned in plans:
        if planned.existed:
            said = ", ".join(planned.changes()) or "nothing was changed"
            output.note(output.plain(f"topic {planned.topic} existed: {said}"))


def _plan(admin: Admin, topic: str, options: TopicOptions, brokers: Sequence[str]) -> TopicPlan:
    try:
        route = admin.route(topic)
    except TopicNotFound:
        return plan_topic(topic, options, {}, brokers)
    masters = [broker.broker_name for broker in admin.cluster() if broker.broker_id == 0]
    try:
        found = admin.topic_config(topic)
    except PenstockError:
        # A broker lost it, or is away: what the name servers say is all there is to go by.
        before = {
            part.broker_name: TopicSettings(
                part.read_queues, part.write_queues, part.permission, bool(route.order_conf)
            )
            for part in route.queues
        }
        return plan_topic(topic, options, before, brokers or masters, doubtful=True)
    before = {
        broker: TopicSettings(
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.order,
            tuple((config.attributes or {}).items()),
        )
        for broker, config in found.items()
    }
    return plan_topic(topic, options, before, brokers or masters)


def _confirm_what_is_hidden(admin: Admin, planned: TopicPlan, *, yes: bool) -> None:
    if not planned.shrinks:
        return
    held = [
        (queue.broker_name, queue.queue_id, queue.count)
        for queue in admin.topic_stats(planned.topic)
    ]
    hidden = planned.hides(held)
    if hidden:
        output.confirm(
            f"Topic {planned.topic}: {', '.join(planned.changes())}? "
            f"{output.counted(hidden, 'message')} in the queues that go would no longer be read; "
            "--read-queues keeps them readable.",
            yes=yes,
        )


def _apply(
    admin: Admin, planned: TopicPlan, options: TopicOptions, brokers: Sequence[str]
) -> TopicRoute:
    if planned.existed:
        groups: list[tuple[TopicSettings, Sequence[str]]] = [*planned.groups()]
    else:
        groups = [(options.over(TopicSettings()), brokers)]
    for settings, names in groups:
        admin.create_topic(
            planned.topic,
            settings.write_queues,
            read_queues=settings.read_queues,
            permission=settings.permission,
            order=settings.order,
            attributes=options.attributes,
            brokers=names or None,
        )
    return admin.route(planned.topic)


def _attributes(texts: Sequence[str], message_type: str | None) -> dict[str, str]:
    found = dict(map(_attribute, texts))
    if message_type is None:
        return found
    if found.get(_MESSAGE_TYPE, message_type) != message_type:
        raise InvalidArgument(
            f"--type {message_type} and --attribute {_MESSAGE_TYPE}={found[_MESSAGE_TYPE]}",
            expected="one of both",
        )
    return {**found, _MESSAGE_TYPE: message_type}


def _attribute(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.strip("+"):
        raise InvalidArgument(
            f"--attribute {text!r}", expected="KEY=VALUE, such as message.type=FIFO"
        )
    # RocketMQ's own tools want a + before what is set; both spellings mean the same.
    return key.removeprefix("+"), value


_QUEUE_COLUMNS = (
    Column("broker"),
    Column("queue_id", "queue", align="right"),
    Column("min_offset", "first offset", align="right"),
    Column("max_offset", "next offset", align="right"),
    Column("messages", align="right"),
    Column("last_ms", "last message", format=output.local_time),
)
_SETTING_COLUMNS = (
    Column("broker"),
    Column("read_queues", align="right"),
    Column("write_queues", align="right"),
    Column("permission"),
    Column("message_type", "type"),
    Column("order"),
    Column("attributes"),
)


@app.command("describe")
@on_cluster
@topic_argument
@json_flag
def describe_topic(
    target: Target,
    topic: str,
    as_json: bool,
) -> None:
    """One topic: settings, queues with their offsets, and the groups that consume it.

    Example: penstock topic describe orders
    """
    from penstock.admin.plain_rows import topic_queue

    with target.admin() as admin, guessing_topic(admin, topic):
        configs = admin.topic_config(topic)
        queues = admin.topic_stats(topic)
        groups = admin.topic_groups(topic)
    settings = [_setting(broker, config) for broker, config in configs.items()]
    rows = [topic_queue(queue) for queue in queues]
    if as_json:
        output.print_json({"topic": topic, "settings": settings, "queues": rows, "groups": groups})
        return
    output.show_all(
        Table(_SETTING_COLUMNS, settings, title=f"Topic {topic}"),
        Table(_QUEUE_COLUMNS, rows, empty="It has no queues."),
    )
    output.say(f"\nConsumed by: {output.plain(', '.join(groups)) or 'no group yet'}")


def _setting(broker: str, config: TopicConfig) -> dict[str, object]:
    return {
        "broker": broker,
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "permission": permission_text(config.perm),
        "message_type": config.message_type,
        "order": config.order,
        "attributes": [f"{key}={value}" for key, value in (config.attributes or {}).items()],
    }


@app.command("delete")
@on_cluster
@argument(
    "topics",
    nargs=-1,
    required=True,
    metavar="TOPIC",
    help="Names of topics.",
    shell_complete=complete_topics,
)
@yes_flag
@json_flag
def delete_topic(
    target: Target,
    topics: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Delete topics with their messages, on every broker.

    Example: penstock topic delete orders --yes
    """
    with target.admin() as admin:
        # Looked up first: a typing error in the last name must not cost the first its messages.
        for topic in topics:
            with guessing_topic(admin, topic, hint="penstock topic list --names"):
                admin.route(topic)
        found = [_summary(admin, topic) for topic in topics]
        known = [count for row in found if isinstance(count := row["messages"], int)]
        what = ", ".join(topics)
        output.confirm(
            f"Delete {what} with {output.counted(sum(known), 'message')} at {target.namesrv}?",
            yes=yes,
        )
        for topic in topics:
            admin.delete_topic(topic)
    if as_json:
        output.print_json([{**row, "deleted": True} for row in found])
    else:
        output.say(f"Deleted {output.plain(what)}.")
