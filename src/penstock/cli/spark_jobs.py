"""``penstock spark archive | replay | dlq | report | status``: pipelines of `penstock.spark`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.commands import PATH, Group, Number, argument, option
from penstock.cli.messages import key_option, settled_flag, tag_option
from penstock.cli.name_completion import (
    complete_groups,
    complete_topics,
    group_argument,
    guessing_group,
    guessing_topic,
    topic_argument,
)
from penstock.cli.output import Column, Table, json_flag, yes_flag
from penstock.cli.spark_status import show_status
from penstock.cli.target import Target, on_cluster
from penstock.cli.times import end_ms, end_option, rate_option, start_ms
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = Group(
    help="Spark jobs: archive, replay, dlq, report, status.\n\n"
    "Example: penstock spark archive orders archive/orders"
)

master_option = option(
    "--master", metavar="URL", help="Master of the Spark cluster.", show_default="this machine"
)
_SECONDS = Column("seconds", align="right")
REASONS_SHOWN = 20


@contextlib.contextmanager
def _job(
    name: str, target: Target, master: str | None, *, as_json: bool, stopped: str
) -> Iterator[tuple[SparkSession, dict[str, Any]]]:
    """A Spark session, and the keywords that all pipelines take."""
    from penstock.cli.spark_runner import Bars, running_spark

    with (
        running_spark(f"penstock {name}", master, stopped=stopped) as spark,
        Bars(quiet=as_json) as bars,
    ):
        yield spark, {"progress": bars, **target.access.as_keywords()}


# Archive


@app.command("archive")
@on_cluster
@topic_argument
@argument("directory", metavar="DIR", help="Directory, or URL of any file system Spark knows.")
@option(
    "--rows-per-commit",
    type=Number(at_least=1),
    default=1_000_000,
    help="Rows that a crash may undo.",
)
@option("--compact/--no-compact", default=True, help="Merge small files.")
@option("--delta", is_flag=True, help="Make the archive a table of Delta Lake, too.")
@option("--iceberg", metavar="CATALOG.NAMESPACE.TABLE", help="Make it a table of Iceberg, too.")
@option(
    "--allow-gaps", is_flag=True, help="Continue if the broker deleted messages before archiving."
)
@master_option
@json_flag
def archive_topic(
    target: Target,
    topic: str,
    directory: str,
    rows_per_commit: int,
    compact: bool,
    delta: bool,
    iceberg: str | None,
    allow_gaps: bool,
    master: str | None,
    as_json: bool,
) -> None:
    """Append the new messages of a topic to an archive of Parquet files, by day.

    It can run any number of times, also after it was killed: each message is archived once.

    Example: penstock spark archive orders archive/orders
    """
    with target.admin() as admin, guessing_topic(admin, topic):
        admin.route(topic)
    stopped = f"Stopped. {directory} is consistent; the same command continues."
    with _job("archive", target, master, as_json=as_json, stopped=stopped) as (spark, common):
        from penstock.spark import archive

        result = archive(
            spark,
            topic,
            directory,
            rows_per_commit=rows_per_commit,
            compact=compact,
            delta=delta,
            iceberg=iceberg,
            fail_on_data_loss=not allow_gaps,
            **common,
        )
    columns = [Column(name) for name in ("topic", "directory")]
    columns += [Column(n, align="right") for n in ("archived", "total", "files", "days")]
    columns += [Column("compacted", "files compacted"), _SECONDS]
    gaps = sum(gap.count for gap in result.gaps)
    if gaps:
        output.note(f"{gaps} messages were deleted before they could be archived.")
    output.show_one(columns, _values(result), as_json=as_json)


# Replay


@app.command("replay")
@on_cluster
@argument("to", help="Topic to send to.", shell_complete=complete_topics)
@option("--archive", metavar="DIR", help="Replay an archive.")
@option("--topic", help="Replay a topic from its brokers.", shell_complete=complete_topics)
@option("--path", type=PATH, metavar="DIR", help="Read --topic from this store.")
@option("--from", "start", metavar="TIME", help="Stored at or after: 2026-11-16T14:30, 2h (ago).")
@end_option("Stored before.")
@key_option
@option("--keys-file", type=PATH, metavar="FILE", help="Keys, one per line.")
@tag_option
@option("--where", metavar="SQL", help="A condition on the columns, in Spark SQL.")
@rate_option
@option("--keep-queue", is_flag=True, help="Send to the queue of the same broker and number.")
@option("--dry-run", is_flag=True, help="Count, and send nothing.")
@option("--resume", "replay_id", metavar="ID", help="Send the rest of an interrupted replay.")
@option("--allow-gaps", is_flag=True, help="Continue without messages that are gone.")
@yes_flag
@master_option
@json_flag
def replay_messages(
    target: Target,
    /,
    to: str,
    archive: str | None,
    topic: str | None,
    path: Path | None,
    start: str | None,
    end: str | None,
    keys: tuple[str, ...],
    keys_file: Path | None,
    tag: str | None,
    dry_run: bool,
    allow_gaps: bool,
    yes: bool,
    master: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Send the messages of an archive, a topic or a store to a topic again.

    Properties of each copy name the original message. Try --dry-run first.

    Example: penstock spark replay orders-again --archive archive/orders --from 2h --rate 500
    """
    wanted = _keys(keys, keys_file)
    if (archive is None) == (topic is None) or (path is not None and topic is None):
        raise InvalidArgument(
            "the source of the replay is missing or ambiguous",
            expected="--archive DIR, --topic TOPIC, or --topic TOPIC with --path DIR",
        )
    _reach(target)
    if archive is not None:
        from penstock.spark.pipelines.archive.directory import check_there

        check_there(archive)
    if not dry_run:
        output.confirm(f"Send messages to topic {to} at {target.namesrv}?", yes=yes)
    stopped = "Stopped. Nothing was sent." if dry_run else "Stopped. Copies may have been sent."
    with _job("replay", target, master, as_json=as_json, stopped=stopped) as (spark, common):
        from penstock.spark import replay

        result = replay(
            spark,
            to,
            archive=archive,
            topic=topic,
            path=path,
            start=start_ms(start),
            end=end_ms(end),
            keys=wanted,
            tags=tag,
            dry_run=dry_run,
            fail_on_data_loss=not allow_gaps,
            on_start=_say_how_to_resume,
            **options,
            **common,
        )
    if as_json:
        output.print_json(_values(result))
        return
    if dry_run:
        days: list[dict[str, object]] = [
            {"day": day, "messages": count} for day, count in result.days
        ]
        columns = (Column("day"), Column("messages", align="right"))
        note = f"{result.matched} messages of {result.source} would be sent to {to}."
        output.show(Table(columns, days, note=note, empty="Nothing matches."), as_json=False)
        return
    output.say(
        f"Sent {result.sent} of {result.matched} messages of {result.source} to {to}, "
        f"replay {result.replay_id}."
    )


