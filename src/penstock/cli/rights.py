"""``penstock acl``: what users may do, on our brokers and on Apache's from 5.3 on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli import output
from penstock.cli.commands import PATH, F, Group, argument, option
from penstock.cli.output import Column, Table, json_flag, yes_flag
from penstock.cli.target import Target, on_cluster
from penstock.cli.users import data_option, name_argument
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.auth.model import Entry
    from penstock.auth.users import Users

app = Group(
    help="Rights of users: grant, deny, revoke, list, check, export, import.\n\n"
    "Example: penstock acl grant app --produce orders --consume orders --group billing",
)

_COLUMNS = (
    Column("user", whole=True),
    Column("resource", whole=True),
    Column("actions"),
    Column("decision"),
    Column("sources", "from"),
    Column("policy"),
)
_PRODUCE = ("Pub",)
_CONSUME = ("Sub", "Get")
_GROUP = ("Sub", "Get", "Update")


def _right_options(function: F) -> F:
    """The options that name rights; `_entries` takes them."""
    for added in (
        option(
            "--from",
            "sources",
            multiple=True,
            metavar="ADDRESS",
            help="Only from this address or network.",
        ),
        option(
            "--action",
            "actions",
            multiple=True,
            help="Pub, Sub, Create, Update, Delete, Get, List or All; with --resource.",
        ),
        option(
            "--resource",
            "resources",
            multiple=True,
            help="Topic:NAME, Group:PREFIX*, Cluster:* or *.",
        ),
        option("--group", "groups", multiple=True, help="A group the user may be a member of."),
        option("--consume", multiple=True, metavar="TOPIC", help="A topic the user may read."),
        option("--produce", multiple=True, metavar="TOPIC", help="A topic the user may send to."),
    ):
        function = added(function)
    return function


@app.command("grant")
@on_cluster
@name_argument
@_right_options
@data_option
@json_flag
def grant(
    target: Target,
    /,
    name: str,
    data: Path | None,
    as_json: bool,
    **named: tuple[str, ...],
) -> None:
    """Allow a user something; rights on the same resource are replaced.

    Example: penstock acl grant app --produce orders --consume orders --group billing
    """
    entries = _entries("Allow", **named)
    _put(target, name, entries, data, as_json=as_json)


@app.command("deny")
@on_cluster
@name_argument
@_right_options
@data_option
@json_flag
def deny(
    target: Target,
    /,
    name: str,
    data: Path | None,
    as_json: bool,
    **named: tuple[str, ...],
) -> None:
    """Forbid a user something that a wider right allows.

    A more specific right decides: a name before a prefix, a prefix before *.

    Example: penstock acl deny app --resource Topic:payroll* --action All
    """
    entries = _entries("Deny", **named)
    _put(target, name, entries, data, as_json=as_json)


@app.command("revoke")
@on_cluster
@name_argument
@option("--resource", help="Only the rights on this resource.", show_default="all rights")
@data_option
@yes_flag
@json_flag
def revoke(
    target: Target, name: str, resource: str | None, data: Path | None, yes: bool, as_json: bool
) -> None:
    """Take rights away.

    Example: penstock acl revoke app --resource Topic:orders --yes
    """
    from penstock.auth.model import Resource

    parsed = None if resource is None else Resource.parse(resource)
    what = "all rights" if parsed is None else f"the rights on {parsed}"
    output.confirm(f"Take {what} from user {name}?", yes=yes)
    if data is not None:
        from penstock.cli.users import change_users

        change_users(data, lambda users: users.without_entries(name, parsed))
    else:
        with target.admin() as admin:
            admin.revoke(name, None if parsed is None else str(parsed))
    output.show_facts({"user": name, "resource": resource, "revoked": True}, as_json=as_json)


@app.command("list")
@on_cluster
@argument("name", help="Name of a user; without one, all.", required=False)
@data_option
@json_flag
def list_rights(target: Target, name: str | None, data: Path | None, as_json: bool) -> None:
    """The rights of a user, or of all.

    Example: penstock acl list app
    """
    rows = _rows(target, name, data)
    empty = "No rights: only super users can do anything."
    output.show(Table(_COLUMNS, rows, empty=empty), as_json=as_json)


@app.command("check")
@on_cluster
@name_argument
@argument("action", help="Pub, Sub, Create, Update, Delete, Get or List.")
@argument("resource", help="Topic:NAME, Group:NAME or Cluster:NAME.")
@option("--from", "source", metavar="ADDRESS", help="As if connected from this address.")
@data_option
@json_flag
def check(
    target: Target,
    name: str,
    action: str,
    resource: str,
    source: str | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Whether a user may do something, and which right decides; ends with code 1 if not.

    Example: penstock acl check app Pub Topic:orders --from 10.1.2.3
    """
    from penstock.auth.evaluate import Verdict, decide
    from penstock.auth.model import Action, Resource, parse_address, parse_word

    wanted = Resource.parse(resource)
    if not wanted.is_literal:
        raise InvalidArgument(f"resource {resource!r}", expected="one name, no pattern")
    is_super, is_enabled = _standing(target, name, data)
    entries = [_entry(row) for row in _rows(target, name, data)]
    address = None if source is None else parse_address(source)
    if source is not None and address is None:
        raise InvalidArgument(f"--from {source!r}", expected="an address")
    verdict = decide(entries, wanted.type, wanted.name, {parse_word(Action, action)}, address)
    if is_super:
        verdict = Verdict(True)
    allowed = verdict.is_allowed and is_enabled
    if not is_enabled:
        reason = "the user is disabled"
    elif is_super:
        reason = "a super user has every right"
    elif verdict.entry is not None:
        reason = str(verdict.entry)
    else:
        reason = "no right covers it"
    asked = {"user": name, "action": action, "resource": resource}
    output.show_facts({**asked, "allowed": allowed, "because": reason}, as_json=as_json)
    if not allowed:
        raise click.exceptions.Exit(1)


