"""``penstock cert``: certificates for development."""

from __future__ import annotations

import socket
from pathlib import Path

from penstock.cli import output
from penstock.cli.commands import PATH, Number, command, option
from penstock.cli.output import json_flag


@command
@option(
    "--dir", "directory", type=PATH, default=Path("tls"), metavar="DIR", help="Where to write them."
)
@option(
    "--host",
    "hosts",
    multiple=True,
    help="Name or address of the server; may be repeated.",
    show_default="this machine",
)
@option("--days", type=Number(at_least=1, at_most=3650), default=90, help="Days of validity.")
@option("--replace", is_flag=True, help="Replace certificates that are there.")
@json_flag
def cert(directory: Path, hosts: tuple[str, ...], days: int, replace: bool, as_json: bool) -> None:
    """Make an authority, a server certificate and a client certificate, for development.

    Example: penstock cert --dir tls --host broker.example.com && penstock up --tls tls
    """
    from penstock.auth.certificates import make_certificates

    names = hosts or ("localhost", "127.0.0.1", "::1", socket.gethostname())
    files = make_certificates(directory, names, days=days, replace=replace)
    output.show_facts(
        {
            "hosts": list(names),
            "authority": str(files.authority),
            "certificate": str(files.certificate),
            "key": str(files.key),
            "client_certificate": str(files.client_certificate),
            "client_key": str(files.client_key),
        },
        as_json=as_json,
    )
