"""The ``penstock`` command: its verbs, and how an error is printed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import demo, serve, store_tools
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="RocketMQ for Python and Spark people: a broker that starts in a blink.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(serve.up)
app.command("nameserver")(serve.nameserver)
app.command("broker")(serve.broker)
app.add_typer(store_tools.app, name="store")
app.command("demo")(demo.demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """RocketMQ for Python and Spark people: a broker that starts in a blink."""


def main() -> None:
    """Run the command line; an error of ours is one sentence and a non-zero exit."""
    try:
        app()
    except PenstockError as error:
        typer.echo(f"penstock: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
