"""``penstock user``: the users of brokers with authentication, ours or Apache's from 5.3 on.

With ``--data DIR`` the commands change the user file of servers on this machine, which works while
they are stopped, too, and can give a user a second secret for a while.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.commands import PATH, Group, Number, argument, option
from penstock.cli.output import Column, Table, json_flag, yes_flag
from penstock.cli.secret_files import read_secret
from penstock.cli.target import Target, on_cluster
from penstock.errors import ConfigError, InvalidArgument
from penstock.runtime.durations import seconds

if TYPE_CHECKING:
    from penstock.auth.model import User
    from penstock.auth.users import Users

app = Group(
    help="Users of a broker: create, list, show, rotate, limit, enable, disable, delete.\n\n"
    "Example: penstock user create app --secret-file app.secret",
)

SECRET_VARIABLE = "PENSTOCK_NEW_SECRET"
_GRACE = "24h"

name_argument = argument("name", help="Name of the user: its access key.")
data_option = option(
    "--data",
    type=PATH,
    metavar="DIR",
    help="Change the user file of servers on this machine instead of asking a broker.",
)
secret_file_option = option(
    "--secret-file",
    type=PATH,
    metavar="FILE",
    help=f"File with the secret, - for stdin; also {SECRET_VARIABLE}. Without it one is made.",
)

_LIMIT = Number(at_least=1)
_COLUMNS = (
    Column("name", whole=True),
    Column("type"),
    Column("status"),
    Column("rights"),
    Column("secrets"),
)


@app.command("create")
@on_cluster
@name_argument
@option("--super", "is_super", is_flag=True, help="With every right.")
@secret_file_option
@data_option
@json_flag
def create_user(
    target: Target,
    name: str,
    is_super: bool,
    secret_file: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Add a user; it has no rights yet.

    A secret that is made here is shown once.

    Example: penstock user create app
    """
    from penstock.auth.model import UserType
    from penstock.auth.users import new_user

    given = _given_secret(secret_file)
    type_ = UserType.SUPER if is_super else UserType.NORMAL
    user = new_user(name, now_ms(), value=given, type_=type_)
    secret = user.secrets[0].value
    if data is not None:
        change_users(data, lambda users: users.created(user))
    else:
        with target.admin() as admin:
            admin.create_user(name, secret, is_super=is_super)
    _show_secret(name, None if given else secret, f"User {name} created.", as_json=as_json)


@app.command("list")
@on_cluster
@data_option
@json_flag
def list_users(target: Target, data: Path | None, as_json: bool) -> None:
    """All users; secrets are not shown.

    Example: penstock user list
    """
    from penstock.admin.plain_rows import user_row

    rows: Sequence[Mapping[str, object]]
    if data is not None:
        rows = [_row(user) for user in load_users(data).by_name.values()]
    else:
        with target.admin() as admin:
            rights = admin.rights()
            rows = [user_row(user, rights) for user in admin.users()]
    columns = _COLUMNS if data is not None else _COLUMNS[:-1]
    output.show(Table(columns, rows, empty="No users."), as_json=as_json)


@app.command("show")
@on_cluster
@name_argument
@data_option
@json_flag
def show_user(target: Target, name: str, data: Path | None, as_json: bool) -> None:
    """One user with its rights.

    Example: penstock user show app
    """
    if data is not None:
        from penstock.auth.user_file import encode_limits

        user = load_users(data).by_name.get(name)
        if user is None:
            raise InvalidArgument(f"there is no user {name!r}", hint="penstock user list")
        facts: dict[str, object] = {
            **_row(user),
            "last_used": _last_uses(user, data),
            **encode_limits(user.limits),
            "rights": [str(entry) for entry in user.entries],
        }
    else:
        with target.admin() as admin:
            found = next((row for row in admin.users() if row.name == name), None)
            if found is None:
                raise InvalidArgument(f"there is no user {name!r}", hint="penstock user list")
            facts = {
                "name": name,
                "type": "Super" if found.is_super else "Normal",
                "status": "enable" if found.is_enabled else "disable",
                "rights": [
                    f"{right.decision} {'|'.join(right.actions)} {right.resource}"
                    for right in admin.rights(name)
                ],
            }
    output.show_facts(facts, as_json=as_json)


