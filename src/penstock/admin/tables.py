"""Tables of a whole cluster: topics, the lag of groups, producers; for consoles and reports.

One request to each broker gives a table, however many topics or groups there are. A broker that
does not answer does not spoil the rows of the others: it is listed in `Partial.silent`.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.admin.cluster_requests import on_host
from penstock.admin.dead_letters import DeadLetterActions
from penstock.admin.reports import Client, GroupLag, Partial, QueueLag, TopicRow
from penstock.errors import ConsumerNotOnline
from penstock.model import MessageQueue
from penstock.model.names import DLQ_PREFIX, RETRY_PREFIX
from penstock.protocol import bodies, headers
from penstock.protocol.codes import RequestCode
from penstock.protocol.validation import UNSENDABLE_TOPICS, is_system_group, is_system_topic


class TableActions(DeadLetterActions):
    """Actions that read a table from each broker."""

    @on_host
    async def topic_table(self) -> Partial[TopicRow]:
        """Every topic with its queues and brokers, sorted by name, internal ones included."""
        code, about = RequestCode.GET_ALL_TOPIC_CONFIG, "all topics"
        answers, silent = await self.each_answering(
            await self.masters(),
            lambda address: self.ask_body(
                bodies.topics.TopicConfigTable, address, code, about=about
            ),
        )
        system = set(UNSENDABLE_TOPICS) | set(answers) | await self._system_topics()
        rows: dict[str, TopicRow] = {}
        for broker, table in answers.items():
            for long_name, config in table.topic_config_table.items():
                if not self.is_ours(long_name):
                    continue
                name = self.short_name(long_name)
                known = rows.get(name)
                rows[name] = TopicRow(
                    name,
                    _kind(long_name, system),
                    config.read_queue_nums + (known.read_queues if known else 0),
                    config.write_queue_nums + (known.write_queues if known else 0),
                    config.perm,
                    (*(known.broker_names if known else ()), broker),
                    (config.attributes or {}).get("message.type", "").lower(),
                )
        return Partial(tuple(rows[name] for name in sorted(rows)), silent)

    @on_host
    async def lag_table(self, groups: Iterable[str] | None = None) -> Partial[GroupLag]:
        """How far groups are behind: all, from one request to each broker, or those given.

        Apache's brokers go through all their offsets for each group when all are asked for, so
        on a large cluster name the groups.
        """
        masters = await self.masters()
        silent: dict[str, str] = {}
        found: dict[str, list[QueueLag]] = {}
        if groups is None:
            code, header = (
                RequestCode.GET_BROKER_CONSUME_STATS,
                headers.admin.GetBrokerConsumeStats(False),
            )
            answers, silent = await self.each_answering(
                masters,
                lambda address: self.ask_body(
                    bodies.stats.BrokerConsumeStats,
                    address,
                    code,
                    header,
                    about="the offsets of all groups",
                ),
            )
            for answer in answers.values():
                for part in answer.consume_stats_list:
                    for name, stats in part.items():
                        if self.is_ours(name) and not is_system_group(self.short_name(name)):
                            rows = found.setdefault(self.short_name(name), [])
                            rows += (row for one in stats for row in self._lag_rows(one))
        else:
            for group in groups:
                header_of_one = headers.admin.GetConsumeStats(self.long_name(group), None)

                async def ask(
                    address: str, header: headers.admin.GetConsumeStats = header_of_one
                ) -> bodies.stats.ConsumeStats:
                    try:
                        return await self.ask_body(
                            bodies.stats.ConsumeStats,
                            address,
                            RequestCode.GET_CONSUME_STATS,
                            header,
                            about=f"group {header.consumer_group!r}",
                        )
                    except ConsumerNotOnline:
                        return bodies.stats.ConsumeStats()

                tables, missing = await self.each_answering(masters, ask)
                silent |= missing
                found[group] = [row for table in tables.values() for row in self._lag_rows(table)]
                if not any(row.topic.startswith(RETRY_PREFIX) for row in found[group]):
                    found[group] += await self._untouched_retries(self.long_name(group))
        return Partial(
            tuple(_group_lag(name, found[name]) for name in sorted(found)),
            silent,
        )

    @on_host
    async def all_producers(self) -> Partial[tuple[str, Client]]:
        """Every connected producer with its group."""
        answers, silent = await self.each_answering(
            await self.masters(),
            lambda address: self.ask_body(
                bodies.common.ProducerTable,
                address,
                RequestCode.GET_ALL_PRODUCER_INFO,
                about="all producers",
            ),
        )
        rows: dict[tuple[str, str], Client] = {}
        for broker, table in answers.items():
            for group, producers in table.data.items():
                for one in producers:
                    key = (self.short_name(group), one.client_id)
                    known = rows.get(key)
                    rows[key] = Client(
                        one.client_id,
                        one.remote_ip if known is None else known.address,
                        one.language or "",
                        one.version,
                        (*(() if known is None else known.broker_names), broker),
                    )
        return Partial(tuple((group, rows[group, one]) for group, one in sorted(rows)), silent)


def _kind(name: str, system: set[str]) -> str:
    if RETRY_PREFIX in name:
        return "retry"
    if DLQ_PREFIX in name:
        return "dead letters"
    if name in system or is_system_topic(name):
        return "system"
    return ""


def _group_lag(group: str, queues: list[QueueLag]) -> GroupLag:
    queues.sort(key=lambda row: MessageQueue(row.topic, row.broker_name, row.queue_id))
    plain = [row for row in queues if not row.topic.startswith(RETRY_PREFIX)]
    return GroupLag(
        group,
        tuple(dict.fromkeys(row.topic for row in plain)),
        sum(row.lag for row in plain),
        sum(row.lag for row in queues) - sum(row.lag for row in plain),
        sum(row.in_flight for row in queues),
        min((row.last_timestamp for row in plain if row.lag and row.last_timestamp), default=0),
        tuple(queues),
    )
