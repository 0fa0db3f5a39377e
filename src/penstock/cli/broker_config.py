"""``penstock broker config get | set``: the settings of running brokers."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from penstock.cli import output
from penstock.cli.commands import Group, argument, option
from penstock.cli.output import Column, Table, json_flag, yes_flag
from penstock.cli.target import Target, on_cluster
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock import Admin

app = Group(
    help="The settings of running brokers: get, set.\n\n"
    "Example: penstock broker config get fileReservedTime"
)

broker_option = option(
    "--broker",
    "brokers",
    multiple=True,
    help="Only this broker; may be repeated.",
    show_default="all",
)

_GET_COLUMNS = (Column("broker"), Column("key", whole=True), Column("value"))
_SET_COLUMNS = (
    Column("broker"),
    Column("key", whole=True),
    Column("before"),
    Column("value", "now"),
)


@app.command("get")
@on_cluster
@argument(
    "keys",
    nargs=-1,
    metavar="KEY",
    help="RocketMQ's name of a setting, or a pattern such as 'flush*'; without any, all.",
)
@broker_option
@json_flag
def get_settings(
    target: Target, keys: tuple[str, ...], brokers: tuple[str, ...], as_json: bool
) -> None:
    """The settings of brokers, under RocketMQ's names.

    Example: penstock broker config get 'flush*' --broker broker-a
    """
    with target.admin() as admin:
        found = _settings(admin, brokers)
    rows: list[dict[str, object]] = [
        {"broker": broker, "key": key, "value": values[key]}
        for broker, values in found.items()
        for key in _chosen(keys, values, broker)
    ]
    output.show(Table(_columns(_GET_COLUMNS, found), rows), as_json=as_json)


@app.command("set")
@on_cluster
@argument("settings", nargs=-1, required=True, metavar="KEY=VALUE", help="Settings to change.")
@broker_option
@yes_flag
@json_flag
def change_settings(
    target: Target,
    settings: tuple[str, ...],
    brokers: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Change settings of running brokers; a restart reads the configuration file again.

    The values are read back: it ends with code 1 if a broker kept another one.

    Example: penstock broker config set fileReservedTime=48 --yes
    """
    wanted = dict(map(_pair, settings))
    with target.admin() as admin:
        before = _settings(admin, brokers)
        for broker, values in before.items():
            for key in wanted:
                _check_known(key, values, broker)
        names = ", ".join(f"{key}={value}" for key, value in wanted.items())
        output.confirm(f"Set {names} on {', '.join(before)} at {target.namesrv}?", yes=yes)
        for broker in before:
            admin.update_broker_config(broker, wanted)
        after = _settings(admin, list(before))
    rows: list[dict[str, object]] = [
        {"broker": broker, "key": key, "before": before[broker][key], "value": values.get(key)}
        for broker, values in after.items()
        for key in wanted
    ]
    output.show(Table(_columns(_SET_COLUMNS, after), rows), as_json=as_json)
    kept = [row for row in rows if not _is_same(row["value"], wanted[str(row["key"])])]
    if kept:
        output.note(f"Not changed: {', '.join(sorted({str(row['key']) for row in kept}))}.")
        raise click.exceptions.Exit(1)


def _settings(admin: Admin, brokers: Iterable[str]) -> dict[str, dict[str, str]]:
    """The settings of the named masters, or of all."""
    names = list(brokers) or [one.broker_name for one in admin.cluster() if one.broker_id == 0]
    return {name: admin.broker_config(name) for name in names}


def _columns(columns: tuple[Column, ...], brokers: Mapping[str, object]) -> tuple[Column, ...]:
    return columns if len(brokers) > 1 else columns[1:]


def _chosen(keys: tuple[str, ...], values: Mapping[str, str], broker: str) -> list[str]:
    if not keys:
        return sorted(values)
    chosen: dict[str, None] = {}
    for key in keys:
        matching = [name for name in sorted(values) if fnmatch.fnmatchcase(name, key)]
        if not matching:
            _check_known(key, values, broker)
        chosen.update(dict.fromkeys(matching))
    return list(chosen)


def _check_known(key: str, values: Mapping[str, str], broker: str) -> None:
    if key in values:
        return
    near = difflib.get_close_matches(key, values, n=1)
    raise InvalidArgument(
        f"broker {broker!r} has no setting {key!r}",
        expected="one that penstock broker config get lists",
        hint=f"did you mean {near[0]}?" if near else None,
    )


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise InvalidArgument(f"setting {text!r}", expected="KEY=VALUE")
    return key.strip(), value.strip()


def _is_same(value: object, wanted: str) -> bool:
    # Brokers may write a value in another way: 4 for 04, true for True.
    number = _number(wanted)
    return str(value).lower() == wanted.lower() or (
        number is not None and _number(str(value)) == number
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
