"""``penstock group mode``: whether a group pulls or pops its topics."""

from __future__ import annotations

from penstock.cli import output
from penstock.cli.commands import command, option
from penstock.cli.name_completion import (
    complete_topics,
    group_argument,
    guessing_group,
    guessing_topic,
)
from penstock.cli.output import Column, Table, json_flag
from penstock.cli.target import Target, on_cluster
from penstock.errors import InvalidArgument

_COLUMNS = (
    Column("topic"),
    Column("broker"),
    Column("mode"),
    Column("share", align="right"),
)


@command
@on_cluster
@group_argument
@option("--topic", help="The topic to set the mode for.", shell_complete=complete_topics)
@option("--set", "mode", metavar="pull|pop", help="Let the group pull or pop the topic.")
@option(
    "--share",
    type=int,
    default=0,
    help="Members that share a popped queue with its owner; 0: all members pop all queues.",
)
@json_flag
def group_mode(
    target: Target, group: str, topic: str | None, mode: str | None, share: int, as_json: bool
) -> None:
    """Show or set whether a group pulls or pops its topics.

    Members that leave the choice to the broker follow: mode="auto" in Python, and
    clientRebalance=false in Java. Topics that are not listed are pulled.

    Example: penstock group mode billing --topic orders --set pop
    """
    if (mode is None) != (topic is None):
        raise InvalidArgument(
            "--set needs --topic" if topic is None else "--topic needs --set",
            expected="both, or neither",
            hint=f"penstock group mode {group} --topic TOPIC --set pop",
        )
    with target.admin() as admin, guessing_group(admin, group):
        if mode is not None and topic is not None:
            with guessing_topic(admin, topic):
                modes = admin.set_group_mode(group, topic, mode, share=share)
        else:
            admin.group_config(group)
            modes = admin.group_modes(group)
    rows: list[dict[str, object]] = [
        {"topic": one.topic, "broker": one.broker_name, "mode": one.mode, "share": one.share}
        for one in modes
    ]
    output.show(Table(_COLUMNS, rows, empty=f"{group} pulls all its topics."), as_json=as_json)