def _say_how_to_resume(replay_id: str) -> None:
    output.note(
        f"This is replay {replay_id}. If it is interrupted, the same command with "
        f"--resume {replay_id} sends the rest and nothing twice."
    )


def _keys(keys: tuple[str, ...], file: Path | None) -> list[str] | None:
    if file is None:
        return list(keys) or None
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"--keys-file {file} cannot be read: {error}", expected="a text file, one key per line"
        ) from error
    return [*keys, *(line.strip() for line in lines if line.strip())]


# Dead letters


@app.command("dlq")
@on_cluster
@group_argument
@option(
    "--where",
    metavar="SQL",
    help="A condition, also on reason, reason_type, attempts, origin_topic.",
)
@settled_flag
@option("--redrive", is_flag=True, help="Send them to their group again, each once.")
@option(
    "--repair",
    metavar="FILE:FUNCTION",
    help="Python function from a dead letter to a new body; also module:function.",
)
@option("--to-topic", metavar="TOPIC", help="Send to this topic instead.")
@option("--audit", metavar="DIR", default="redrive-audit", help="Directory of redrive records.")
@rate_option
@option("--dry-run", is_flag=True, help="Repair, and show what would be sent.")
@yes_flag
@master_option
@json_flag
def dead_letter_job(
    target: Target,
    group: str,
    where: str | None,
    settled: bool,
    redrive: bool,
    repair: str | None,
    to_topic: str | None,
    audit: str,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    master: str | None,
    as_json: bool,
) -> None:
    """The dead letters of a group by reason; with --redrive, repaired and sent again.

    The audit records what was redriven, by which user and when. What was redriven before, here or
    by `penstock dlq redrive`, is not sent again.

    Example: penstock spark dlq billing --redrive --repair repairs.py:add_price --dry-run
    """
    from penstock.cli.repair_function import load_repair

    function = None if repair is None else load_repair(repair)
    _reach(target, group)
    stopped = "Stopped."
    if redrive and not dry_run:
        output.confirm(f"Redrive dead letters of {group} at {target.namesrv}?", yes=yes)
        stopped = f"Stopped. {audit} records what was sent; the same command sends the rest."
    with _job("dlq", target, master, as_json=as_json, stopped=stopped) as (spark, common):
        from penstock.spark import dead_letters
        from penstock.spark import redrive as redrive_letters

        access = target.access.as_keywords()
        letters = dead_letters(spark, group, settled=settled, **access)
        if where is not None:
            letters = letters.where(where)
        if not (redrive or dry_run):
            _show_reasons(letters, group, as_json)
            return
        result = redrive_letters(
            letters,
            group=group,
            audit=None if dry_run else audit,
            repair=function,
            to=to_topic,
            rate=rate,
            dry_run=dry_run,
            **common,
        )
    names = ("letters", "redriven", "skipped", "failed", "already", "gone")
    heads = {"redriven": "would be redriven"} if dry_run else {}
    columns = [Column("group"), Column("sent_to", "to")]
    columns += [Column(name, heads.get(name), align="right") for name in names]
    output.show_one(columns, _values(result), as_json=as_json)
    if not as_json:
        for detail, count in result.details[:REASONS_SHOWN]:
            output.note(output.plain(f"{count} failed: {detail}"))
        if not dry_run:
            output.note(f"Recorded in {audit}, run {result.run}.")
    if result.failed:
        raise click.exceptions.Exit(1)