@app.command("export")
@on_cluster
@argument("name", help="Name of a user; without one, all.", required=False)
@data_option
@json_flag
def export_rights(target: Target, name: str | None, data: Path | None, as_json: bool) -> None:
    """Print the rights as JSON, for `acl import` here or elsewhere; without users and secrets.

    Example: penstock acl export > rights.json
    """
    from penstock.auth.user_file import encode_rights

    rights: dict[str, list[Entry]] = {}
    for row in _rows(target, name, data):
        rights.setdefault(str(row["user"]), []).append(_entry(row))
    output.say(encode_rights(rights).decode().rstrip())


@app.command("import")
@on_cluster
@argument("file", help="Output of acl export, or a plain_acl.yml of RocketMQ 4.x.", type=PATH)
@data_option
@option("--dry-run", is_flag=True, help="Show what would be imported.")
@json_flag
def import_rights(
    target: Target, file: Path, data: Path | None, dry_run: bool, as_json: bool
) -> None:
    """Take over rights of another cluster, or the accounts of RocketMQ 4.x.

    Rights (.json) are given to users that exist. Accounts (.yml) are added with their secrets and
    rights, which needs --data. Their white lists have no equivalent, since these let requests in
    without a signature; they are named.

    Example: penstock acl import conf/plain_acl.yml --data penstock-data
    """
    if file.suffix == ".json":
        _import_rights(target, file, data, dry_run=dry_run, as_json=as_json)
    elif data is None:
        raise InvalidArgument(
            f"accounts of {file} without --data", expected="--data DIR of the servers"
        )
    else:
        _import_accounts(file, data, dry_run=dry_run, as_json=as_json)


def _import_rights(
    target: Target, file: Path, data: Path | None, *, dry_run: bool, as_json: bool
) -> None:
    from penstock.auth.user_file import read_rights

    rights = read_rights(file)
    if not dry_run and data is not None:
        from penstock.cli.users import change_users

        def change(users: Users) -> Users:
            for name, entries in rights.items():
                users = users.with_entries(name, entries)
            return users

        change_users(data, change)
    elif not dry_run:
        for name, entries in rights.items():
            _grant(target, name, entries)
    rows = [_row(name, entry) for name, entries in rights.items() for entry in entries]
    output.show(Table(_COLUMNS, rows, empty="No rights."), as_json=as_json)


