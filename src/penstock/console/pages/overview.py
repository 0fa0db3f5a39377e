"""The first page: is it well, who is behind, what died."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.routing import Route

from penstock.admin import GroupLag
from penstock.console.charts import Series, chart
from penstock.console.shapes import OverviewJson
from penstock.console.view import Answer
from penstock.console.visit import Visit, page
from penstock.doctor import Finding, GroupReport, Severity

WORST = 5
MAX_DEAD = 50


async def overview(visit: Visit) -> Response:
    """Health in words, the numbers that matter, the groups furthest behind."""
    view = visit.view
    cluster, lags, topics, dead, rates = await asyncio.gather(
        view.attempt(view.cluster()),
        view.attempt(view.lags()),
        view.attempt(view.topics()),
        view.attempt(view.dead_letter_groups()),
        view.attempt(view.rates()),
    )
    rows = [] if lags.value is None else list(lags.value.rows)
    worst = sorted(rows, key=lambda row: -(row.lag + row.retries))[:WORST]
    behind = [row for row in worst if row.lag + row.retries]
    names = [row.group for row in behind]
    brokers = [row.broker_name for row in cluster.value or () if row.broker_id == 0]
    letters, reports, infos = await asyncio.gather(
        view.attempt_all((dead.value or [])[:MAX_DEAD], view.pending_letters),
        view.attempt_all(names, view.examine),
        view.attempt_all(brokers, view.broker_info),
    )
    pending = {group: answer.value for group, answer in letters.items() if answer.value}
    silent = {name for name, answer in infos.items() if not answer.is_known}
    for table in (lags.value, topics.value):
        silent |= set(table.silent) if table is not None else set()
    history = view.history
    findings = _findings(behind, reports)
    delayed = _delayed(infos)
    total_lag = sum(row.lag + row.retries for row in rows) if lags.is_known else None
    own_topics = [row for row in topics.value.rows if not row.kind] if topics.value else []
    came, went = rates.value or (None, None)

    def as_json() -> OverviewJson:
        return {
            "in_per_second": came,
            "out_per_second": went,
            "lag": total_lag,
            "groups_behind": sum(1 for row in rows if row.lag + row.retries),
            "dead_letters": pending,
            "delayed": delayed,
            "topics": len(own_topics),
            "findings": [
                {
                    "group": group,
                    "cause": one.cause,
                    "severity": one.severity.value,
                    "what": one.what,
                }
                for group, one in findings
            ],
            "silent": sorted(silent),
        }

    return visit.answer(
        "overview.html",
        as_json,
        cluster=cluster,
        lags=lags,
        total_lag=total_lag,
        groups_behind=sum(1 for row in rows if row.lag + row.retries),
        behind=behind,
        pending=sorted(pending.items(), key=lambda item: -item[1]),
        dead_total=sum(pending.values()) if dead.is_known else None,
        findings=findings,
        infos=infos,
        brokers=[row for row in cluster.value or () if row.broker_id == 0],
        silent=sorted(silent),
        topics=own_topics,
        rates=(came, went),
        rate_chart=chart(
            [Series("in", history.points("in")), Series("out", history.points("out"))],
            visit.times,
            unit="/s",
        ),
        delayed=delayed,
    )


def _findings(
    behind: list[GroupLag], reports: dict[str, Answer[GroupReport]]
) -> list[tuple[str, Finding]]:
    found = [
        (row.group, finding)
        for row in behind
        if (report := reports[row.group].value) is not None
        for finding in report.findings
        # Notes need nothing; dead letters have a line of their own, with their number of now.
        if finding.severity is not Severity.NOTE and finding.cause != "dead-letters"
    ]
    return sorted(found, key=lambda pair: pair[1].severity.value != "critical")[:10]


def _delayed(infos: dict[str, Answer[dict[str, str]]]) -> int | None:
    """Messages that wait in delay levels and timers, as far as brokers tell."""
    total = 0
    known = False
    for answer in infos.values():
        for key, value in (answer.value or {}).items():
            if key.startswith("scheduleMessageOffset_") and value.count(",") == 1:
                low, _, high = value.partition(",")
                if low.isdigit() and high.isdigit():
                    known = True
                    total += max(0, int(high) - int(low))
            elif key == "timerCongestNum" and value.isdigit():
                known = True
                total += int(value)
    return total if known else None


ROUTES = [Route("/", page(overview, OverviewJson))]
