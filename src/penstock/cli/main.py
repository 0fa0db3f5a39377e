"""The ``penstock`` command: its verbs, and how it ends."""

from __future__ import annotations

import io
import os
import sys

import click

from penstock import __version__
from penstock.cli import error_reports
from penstock.cli.commands import LazyGroup, Verb

_COMPLETE = "_PENSTOCK_COMPLETE"

# Each line is the first of the command's own help.
VERBS = {
    name: Verb(f"penstock.cli.{home}", help)
    for name, home, help in (
        ("up", "serve:up", "Run a name server and a broker: all a client needs, in one command."),
        ("nameserver", "serve:nameserver", "Run a name server alone."),
        ("broker", "serve:broker", "Run one broker under a name server that runs elsewhere."),
        ("proxy", "proxy:proxy", "Serve the official 5.x clients (gRPC) in front of any cluster."),
        (
            "console",
            "console:console",
            "Serve a web console: topics, groups, messages, dead letters.",
        ),
        ("topic", "topics:app", "Topics: list, create, describe, delete."),
        (
            "group",
            "groups:app",
            "Consumer groups: list, create, describe, lag, mode, reset, delete.",
        ),
        ("cluster", "cluster:app", "The brokers of a cluster: addresses, rates, disk."),
        ("context", "context:app", "Clusters by name: list, use, add, remove."),
        (
            "user",
            "users:app",
            "Users of a broker: create, list, show, rotate, limit, enable, disable, delete.",
        ),
        ("acl", "rights:app", "Rights of users: grant, deny, revoke, list, check, export, import."),
        (
            "cert",
            "certificates:cert",
            "Make an authority, a server certificate and a client certificate, for development.",
        ),
        ("send", "send:send", "Send messages: arguments, or the lines of stdin or of a file."),
        ("tail", "tail:tail", "Print the newest messages of a topic, or those from a given point."),
        ("query", "query:query", "Find messages by id, by key, or by the time they were stored."),
        ("dlq", "dead_letters:app", "Dead letters: list, show, redrive, purge."),
        ("transaction", "transactions:app", "Transactions without a decision: list, resume."),
        ("timer", "timers:app", "Timer messages that wait for their time: list, recall."),
        ("doctor", "doctor:doctor", "Find out why a consumer group receives nothing."),
        (
            "bench",
            "bench:bench",
            "Measure sends, receives and the latency between, with this client.",
        ),
        ("spark", "spark_jobs:app", "Spark jobs: archive, replay, dlq, report, status."),
        ("store", "store_tools:app", "Inspect, verify, export or repair the files of a store."),
        (
            "demo",
            "demo:demo",
            "Run a demo shop: send, bill, ship, check and archive with Spark, repair.",
        ),
    )
}

# Names that other tools use for a command, and words that only look like another of ours.
OTHER_NAMES = {
    **dict.fromkeys(("start", "serve", "server", "run"), "up"),
    **dict.fromkeys(("consume", "listen", "subscribe", "watch"), "tail"),
    **dict.fromkeys(("produce", "publish"), "send"),
    "version": "--version",
    "help": "--help",
}

app = LazyGroup(
    name="penstock",
    verbs=VERBS,
    other_names=OTHER_NAMES,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="RocketMQ for Python and Spark: brokers, messages, groups, Spark jobs.\n\n"
    "Example: penstock up  # then, in another terminal: penstock topic create orders",
)
click.version_option(__version__, message="penstock %(version)s", help="Print the version.")(app)


def _print_completion(ctx: click.Context, param: click.Parameter, shell: str | None) -> None:
    if shell is not None:
        from click.shell_completion import shell_complete

        ctx.exit(shell_complete(app, {}, "penstock", _COMPLETE, f"{shell}_source"))


click.option(
    "--show-completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    callback=_print_completion,
    is_eager=True,
    expose_value=False,
    help="Print the script that completes commands in this shell.",
)(app)


def main() -> None:
    """Run the command line; what ends it early becomes one sentence and an exit code."""
    with error_reports.sigterm_as_ctrl_c() as terminated:
        code = _run()
    if code == error_reports.INTERRUPTED and terminated.is_set():
        code = error_reports.TERMINATED
    sys.exit(code)


def _run() -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal cannot encode is shown escaped instead of failing.
            stream.reconfigure(errors="backslashreplace")
    try:
        if instruction := os.environ.get(_COMPLETE):
            from click.shell_completion import shell_complete

            return shell_complete(app, {}, "penstock", _COMPLETE, instruction)
        # Not `app.main`, which prints an empty line on Ctrl-C.
        with app.make_context("penstock", sys.argv[1:]) as context:
            app.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except error_reports.EXPECTED as error:
        return error_reports.report(error)
    return 0