@app.command("rotate")
@on_cluster
@name_argument
@option(
    "--grace",
    metavar="DURATION",
    show_default=_GRACE,
    help="How long the old secret stays valid; with --data only.",
)
@secret_file_option
@data_option
@json_flag
def rotate_secret(
    target: Target,
    name: str,
    grace: str | None,
    secret_file: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Give a user a new secret.

    With --data the old one stays valid for the time of --grace, so that programs can change over.
    Over the network the old one is invalid at once: RocketMQ's request has no such time.

    Example: penstock user rotate app --grace 24h --data penstock-data
    """
    from penstock.auth.users import new_secret, rotated

    if grace is not None and data is None:
        # The old secret would end at once, with the programs that use it.
        raise InvalidArgument(
            "--grace needs --data: over the network the old secret is invalid at once",
            expected="both, or neither",
            hint=f"penstock user rotate {name} --grace {grace} --data DIR, where the servers run",
        )
    given = _given_secret(secret_file)
    if data is not None:
        grace_ms = round(seconds(grace or _GRACE) * 1000)
        made = new_secret(now_ms(), given).value

        def change(users: Users) -> Users:
            user = users.require(name)
            return users.with_user(rotated(user, now_ms(), grace_ms=grace_ms, value=made))

        change_users(data, change)
    else:
        made = new_secret(now_ms(), given).value
        with target.admin() as admin:
            admin.update_user(name, secret=made)
    _show_secret(name, None if given else made, f"User {name} has a new secret.", as_json=as_json)


@app.command("enable")
@on_cluster
@name_argument
@data_option
@json_flag
def enable_user(target: Target, name: str, data: Path | None, as_json: bool) -> None:
    """Let a user in again.

    Example: penstock user enable app
    """
    _set_enabled(target, name, data, enabled=True, as_json=as_json)


@app.command("disable")
@on_cluster
@name_argument
@data_option
@json_flag
def disable_user(target: Target, name: str, data: Path | None, as_json: bool) -> None:
    """Refuse a user from now on, and close its connections.

    Example: penstock user disable app
    """
    _set_enabled(target, name, data, enabled=False, as_json=as_json)


@app.command("limit")
@name_argument
@option("--connections", type=_LIMIT, metavar="N", help="Connections at a time.")
@option("--requests", type=_LIMIT, metavar="N", help="Requests a second.")
@option("--bytes", "bytes_", type=_LIMIT, metavar="N", help="Bytes that it sends, a second.")
@option(
    "--creations",
    type=_LIMIT,
    metavar="N",
    help="Topics and groups it creates, an hour.",
)
@option("--none", "remove", is_flag=True, help="Remove the limits that are not given.")
@option("--data", type=PATH, metavar="DIR", required=True, help="Directory of the servers.")
@json_flag
def limit_user(
    name: str,
    connections: int | None,
    requests: int | None,
    bytes_: int | None,
    creations: int | None,
    remove: bool,
    data: Path,
    as_json: bool,
) -> None:
    """Limit what a user may use of each server; what is not given stays as it is.

    Requests above a limit are answered with SYSTEM_BUSY, which clients try again. RocketMQ has no
    request for this, so it works on the user file.

    Example: penstock user limit app --requests 500 --data penstock-data
    """
    from penstock.auth.model import UserLimits
    from penstock.auth.user_file import encode_limits

    given = {
        **{"connections": connections, "requests": requests},
        **{"bytes": bytes_, "creations": creations},
    }
    wanted = {field: value for field, value in given.items() if value is not None}

    def change(users: Users) -> Users:
        user = users.require(name)
        kept = UserLimits() if remove else user.limits
        return users.with_user(replace(user, limits=replace(kept, **wanted)))

    change_users(data, change)
    limits = load_users(data).require(name).limits
    output.show_facts({"name": name, **encode_limits(limits)}, as_json=as_json)


@app.command("delete")
@on_cluster
@name_argument
@data_option
@yes_flag
@json_flag
def delete_user(target: Target, name: str, data: Path | None, yes: bool, as_json: bool) -> None:
    """Remove a user with its rights.

    Example: penstock user delete app --yes
    """
    where = str(data) if data is not None else target.namesrv
    output.confirm(f"Delete user {name} with its rights at {where}?", yes=yes)
    if data is not None:
        change_users(data, lambda users: users.without_user(users.require(name).name))
    else:
        with target.admin() as admin:
            admin.delete_user(name)
    output.show_facts({"name": name, "deleted": True}, as_json=as_json)


def _set_enabled(
    target: Target, name: str, data: Path | None, *, enabled: bool, as_json: bool
) -> None:
    from penstock.auth.model import UserStatus

    status = UserStatus.ENABLE if enabled else UserStatus.DISABLE
    if data is not None:
        change_users(
            data, lambda users: users.with_user(replace(users.require(name), status=status))
        )
    else:
        with target.admin() as admin:
            admin.update_user(name, is_enabled=enabled)
    output.show_facts({"name": name, "status": status.value}, as_json=as_json)


# The user file


def load_users(data: Path) -> Users:
    from penstock.auth.user_file import FILE_NAME, UserFile

    return UserFile(data / FILE_NAME).load()


def change_users(data: Path, change: Callable[[Users], Users]) -> None:
    from penstock.auth.user_file import FILE_NAME, UserFile

    file = UserFile(data / FILE_NAME)
    if not file.exists():
        raise ConfigError(f"{file.path} does not exist", hint=f"penstock up --auth --data {data}")
    file.change(change)


def _row(user: User) -> dict[str, object]:
    return {
        "name": user.name,
        "type": user.type.value,
        "status": user.status.value,
        "rights": len(user.entries),
        "secrets": len(user.secrets),
    }


# Secrets


def _last_uses(user: User, data: Path) -> list[str]:
    """A line for each secret, the oldest first: its end, and when it was last used."""
    from penstock.auth.secret_uses import load_uses

    uses = load_uses(data).get(user.name, {})
    lines = []
    for secret in sorted(user.secrets, key=lambda one: one.created_ms):
        end = f", valid until {output.local_time(secret.expires_ms)}" if secret.expires_ms else ""
        used = output.local_time(uses[secret.id]) if secret.id in uses else "not yet"
        lines.append(f"{secret.id}: {used}{end}")
    return lines


def _given_secret(file: Path | None) -> str | None:
    """The secret of a file, of stdin or of the environment; never of the command line."""
    if file is None:
        return os.environ.get(SECRET_VARIABLE) or None
    return read_secret(file, "--secret-file")


def _show_secret(name: str, secret: str | None, done: str, *, as_json: bool) -> None:
    if as_json:
        shown = {"name": name} if secret is None else {"name": name, "secret": secret}
        output.print_json(shown)
        return
    output.say(done)
    if secret is not None:
        output.say(f"Its secret is shown only now: {secret}")
        output.note(
            f"Use it: PENSTOCK_ACCESS_KEY={name} PENSTOCK_SECRET_KEY=..., or penstock context add "
            f"NAME --access-key {name} --secret-key-file FILE"
        )


def now_ms() -> int:
    return round(time.time() * 1000)
