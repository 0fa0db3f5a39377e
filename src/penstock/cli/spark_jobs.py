"""``penstock spark archive | replay | dlq | report``: the pipelines of `penstock.spark`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.commands import PATH, Group, Number, argument, option
from penstock.cli.name_completion import (
    complete_groups,
    complete_topics,
    group_argument,
    guessing_group,
    guessing_topic,
    topic_argument,
)
from penstock.cli.output import Column, Table, json_flag, yes_flag
from penstock.cli.target import Target, on_cluster
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    pass

app = Group(
    help="Spark jobs: archive, replay, dlq, report.\n\n"
    "Example: penstock spark archive orders archive/orders",
)

master_option = option(
    "--master", metavar="URL", help="Where Spark runs.", show_default="this machine"
)
from_option = option(
    "--from", "start", metavar="TIME", help="Stored at or after: 2026-11-16T14:30, 2h ago."
)
until_option = option("--until", metavar="TIME", help="Stored before.")
rate_option = option(
    "--rate", type=Number(float, at_least=0.001), help="At most so many messages a second."
)
dry_run_flag = option("--dry-run", is_flag=True, help="Count, and send nothing.")
sql_option = option("--where", metavar="SQL", help="A condition on the columns, as in Spark SQL.")
_SECONDS = Column("seconds", align="right")
REASONS_SHOWN = 20


# ---------------------------------------------------------------------------------------- archive


@app.command("archive")
@on_cluster
@topic_argument
@argument("directory", metavar="DIR", help="Directory, or URL of any file system Spark knows.")
@option(
    "--rows-per-commit", type=Number(at_least=1), default=1_000_000, help="What a crash may undo."
)
@option("--compact/--no-compact", default=True, help="Write small files together.")
@option("--allow-gaps", is_flag=True, help="Go on where the broker deleted what was not archived.")
@master_option
@json_flag
def archive_topic(
    target: Target,
    topic: str,
    directory: str,
    rows_per_commit: int,
    compact: bool,
    allow_gaps: bool,
    master: str | None,
    as_json: bool,
) -> None:
    """Add what a topic has gained since the last run to an archive of Parquet files, by day.

    Run it as often as you like, or again after it was killed: each message is archived once.

    Example: penstock spark archive orders archive/orders
    """
    from penstock.cli.spark_runner import Bars, running_spark

    with target.admin() as admin, guessing_topic(admin, topic):
        admin.route(topic)
    stopped = f"Stopped. {directory} is whole; the same command goes on where it was."
    with (
        running_spark("penstock archive", master, stopped=stopped) as spark,
        Bars(quiet=as_json) as bars,
    ):
        from penstock.spark import archive

        result = archive(
            spark,
            topic,
            directory,
            rows_per_commit=rows_per_commit,
            compact=compact,
            fail_on_data_loss=not allow_gaps,
            progress=bars,
            **target.access.as_keywords(),
        )
    columns = [Column(name) for name in ("topic", "directory")]
    columns += [Column(n, align="right") for n in ("archived", "total", "files", "days")]
    columns += [Column("compacted", "files compacted"), _SECONDS]
    values = _values(result)
    gaps = sum(gap.count for gap in result.gaps)
    if gaps:
        output.note(f"{gaps} messages were gone before they could be archived.")
    output.show_one(columns, values, as_json=as_json)


# ----------------------------------------------------------------------------------------- replay


@app.command("replay")
@on_cluster
@argument("to", help="Topic to send to.", shell_complete=complete_topics)
@option("--archive", metavar="DIR", help="Replay an archive.")
@option("--topic", help="Replay a topic as brokers hold it.", shell_complete=complete_topics)
@option("--path", type=PATH, metavar="DIR", help="Read --topic from this store.")
@from_option
@until_option
@option("--key", "keys", multiple=True, help="Only messages with this key; may be repeated.")
@option("--keys-file", type=PATH, metavar="FILE", help="Keys, one a line.")
@option("--tags", help="Only these tags, such as 'paid || refunded'.")
@sql_option
@rate_option
@option("--keep-queue", is_flag=True, help="To the queue of the same broker and number.")
@dry_run_flag
@option("--resume", metavar="ID", help="Finish a replay that died; sends the rest.")
@yes_flag
@master_option
@json_flag
def replay_messages(
    target: Target,
    to: str,
    archive: str | None,
    topic: str | None,
    path: Path | None,
    start: str | None,
    until: str | None,
    keys: tuple[str, ...],
    keys_file: Path | None,
    tags: str | None,
    where: str | None,
    rate: float | None,
    keep_queue: bool,
    dry_run: bool,
    resume: str | None,
    yes: bool,
    master: str | None,
    as_json: bool,
) -> None:
    """Send messages of an archive, a topic or a store to a topic once more.

    Every copy says which message it is a copy of, in its properties. Try --dry-run first.

    Example: penstock spark replay orders-again --archive archive/orders --from 2h --rate 500
    """
    from penstock.cli.spark_runner import Bars, running_spark

    wanted = _keys(keys, keys_file)
    if (archive is None) == (topic is None) or (path is not None and topic is None):
        raise InvalidArgument(
            "it is not clear what to replay",
            expected="--archive DIR, --topic TOPIC, or --topic TOPIC with --path DIR",
        )
    _reach(target)
    if archive is not None:
        from penstock.spark.pipelines.archive.directory import check_there

        check_there(archive)
    if not dry_run:
        output.confirm(f"Send messages to topic {to} at {target.namesrv}?", yes=yes)
    stopped = "Stopped. Nothing was sent." if dry_run else "Stopped. Copies may have been sent."
    with (
        running_spark("penstock replay", master, stopped=stopped) as spark,
        Bars(quiet=as_json) as bars,
    ):
        from penstock.spark import replay

        result = replay(
            spark,
            to,
            archive=archive,
            topic=topic,
            path=path,
            start=_moment(start, "--from"),
            end=_moment(until, "--until"),
            keys=wanted,
            tags=tags,
            where=where,
            rate=rate,
            keep_queue=keep_queue,
            dry_run=dry_run,
            replay_id=resume,
            progress=bars,
            on_start=_tell_how_to_resume,
            **target.access.as_keywords(),
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


def _tell_how_to_resume(replay_id: str) -> None:
    output.note(
        f"This is replay {replay_id}; should it be cut short, the same command with "
        f"--resume {replay_id} sends the rest and nothing twice."
    )


def _keys(keys: tuple[str, ...], file: Path | None) -> list[str] | None:
    if file is None:
        return list(keys) or None
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"--keys-file {file} cannot be read: {error}", expected="a text file, one key a line"
        ) from error
    return [*keys, *(line.strip() for line in lines if line.strip())]


# -------------------------------------------------------------------------------------------- dlq


@app.command("dlq")
@on_cluster
@group_argument
@option(
    "--where",
    metavar="SQL",
    help="A condition, also on reason, reason_type, attempts, origin_topic.",
)
@option("--all", "settled", is_flag=True, help="Also those that were redriven or purged already.")
@option("--redrive", is_flag=True, help="Give them to their group again, each once.")
@option(
    "--repair",
    metavar="FILE:FUNCTION",
    help="Python function from a dead letter to a new body; also module:function.",
)
@option("--to-topic", "to", metavar="TOPIC", help="Send to this topic instead.")
@option("--audit", default="redrive-audit", metavar="DIR", help="Where redrives are written down.")
@rate_option
@option("--dry-run", is_flag=True, help="Repair, and say what would be sent.")
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
    to: str | None,
    audit: str,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    master: str | None,
    as_json: bool,
) -> None:
    """The dead letters of a group by reason; with --redrive repaired and sent once more.

    The audit keeps what was redriven, by whom and when. What was redriven before, here or by
    `penstock dlq redrive`, is not sent again.

    Example: penstock spark dlq billing --redrive --repair repairs.py:add_price --dry-run
    """
    from penstock.cli.repair_function import load_repair
    from penstock.cli.spark_runner import Bars, running_spark

    function = None if repair is None else load_repair(repair)
    _reach(target, group)
    if redrive and not dry_run:
        output.confirm(f"Redrive dead letters of {group} at {target.namesrv}?", yes=yes)
    access = target.access.as_keywords()
    stopped = "Stopped."
    if redrive and not dry_run:
        stopped = f"Stopped. {audit} knows what was sent; the same command sends the rest."
    with (
        running_spark("penstock dlq", master, stopped=stopped) as spark,
        Bars(quiet=as_json) as bars,
    ):
        from penstock.spark import dead_letters
        from penstock.spark import redrive as redrive_letters

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
            to=to,
            rate=rate,
            dry_run=dry_run,
            progress=bars,
            **access,
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
            output.note(f"Written down in {audit}, run {result.run}.")
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
        Column("attempts", "attempts at most", align="right"),
        Column("last_ms", "last one", format=output.local_time),
    )
    empty = f"Group {group} has no dead letters like that."
    output.show(Table(columns, [row.asDict() for row in rows], empty=empty), as_json=as_json)


# ----------------------------------------------------------------------------------------- report


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
    help="From when: 2026-11-16T14:30, 2h ago.",
    show_default="1h",
)
@option("--until", metavar="TIME", help="Until when.", show_default="now")
@option("--watch", metavar="DURATION", help="Watch the groups first, such as 1m: lag, latency.")
@option("--title", default="Penstock report", help="Its heading.")
@master_option
@json_flag
def write_report(
    target: Target,
    file: Path,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    start: str | None,
    until: str | None,
    watch: str | None,
    title: str,
    master: str | None,
    as_json: bool,
) -> None:
    """One HTML page with plots: throughput, lag, latency, retries, dead letters by reason.

    Lag over time and the latency from producer to consumer are known only if the groups were
    watched.

    Example: penstock spark report -o report.html --from 2h --watch 30s
    """
    from penstock.cli.spark_runner import Bars, running_spark

    moments = _moment(start, "--from"), _moment(until, "--until")
    _reach(target)
    stopped = f"Stopped. {file} was not written."
    with (
        running_spark("penstock report", master, stopped=stopped) as spark,
        Bars(quiet=as_json) as bars,
    ):
        from penstock.spark import report

        data = report(
            spark,
            file,
            topics=list(topics) or None,
            groups=list(groups) or None,
            start=moments[0],
            end=moments[1],
            watch=watch,
            title=title,
            progress=bars,
            **target.access.as_keywords(),
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


# ----------------------------------------------------------------------------------------- common


def _reach(target: Target, group: str | None = None) -> None:
    """Ask the cluster something: what is wrong with it is better known before Spark starts."""
    with target.admin() as admin:
        if group is None:
            admin.cluster()
        else:
            from penstock.spark.pipelines.dead_letters import check_known

            with guessing_group(admin, group):
                check_known(admin, group)


def _moment(text: str | None, option: str) -> int | None:
    from penstock.cli.times import moment_ms

    return None if text is None else moment_ms(text, option=option)


def _values(result: Any) -> dict[str, object]:
    """A result as plain values."""
    values = dataclasses.asdict(result)
    if "seconds" in values:
        values["seconds"] = round(values["seconds"], 1)
    return values
