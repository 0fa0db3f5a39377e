"""The ``penstock`` command: its verbs, and how it ends."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import error_reports
from penstock.cli.verbs import LazyVerbs, Verb

_HERE = "penstock.cli"

# Each line is the first of the command's own help.
VERBS = {
    "up": Verb(
        f"{_HERE}.serve:up",
        "Run a name server and a broker: all a client needs, in one command.",
    ),
    "nameserver": Verb(f"{_HERE}.serve:nameserver", "Run a name server alone."),
    "broker": Verb(
        f"{_HERE}.serve:broker", "Run one broker under a name server that runs elsewhere."
    ),
    "topic": Verb(f"{_HERE}.topics:app", "Topics: list, create, describe, delete."),
    "group": Verb(
        f"{_HERE}.groups:app", "Consumer groups: list, create, describe, lag, reset, delete."
    ),
    "cluster": Verb(f"{_HERE}.cluster:app", "The brokers of a cluster and how they do."),
    "context": Verb(f"{_HERE}.context:app", "Clusters by name: list, use, add, remove."),
    "send": Verb(
        f"{_HERE}.send:send",
        "Send messages: an argument each, or the lines of stdin or of a file.",
    ),
    "tail": Verb(
        f"{_HERE}.tail:tail",
        "Print messages of a topic: the newest, or from some point on, and those to come.",
    ),
    "query": Verb(
        f"{_HERE}.query:query", "Find messages by id, by key, or by the time they were stored."
    ),
    "dlq": Verb(f"{_HERE}.dead_letters:app", "Dead letters: list, show, redrive, purge."),
    "doctor": Verb(f"{_HERE}.doctor:doctor", "Why does a group not receive anything?"),
    "bench": Verb(
        f"{_HERE}.bench:bench",
        "Measure sending, receiving and the time between, with this client.",
    ),
    "spark": Verb(f"{_HERE}.spark_jobs:app", "Spark jobs: archive, replay, dlq, report."),
    "store": Verb(
        f"{_HERE}.store_tools:app",
        "Look at the files of a store: what is there, whether it is whole, all of it as JSON.",
    ),
    "demo": Verb(
        f"{_HERE}.demo:demo",
        "A day in a shop: orders are billed, shipped, checked and archived with Spark, repaired.",
    ),
}


# What other tools call it, and what is close to a word of ours only in its letters.
ELSEWHERE = {
    **dict.fromkeys(("start", "serve", "server", "run"), "up"),
    **dict.fromkeys(("consume", "listen", "subscribe", "watch"), "tail"),
    **dict.fromkeys(("produce", "publish"), "send"),
    "version": "--version",
    "help": "--help",
}


class Verbs(LazyVerbs):
    """Everything ``penstock`` can do."""

    verbs = VERBS
    elsewhere = ELSEWHERE


app = typer.Typer(
    name="penstock",
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Help drawn by rich takes as long to load as everything else together.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback(
    epilog="\b\nExample: penstock up  # then, in another terminal: penstock topic create orders"
)
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
    """Run the command line; whatever ends it early is one sentence and an exit code."""
    with error_reports.sigterm_as_ctrl_c() as terminated:
        code = _run()
    sys.exit(
        error_reports.TERMINATED
        if code == error_reports.INTERRUPTED and terminated.is_set()
        else code
    )


def _run() -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A message may hold what the terminal has no letters for; that is shown, no error.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except error_reports.EXPECTED as error:
        code = error_reports.report(error)
    return code if isinstance(code, int) else 0
