"""Gathers what brokers count about popped messages of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock.admin.admin import Admin
from penstock.doctor.facts import PopFacts
from penstock.errors import PenstockError
from penstock.model import MessageQueue
from penstock.protocol.bodies.stats import BrokerStats
from penstock.protocol.codes import RequestCode
from penstock.protocol.extensions import EXPIRED_STATISTIC, LATE_ACK_STATISTIC
from penstock.protocol.headers.admin import ViewBrokerStats


async def popped_messages(admin: Admin, group: str, masters: Mapping[str, str]) -> PopFacts:
    """Messages in flight, and those whose time was up; Apache's brokers do not tell."""
    try:
        rows = await admin.group_lag(group)
    except PenstockError:
        return PopFacts()
    name = admin.long_name(group)

    async def last_hour(statistic: str) -> int:
        counts = await asyncio.gather(
            *(_last_hour(admin, address, statistic, name) for address in masters.values())
        )
        return sum(counts)

    return PopFacts(
        {
            MessageQueue(row.topic, row.broker_name, row.queue_id): row.in_flight
            for row in rows
            if row.in_flight
        },
        await last_hour(EXPIRED_STATISTIC),
        await last_hour(LATE_ACK_STATISTIC),
    )


async def _last_hour(admin: Admin, address: str, statistic: str, key: str) -> int:
    try:
        stats = await admin.ask_body(
            BrokerStats,
            address,
            RequestCode.VIEW_BROKER_STATS_DATA,
            ViewBrokerStats(statistic, key),
            about=f"statistic {statistic}",
        )
    except PenstockError:
        # Never counted, or another broker.
        return 0
    return max(stats.stats_minute.sum, stats.stats_hour.sum)
