"""Why do messages not arrive? Facts are gathered from a cluster, then each cause is checked.

    async with penstock.aio.Admin() as admin:
        report = await doctor.examine_group(admin, "billing")
        for finding in report.findings:
            print(finding.what, finding.way_out)

It speaks RocketMQ's own requests, so clusters of Apache RocketMQ and Java's consumers can be
examined, too; what they do not tell is listed as not known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.admin.admin import Admin
from penstock.doctor.causes import TITLES
from penstock.doctor.causes import examine_cluster as _check_cluster
from penstock.doctor.checks.thresholds import Thresholds
from penstock.doctor.findings import Finding, Severity
from penstock.doctor.gathering import (
    gather_cluster,
    gather_group,
    gather_group_tables,
    group_names,
)
from penstock.doctor.report import ClusterReport, GroupReport, report_group, worst_first
from penstock.protocol.validation import check_group

__all__ = [
    "TITLES",
    "ClusterReport",
    "Finding",
    "GroupReport",
    "Severity",
    "Thresholds",
    "examine_cluster",
    "examine_group",
]

GROUPS_AT_ONCE = 4
_USUAL = Thresholds()


async def examine_group(admin: Admin, group: str, *, limits: Thresholds = _USUAL) -> GroupReport:
    """Why does this group receive nothing? The servers are examined, too."""
    check_group(admin.long_name(group))
    cluster = await gather_cluster(admin)
    tables = await gather_group_tables(admin, cluster)
    facts = await gather_group(admin, group, cluster, tables)
    return report_group(facts, limits, with_servers=True)


async def examine_cluster(
    admin: Admin,
    *,
    limits: Thresholds = _USUAL,
    on_begin: Callable[[int], None] = lambda count: None,
    on_group: Callable[[], None] = lambda: None,
) -> ClusterReport:
    """How do the servers do, and every group?

    ``on_begin`` gets the number of groups; ``on_group`` is called after each.
    """
    cluster = await gather_cluster(admin)
    tables = await gather_group_tables(admin, cluster)
    names = group_names(admin, tables)
    on_begin(len(names))
    places = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def examine(name: str) -> GroupReport:
        async with places:
            facts = await gather_group(admin, name, cluster, tables)
        on_group()
        return report_group(facts, limits, with_servers=False)

    reports = await asyncio.gather(*map(examine, names))
    return ClusterReport(cluster, worst_first(_check_cluster(cluster, limits)), tuple(reports))