def _import_accounts(file: Path, data: Path, *, dry_run: bool, as_json: bool) -> None:
    from penstock.auth.import_v1 import read_plain_acl
    from penstock.cli.users import change_users, now_ms

    found = read_plain_acl(file, now_ms())
    for warning in found.warnings:
        output.note(f"Warning: {warning}")
    if not dry_run:
        change_users(data, found.add_to)
    rows: list[dict[str, object]] = [
        {"user": user.name, "type": user.type.value, "rights": len(user.entries)}
        for user in found.users
    ]
    columns = (Column("user", whole=True), Column("type"), Column("rights"))
    output.show(Table(columns, rows, empty="No accounts."), as_json=as_json)


def _put(
    target: Target, name: str, entries: list[Entry], data: Path | None, *, as_json: bool
) -> None:
    if data is not None:
        from penstock.cli.users import change_users

        change_users(data, lambda users: users.with_entries(name, entries))
    else:
        _grant(target, name, entries)
    rows = [_row(name, entry) for entry in entries]
    output.show(Table(_COLUMNS, rows), as_json=as_json)


def _grant(target: Target, name: str, entries: list[Entry]) -> None:
    with target.admin() as admin:
        for entry in entries:
            admin.grant(
                name,
                [str(entry.resource)],
                sorted(entry.actions),
                decision=entry.decision.value,
                sources=[str(source) for source in entry.sources],
                policy=entry.policy.value,
            )


def _entries(
    decision: str,
    *,
    produce: tuple[str, ...],
    consume: tuple[str, ...],
    groups: tuple[str, ...],
    resources: tuple[str, ...],
    actions: tuple[str, ...],
    sources: tuple[str, ...],
) -> list[Entry]:
    """The rights that the options of `_right_options` name."""
    from penstock.auth.model import Entry

    wanted: dict[str, set[str]] = {}
    for names, prefix, words in (
        (produce, "Topic:", _PRODUCE),
        (consume, "Topic:", _CONSUME),
        (groups, "Group:", _GROUP),
        (resources, "", actions),
    ):
        for name in names:
            wanted.setdefault(prefix + name, set()).update(words)
    if not wanted:
        raise InvalidArgument(
            "no right is named", expected="--produce, --consume, --group or --resource"
        )
    if bool(resources) != bool(actions):
        raise InvalidArgument("--resource and --action go together", expected="both")
    return [
        Entry.parse(resource, sorted(words), decision, sources)
        for resource, words in wanted.items()
    ]


def _entry(row: dict[str, object]) -> Entry:
    from penstock.auth.model import Entry

    return Entry.parse(
        str(row["resource"]),
        [str(one) for one in row["actions"]],  # type: ignore[attr-defined]  # a list
        str(row["decision"]),
        [str(one) for one in row["sources"]],  # type: ignore[attr-defined]
        str(row["policy"]),
    )


def _row(user: str, entry: Entry) -> dict[str, object]:
    return {
        "user": user,
        "resource": str(entry.resource),
        "actions": sorted(action.value for action in entry.actions),
        "decision": entry.decision.value,
        "sources": [str(source) for source in entry.sources],
        "policy": entry.policy.value,
    }


def _rows(target: Target, name: str | None, data: Path | None) -> list[dict[str, object]]:
    if data is not None:
        from penstock.cli.users import load_users

        return [
            _row(user.name, entry)
            for user in load_users(data).by_name.values()
            if name in (None, user.name)
            for entry in user.entries
        ]
    from penstock.admin.plain_rows import right_row

    with target.admin() as admin:
        return [dict(right_row(right)) for right in admin.rights(name)]


def _standing(target: Target, name: str, data: Path | None) -> tuple[bool, bool]:
    """Whether the user is a super user, and whether it is enabled."""
    if data is not None:
        from penstock.cli.users import load_users

        user = load_users(data).require(name)
        return user.is_super, user.is_enabled
    with target.admin() as admin:
        for row in admin.users():
            if row.name == name:
                return row.is_super, row.is_enabled
    raise InvalidArgument(f"there is no user {name!r}", hint="penstock user list")
