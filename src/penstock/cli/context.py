"""``penstock context list | use | add | remove``."""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path

from penstock.cli import context_file, output
from penstock.cli.commands import Group, argument, option
from penstock.cli.context_file import Context, Contexts
from penstock.cli.output import Column, Table, json_flag, yes_flag
from penstock.cli.secret_files import read_secret
from penstock.cli.target import (
    DEFAULT_NAMESRV,
    access_key_option,
    namespace_option,
    secret_key_option,
    security_token_option,
    tls_ca_option,
    tls_option,
)
from penstock.errors import InvalidArgument

app = Group(
    help="Clusters by name: list, use, add, remove.\n\n"
    "Example: penstock context add staging --namesrv 10.0.0.5:9876 --use",
)

name_argument = argument(
    "name", help="Name of a context.", shell_complete=context_file.complete_names
)


@app.command("list")
@json_flag
def list_contexts(
    as_json: bool,
) -> None:
    """All contexts; secrets are not shown.

    Example: penstock context list
    """
    known = context_file.load()
    rows = [_row(name, context, known) for name, context in sorted(known.named.items())]
    columns = (
        Column("current", "", format=lambda current: "*" if current else ""),
        Column("name"),
        Column("namesrv"),
        Column("access_key"),
        Column("tls"),
        Column("namespace"),
    )
    overruled = os.environ.get("NAMESRV_ADDR")
    note = None
    if overruled and known.current:
        note = f"NAMESRV_ADDR={overruled} comes before the context in use."
    empty = (
        f"No contexts yet, so commands go to {overruled or DEFAULT_NAMESRV}; "
        "add one: penstock context add NAME --namesrv HOST:PORT"
    )
    output.show(Table(columns, rows, note=note, empty=empty), as_json=as_json)


def _row(name: str, context: Context, known: Contexts) -> dict[str, object]:
    shown = {
        field: value
        for field, value in dataclasses.asdict(context).items()
        if field not in context_file.SECRETS
    }
    return {"name": name, "current": name == known.current, **shown}


@app.command("use")
@name_argument
@json_flag
def use_context(
    name: str,
    as_json: bool,
) -> None:
    """Make a context the default of all commands.

    Example: penstock context use staging
    """
    known = context_file.load()
    chosen = known.get(name)
    _keep(Contexts(known.named, name), name, chosen, f"Using {name}", as_json=as_json)


@app.command("add")
@argument("name", help="Name of the context.")
@option(
    "--namesrv", "-n", required=True, metavar="HOST:PORT", help="Name servers, host:port;host:port."
)
@access_key_option
@secret_key_option
@security_token_option
@tls_option
@tls_ca_option
@namespace_option
@option("--use", is_flag=True, help="Use it from now on.")
@json_flag
def add_context(
    name: str,
    namesrv: str,
    access_key: str | None,
    secret_key_file: Path | None,
    security_token: str | None,
    tls: bool | None,
    tls_ca: Path | None,
    namespace: str | None,
    use: bool,
    as_json: bool,
) -> None:
    """Save a cluster under a name, or change it.

    Example: penstock context add staging --namesrv "10.0.0.5:9876;10.0.0.6:9876" --use
    """
    from penstock.remoting.addresses import parse_address

    if not name or not name.isprintable() or name != name.strip():
        raise InvalidArgument(f"context name {name!r}", expected="a printable word")
    addresses = [part.strip() for part in namesrv.split(";") if part.strip()]
    if not addresses:
        raise InvalidArgument(f"--namesrv {namesrv!r}", expected="host:port;host:port")
    for address in addresses:
        parse_address(address)
    context = Context(
        namesrv=";".join(addresses),
        access_key=access_key,
        secret_key=None
        if secret_key_file is None
        else read_secret(secret_key_file, "--secret-key-file"),
        security_token=security_token,
        tls=tls,
        # It is used from other directories, too.
        tls_ca=None if tls_ca is None else str(tls_ca.absolute()),
        namespace=namespace,
    )
    known = context_file.load()
    # Never by itself: it may be production, and the next command may be a delete.
    kept = Contexts({**known.named, name: context}, name if use else known.current)
    verb = "Changed" if name in known.named else "Added"
    _keep(kept, name, context, f"{verb} {name}", as_json=as_json)
    if kept.current != name and not as_json:
        word = shlex.quote(name)
        output.say(
            f"Commands do not go there yet; try: --context {word} for one of them, "
            f"or penstock context use {word} for all."
        )


@app.command("remove")
@name_argument
@yes_flag
@json_flag
def remove_context(
    name: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Forget a context; the cluster itself is left alone.

    Example: penstock context remove staging --yes
    """
    known = context_file.load()
    gone = known.get(name)
    output.confirm(f"Forget context {name} ({gone.namesrv})?", yes=yes)
    rest = {other: context for other, context in known.named.items() if other != name}
    current = None if known.current == name else known.current
    _keep(Contexts(rest, current), name, gone, f"Removed {name}", as_json=as_json)


def _keep(kept: Contexts, name: str, context: Context, done: str, *, as_json: bool) -> None:
    where = context_file.save(kept)
    if as_json:
        output.print_json(_row(name, context, kept))
        return
    output.say(f"{done}: {context.namesrv}.")
    output.note(f"In use: {kept.current or 'none'}; kept in {where}")