def _show_reasons(letters: Any, group: str, as_json: bool) -> None:
    from pyspark.sql import functions as F

    rows = (
        letters.groupBy("origin_topic", "reason_type", "reason")
        .agg(
            F.count(F.lit(1)).alias("letters"),
            F.max("attempts").alias("attempts"),
            F.unix_millis(F.max("store_timestamp")).alias("last_ms"),
        )
        .orderBy(F.desc("letters"), "reason_type", "reason")
        .collect()
    )
    columns = (
        Column("letters", align="right"),
        Column("origin_topic", "topic"),
        Column("reason_type", "failed with"),
        Column("reason"),
        Column("attempts", "most attempts", align="right"),
        Column("last_ms", "last one", format=output.local_time),
    )
    empty = f"Group {group} has no dead letters like that."
    output.show(Table(columns, [row.asDict() for row in rows], empty=empty), as_json=as_json)


# Report


@app.command("report")
@on_cluster
@option(
    "--output",
    "-o",
    "file",
    type=PATH,
    default=Path("penstock-report.html"),
    metavar="FILE",
    help="The page to write.",
)
@option(
    "--topic",
    "topics",
    multiple=True,
    help="Only this topic; may be repeated.",
    show_default="all",
    shell_complete=complete_topics,
)
@option(
    "--group",
    "groups",
    multiple=True,
    help="Only this group; may be repeated.",
    show_default="all",
    shell_complete=complete_groups,
)
@option(
    "--from",
    "start",
    metavar="TIME",
    help="Start: 2026-11-16T14:30, 2h (ago).",
    show_default="1h",
)
@end_option("End.", show_default="now")
@option(
    "--watch", metavar="DURATION", help="Watch the groups first, such as 1m, for lag and latency."
)
@option("--title", default="Penstock report", help="Heading of the page.")
@master_option
@json_flag
def write_report(
    target: Target,
    file: Path,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    start: str | None,
    end: str | None,
    watch: str | None,
    title: str,
    master: str | None,
    as_json: bool,
) -> None:
    """One HTML page with plots: throughput, lag, latency, retries, dead letters by reason.

    Lag over time, and latency from producer to consumer, need --watch.

    Example: penstock spark report -o report.html --from 2h --watch 30s
    """
    begin, before = start_ms(start), end_ms(end)
    _reach(target)
    stopped = f"Stopped. {file} was not written."
    with _job("report", target, master, as_json=as_json, stopped=stopped) as (spark, common):
        from penstock.spark import report

        data = report(
            spark,
            file,
            topics=list(topics) or None,
            groups=list(groups) or None,
            start=begin,
            end=before,
            watch=watch,
            title=title,
            **common,
        )
    if as_json:
        output.print_json({"file": str(file), **_values(data)})
        return
    counted = output.counted
    output.say(
        f"Wrote {file}: {counted(data.messages, 'message')} in "
        f"{counted(len(data.topics), 'topic')}, {counted(len(data.groups), 'group')}, "
        f"{counted(sum(group.dead for group in data.groups), 'dead letter')}."
    )


def _reach(target: Target, group: str | None = None) -> None:
    """Contact the cluster, so that an error shows before Spark starts."""
    with target.admin() as admin:
        if group is None:
            admin.cluster()
        else:
            from penstock.spark.pipelines.dead_letters import check_known

            with guessing_group(admin, group):
                check_known(admin, group)


def _values(result: Any) -> dict[str, object]:
    """A result as plain values."""
    values = dataclasses.asdict(result)
    if "seconds" in values:
        values["seconds"] = round(values["seconds"], 1)
    return values


app.add_command(show_status, "status")
