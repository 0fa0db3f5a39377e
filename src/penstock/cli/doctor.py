"""``penstock doctor``: why does a group not receive anything?"""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

import click

from penstock.cli import output
from penstock.cli.commands import argument, command, option
from penstock.cli.name_completion import complete_groups
from penstock.cli.output import Column, Table, json_flag
from penstock.cli.target import Target, on_cluster

if TYPE_CHECKING:
    from penstock.doctor import ClusterReport, Finding, GroupReport, Thresholds

FINDINGS = 1
"""The exit code when something was found."""

_SPEAK_TO_A_CLUSTER = tuple(
    f"penstock {verb} "
    for verb in (
        *("topic", "group", "cluster", "query", "dlq", "tail", "doctor"),
        *("transaction", "timer"),
    )
)
_STYLES = {"critical": "bold red", "warning": "yellow", "note": "cyan"}
_FLAGS = {"namesrv": "--namesrv", "context": "--context", "namespace": "--namespace"}

_GROUP_COLUMNS = (
    Column("group"),
    Column("members", align="right"),
    Column("streams", align="right"),
    Column("lag", align="right"),
    Column("retries", align="right"),
    Column("dead_letters", align="right"),
    Column("found", style=lambda found: "" if found == "healthy" else "yellow"),
)


@command
@on_cluster
@argument(
    "group",
    required=False,
    help="Consumer group; without it, the servers and one line per group.",
    shell_complete=complete_groups,
)
@option(
    "--stuck-after",
    default="60s",
    metavar="DURATION",
    help="A handler that runs for longer counts as stuck.",
)
@json_flag
def doctor(
    target: Target,
    group: str | None,
    stuck_after: str,
    as_json: bool,
) -> None:
    """Find out why a consumer group receives nothing.

    Looks at routes, members, subscriptions, offsets, filters, locks, handlers and clocks, and
    says what is wrong, how that can be seen, and what to do. Ends with 0 when all is well, with 1
    when something was found.

    Example: penstock doctor billing
    """
    from penstock.doctor import Thresholds
    from penstock.runtime.durations import seconds

    limits = Thresholds(stuck_ms=round(seconds(stuck_after) * 1000))
    flags = _given(click.get_current_context())
    if group is None:
        cluster = asyncio.run(_examine_cluster(target, limits, quiet=as_json))
        is_healthy = cluster.is_healthy
        if as_json:
            output.print_json(cluster.as_dict())
        else:
            _print_cluster(cluster, flags)
    else:
        report = asyncio.run(_examine_group(target, group, limits))
        is_healthy = report.is_healthy
        if as_json:
            output.print_json(report.as_dict())
        else:
            _print_group(report, flags)
    if not is_healthy:
        raise click.exceptions.Exit(FINDINGS)


async def _examine_group(target: Target, group: str, limits: Thresholds) -> GroupReport:
    from penstock.aio import Admin
    from penstock.doctor import examine_group

    async with Admin(**target.access.as_keywords()) as admin:
        return await examine_group(admin, group, limits=limits)


async def _examine_cluster(target: Target, limits: Thresholds, *, quiet: bool) -> ClusterReport:
    from penstock.aio import Admin
    from penstock.doctor import examine_cluster

    with output.progress(None, "examining groups", quiet=quiet) as bar:
        async with Admin(**target.access.as_keywords()) as admin:
            return await examine_cluster(
                admin, limits=limits, on_begin=bar.total, on_group=bar.advance
            )


def _given(ctx: click.Context) -> str:
    """The flags that led here: the commands that are advised need the same."""
    parts = [
        f"{flag} {shlex.quote(str(ctx.params[name]))}"
        for name, flag in _FLAGS.items()
        if ctx.params.get(name) is not None
    ]
    return "".join(f" {part}" for part in parts)


# ---------------------------------------------------------------------------------- for people


def _print_group(report: GroupReport, flags: str) -> None:
    from penstock.doctor.report import summary

    line = summary(report.facts)
    topics = line["topics"]
    streams = f"Spark streams {line['streams']}, " if line["streams"] else ""
    output.say(
        output.plain(
            f"group {line['group']}: members {output.cell(line['members'])}, "
            f"{streams}"
            f"topics {output.cell(topics)}, lag {output.cell(line['lag'])}, "
            f"retries {output.cell(line['retries'])}, "
            f"dead letters {output.cell(line['dead_letters'])}"
        )
    )
    _print_findings(report.findings, flags)
    for text in report.unknown:
        output.say(output.plain(f"not known: {text}"))
    if report.is_healthy:
        output.say("Nothing is wrong that keeps messages from it.")
        if line["lag"]:
            # A handler that has just begun looks like one that will never end.
            output.say(
                output.plain(
                    f"It has {line['lag']} to go. If that stays so, its handler may be slow or "
                    f"stuck:\n    try: penstock doctor {line['group']} --stuck-after 5s{flags}"
                )
            )


def _print_cluster(report: ClusterReport, flags: str) -> None:
    servers, brokers = report.facts.nameservers, report.facts.brokers
    answering = sum(server.error is None for server in servers)
    alive = sum(broker.error is None for broker in brokers)
    output.say(
        f"name servers {answering} of {len(servers)} answer, brokers {alive} of {len(brokers)}"
    )
    _print_findings(report.findings, flags)
    if not alive and not report.groups:
        # No broker answered, so the groups are unknown.
        return
    has_streams = any(group.facts.streams for group in report.groups)
    output.show(
        Table(
            [c for c in _GROUP_COLUMNS if has_streams or c.name != "streams"],
            [_line(group) for group in report.groups],
            note=_next_step(report, flags),
            empty="There are no consumer groups yet.",
        ),
        as_json=False,
    )


def _line(report: GroupReport) -> dict[str, object]:
    from penstock.doctor.report import summary

    if report.is_healthy:
        return {**summary(report.facts), "found": "healthy"}
    causes = dict.fromkeys(finding.cause for finding in report.findings)
    return {**summary(report.facts), "found": ", ".join(causes)}


def _next_step(report: ClusterReport, flags: str) -> str | None:
    for group in report.groups:
        if not group.is_healthy:
            return f"More about a group: penstock doctor {group.facts.group}{flags}"
    return None


def _print_findings(findings: tuple[Finding, ...], flags: str) -> None:
    from rich.text import Text

    console = output.console()
    for finding in findings:
        text = Text()
        text.append(finding.severity.value, style=_STYLES[finding.severity.value])
        text.append(f"  {finding.cause}: ", style="bold")
        text.append(output.plain(finding.what))
        for number, step in enumerate(finding.way_out):
            text.append(f"\n    {'try' if number == 0 else ' or'}: ")
            text.append(output.plain(_with_flags(step, flags)), style="cyan")
        console.print(text)


def _with_flags(step: str, flags: str) -> str:
    return step + flags if step.startswith(_SPEAK_TO_A_CLUSTER) else step
