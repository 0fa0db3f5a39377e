"""Pages of the documentation that are generated from the code at build time.

mkdocs calls ``on_files``. The page of the command line comes from its own help, the pages of broker
settings, client options and Spark options from their declarations, the list of decisions from the
headings of the records. So none of them can be out of date.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from penstock.auth.auth_config import AuthConfig
from penstock.broker.config import BrokerConfig
from penstock.cli.main import app
from penstock.client import arguments, options
from penstock.client.cluster_access import ACCESS_OPTIONS
from penstock.client.settings import (
    IDENTITY_OPTIONS,
    ConsumerSettings,
    ProducerSettings,
    SessionSettings,
)
from penstock.nameserver.config import NameServerConfig
from penstock.runtime.config import markdown_table
from penstock.spark.access_options import AccessOptions
from penstock.spark.option_table import options_table
from penstock.spark.sink.write_options import WriteOptions
from penstock.spark.source.options import ReadOptions
from penstock.store.config import StoreConfig


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {
        "reference/cli.md": cli_page(),
        "reference/broker-settings.md": settings_page(),
        "reference/client-options.md": client_options_page(),
        "reference/spark-options.md": spark_options_page(),
        "decisions.md": decisions_page(Path(config.docs_dir) / "decisions"),
    }
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def cli_page() -> str:
    """The page with the help of every command."""
    lines = [
        "# Command line",
        "",
        "The output of `--help`. `NAMESRV_ADDR` or a context selects the cluster; `--json` prints",
        "machine-readable output and errors; destructive commands ask, or take `--yes`.",
    ]
    runner = CliRunner()
    for path in _paths(app, ()):
        printed = runner.invoke(app, [*path, "--help"], prog_name="penstock", terminal_width=80)
        title = " ".join(("penstock", *path))
        lines += ["", f"## {title}", "", "```text", printed.stdout.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _paths(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of a command and all its subcommands, without ``penstock``."""
    yield path
    if hasattr(command, "list_commands"):
        context = command.context_class(command, info_name="penstock")
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _paths(below, (*path, name))


def spark_options_page() -> str:
    """Every option of ``format("penstock")``."""
    return "\n\n".join(
        (
            "# Spark options",
            'The options of `format("penstock")`. Names may be in any case; an unknown name is an '
            "error. [Read and write with Spark](../howto/spark.md) shows how they are used.",
            "## Reading and writing",
            options_table(AccessOptions),
            "## Reading",
            options_table(ReadOptions),
            "## Writing",
            options_table(WriteOptions) + "\n",
        )
    )


def client_options_page() -> str:
    """Every keyword of producers and consumers that has a default of its own."""
    shared = {**ACCESS_OPTIONS, **IDENTITY_OPTIONS, **options.options_of(SessionSettings)}
    consumer = options.options_of(ConsumerSettings)
    pull = {
        key: option
        for key, option in consumer.items()
        if key in arguments.PullConsumerOptions.__optional_keys__
    }
    return "\n\n".join(
        (
            "# Client options",
            "Keywords of the [client classes](client.md), with the setting of the Java client each "
            "stands for. An unknown keyword is an error. Durations are shown in seconds; text such "
            'as `"10s"` and `timedelta` work, too.',
            "## All clients",
            options.options_table(shared),
            "## Producer",
            options.options_table(options.options_of(ProducerSettings)),
            "## PushConsumer",
            options.options_table(consumer),
            "## PullConsumer",
            options.options_table(pull) + "\n",
        )
    )


def decisions_page(directory: Path) -> str:
    """The list of all decision records, by their headings."""
    lines = [
        "# Decisions",
        "",
        "Choices that a careful reader would question, one page each: context, decision,",
        "consequences.",
        "",
    ]
    for page in sorted(directory.glob("*.md")):
        heading = page.read_text(encoding="utf-8").partition("\n")[0]
        number, _, title = heading.removeprefix("# ").partition(". ")
        lines.append(f"- {number}: [{title}](decisions/{page.name})")
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """The page with every key of a broker's configuration file."""
    lines = [
        "# Broker settings",
        "",
        "Keys for `penstock up --config FILE` and `penstock broker --config FILE`. They are",
        "RocketMQ's, so an existing `broker.conf` loads; unknown keys cause a warning. A running",
        "broker changes the settings marked as changeable (`mqadmin updateBrokerConfig`); a change",
        "lasts until it stops. The name server is configured by Python and the command line.",
    ]
    for title, owner in (
        ("Broker", BrokerConfig),
        ("Store", StoreConfig),
        ("Users", AuthConfig),
        ("Name server", NameServerConfig),
    ):
        lines += ["", f"## {title}", "", markdown_table(owner).rstrip()]
    return "\n".join(lines) + "\n"
