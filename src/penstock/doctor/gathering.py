"""Requests the facts that the checks need from a cluster; a server that fails is a fact, too.

Most actions of an `Admin` fail if one broker fails. That is right for an operator's action and
wrong here, because a broker that is down is what the doctor reports. So each server is asked
separately.
Everything runs on the session's loop (`Admin.host`), with its clock.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from penstock.admin import Client
from penstock.admin.admin import Admin
from penstock.admin.groups import RELAY_SECONDS
from penstock.admin.reports import UndecidedTransaction
from penstock.client.requests import body_bytes
from penstock.doctor import members
from penstock.doctor.facts import (
    BrokerFacts,
    ClusterFacts,
    GroupFacts,
    MemberFacts,
    NameserverFacts,
)
from penstock.doctor.gathering_pops import popped_messages
from penstock.doctor.gathering_topics import TopicGathering
from penstock.errors import ConsumerNotOnline, PenstockError
from penstock.model import Subscription
from penstock.model.names import RETRY_PREFIX, stream_group
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.common import ConsumerConnections, KvTable, ProducerConnections
from penstock.protocol.bodies.config_text import ConfigText
from penstock.protocol.bodies.groups import SubscriptionGroupTable
from penstock.protocol.bodies.routes import ClusterInfo
from penstock.protocol.bodies.running import ConsumerRunningInfo
from penstock.protocol.bodies.stats import ConsumeStats
from penstock.protocol.bodies.topics import TimerMetrics
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.admin import (
    GetConsumerConnections,
    GetConsumeStats,
    GetProducerConnections,
)
from penstock.protocol.headers.clients import GetConsumerRunningInfo
from penstock.protocol.validation import is_system_group

_T = TypeVar("_T")

GroupTables = Mapping[str, SubscriptionGroupTable]
"""The groups of each broker that answered, by broker name."""

MEMBERS_ASKED = 100
"""Members of one group whose running info is requested; of more, the first by client id."""
AT_ONCE = 16
_AGE = re.compile(r"(\d+) days?, (\d+) hours?, (\d+) minutes?, (\d+) seconds?")
_RATIO = re.compile(r"\d{1,3}(\.\d{1,20})?")
_HALF_A_SECOND = 500


async def gather_cluster(admin: Admin) -> ClusterFacts:
    """Name servers and brokers, and the runtime information of each broker."""
    return await admin.host.await_(_cluster(admin))


async def gather_group_tables(admin: Admin, cluster: ClusterFacts) -> GroupTables:
    """All groups, as the brokers that answer know them."""
    return await admin.host.await_(_group_tables(admin, cluster))


async def gather_group(
    admin: Admin, group: str, cluster: ClusterFacts, tables: GroupTables
) -> GroupFacts:
    """One group: settings, members, topics, offsets, retries, dead letters."""
    return await admin.host.await_(_group(admin, group, cluster, tables))


def group_names(admin: Admin, tables: GroupTables) -> list[str]:
    """The groups of users, under the names this user knows."""
    names = {name for table in tables.values() for name in table.subscription_group_table}
    return sorted(
        admin.short_name(name)
        for name in names
        if admin.is_ours(name) and not is_system_group(admin.short_name(name))
    )


# ------------------------------------------------------------------------------------- the cluster


async def _cluster(admin: Admin) -> ClusterFacts:
    nameservers = await asyncio.gather(
        *(_nameserver(admin, address) for address in admin.session.nameservers.addresses)
    )
    known: dict[tuple[str, int, str], None] = {}
    for server in nameservers:
        for (name, broker_id), address in server.brokers.items():
            known[name, broker_id, address] = None
    brokers = await asyncio.gather(*(_broker(admin, *broker) for broker in sorted(known)))
    return ClusterFacts(tuple(nameservers), tuple(brokers))


async def _nameserver(admin: Admin, address: str) -> NameserverFacts:
    try:
        answer = await admin.ask(
            address, RequestCode.GET_BROKER_CLUSTER_INFO, about="the brokers of the cluster"
        )
        info = decode_body(ClusterInfo, body_bytes(answer))
    except PenstockError as error:
        return NameserverFacts(address, error=error.what)
    return NameserverFacts(
        address,
        brokers={
            (name, broker_id): at
            for name, data in info.broker_addr_table.items()
            for broker_id, at in data.broker_addrs.items()
        },
    )


async def _broker(admin: Admin, name: str, broker_id: int, address: str) -> BrokerFacts:
    clock = admin.session.clock
    about = f"broker {name!r}"
    before = clock.time_ms()
    try:
        info = await admin.ask_body(
            KvTable, address, RequestCode.GET_BROKER_RUNTIME_INFO, about=about
        )
    except PenstockError as error:
        return BrokerFacts(name, broker_id, address, error=error.what)
    after = clock.time_ms()
    settings: Mapping[str, str] = {}
    config = await _tried(
        admin.ask_body(ConfigText, address, RequestCode.GET_BROKER_CONFIG, about=about)
    )
    if config is not None:
        settings = config.settings
    permission = settings.get("brokerPermission", "")
    said_ms = broker_clock_ms(info.table)
    return BrokerFacts(
        name,
        broker_id,
        address,
        version=info.table.get("brokerVersionDesc"),
        said_name=settings.get("brokerName"),
        clock_ahead_ms=None if said_ms is None else said_ms - (before + after) // 2,
        clock_precision_ms=_HALF_A_SECOND + (after - before) // 2,
        permission=int(permission) if permission.isascii() and permission.isdecimal() else None,
        disk_used=_ratio(info.table.get("commitLogDiskRatio", "")),
        store_damage=info.table.get("penstockStoreDamage"),
    )


def _ratio(text: str) -> float | None:
    return float(text) if _RATIO.fullmatch(text) else None


def broker_clock_ms(info: Mapping[str, str]) -> int | None:
    """What time it is for a broker: when it started, and how long ago that is, to the second."""
    started = info.get("bootTimestamp", "")
    age = _AGE.search(info.get("runtime", ""))
    if not (started.isascii() and started.isdecimal()) or len(started) > 18 or age is None:
        return None
    days, hours, minutes, seconds = map(int, age.groups())
    passed = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    # It comes without its fraction: the middle of the second is the best guess.
    return int(started) + passed * 1000 + _HALF_A_SECOND


async def _group_tables(admin: Admin, cluster: ClusterFacts) -> GroupTables:
    return await _each(
        cluster.masters,
        lambda address: admin.ask_body(
            SubscriptionGroupTable,
            address,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            about="all consumer groups",
        ),
    )


# --------------------------------------------------------------------------------------- one group


async def _group(
    admin: Admin, group: str, cluster: ClusterFacts, tables: GroupTables
) -> GroupFacts:
    name = admin.long_name(group)
    masters = cluster.masters
    connected = await _connections(admin, name, masters)
    people = await _members(admin, name, connected, masters)
    wanted = _subscriptions(admin, connected, people)
    model = next((c.message_model for c in connected.values() if c.message_model), None)
    topics = sorted({s.topic for s in wanted})
    others = [] if people else await _topics_with_offsets(admin, name, masters)
    gathering = TopicGathering(
        admin, name, masters, tables, keeps_offsets=model is None or model.value != "BROADCASTING"
    )
    found = await asyncio.gather(
        *(gathering.topic(t, [s for s in wanted if s.topic == t]) for t in topics),
        *(gathering.topic(t, None) for t in others if t not in topics),
    )
    return GroupFacts(
        group,
        admin.session.clock.time_ms(),
        cluster,
        configs={
            broker: table.subscription_group_table[name]
            for broker, table in tables.items()
            if name in table.subscription_group_table
        },
        known_groups=tuple(group_names(admin, tables)),
        members=tuple(people),
        streams=() if people else await _streams(admin, name, masters),
        model=None if model is None else model.value,
        topics=tuple(found),
        retries=await gathering.retries(),
        dead_letters=await gathering.dead_letters(group),
        popped=await popped_messages(admin, group, masters),
        transactions=await _transactions(admin, masters, {topic.name for topic in found}),
        timers=await _timers(admin, masters, {topic.name for topic in found}),
    )


async def _transactions(
    admin: Admin, masters: Mapping[str, str], topics: set[str]
) -> tuple[UndecidedTransaction, ...]:
    """The transactions of some topics that are not decided."""
    seen = await _each(masters, admin.transactions_at)
    return tuple(
        row.at(broker) for broker, rows in seen.items() for row in rows if row.topic in topics
    )


async def _timers(admin: Admin, masters: Mapping[str, str], topics: set[str]) -> dict[str, int]:
    """How many timer messages wait for some topics; Apache's brokers count them from 5.0 on."""
    seen = await _each(
        masters,
        lambda address: admin.ask_body(
            TimerMetrics, address, RequestCode.GET_TIMER_METRICS, about="waiting timer messages"
        ),
    )
    waiting: Counter[str] = Counter()
    for metrics in seen.values():
        for name, metric in metrics.timing_count.items():
            if admin.is_ours(name) and admin.short_name(name) in topics:
                waiting[admin.short_name(name)] += max(metric.count, 0)
    return dict(waiting)


async def _connections(
    admin: Admin, name: str, masters: Mapping[str, str]
) -> dict[str, ConsumerConnections]:
    async def ask(address: str) -> ConsumerConnections | None:
        try:
            return await admin.ask_body(
                ConsumerConnections,
                address,
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                GetConsumerConnections(name),
                about=f"group {name!r}",
            )
        except ConsumerNotOnline:
            return None

    seen = await _each(masters, ask)
    return {broker: found for broker, found in seen.items() if found is not None}


async def _streams(admin: Admin, name: str, masters: Mapping[str, str]) -> tuple[str, ...]:
    """The client ids of running Spark streams that commit for the group."""
    seen = await _each(
        masters,
        lambda address: admin.ask_body(
            ProducerConnections,
            address,
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            GetProducerConnections(stream_group(name)),
            about=f"Spark streams of group {name!r}",
        ),
    )
    return tuple(sorted({c.client_id for found in seen.values() for c in found.connection_set}))


async def _members(
    admin: Admin,
    name: str,
    connected: Mapping[str, ConsumerConnections],
    masters: Mapping[str, str],
) -> list[MemberFacts]:
    clients: dict[str, Client] = {}
    for broker in sorted(connected):
        for connection in connected[broker].connection_set:
            known = clients.get(connection.client_id)
            clients[connection.client_id] = Client(
                connection.client_id,
                connection.client_addr,
                connection.language or "",
                connection.version,
                (*(() if known is None else known.broker_names), broker),
            )
    places = asyncio.Semaphore(AT_ONCE)

    async def ask(client: Client) -> MemberFacts:
        header = GetConsumerRunningInfo(name, client.client_id, jstack_enable=False)
        async with places:
            try:
                info = await admin.ask_body(
                    ConsumerRunningInfo,
                    masters[client.broker_names[0]],
                    RequestCode.GET_CONSUMER_RUNNING_INFO,
                    header,
                    about=f"client {client.client_id!r}",
                    seconds=RELAY_SECONDS,
                )
            except PenstockError as error:
                return members.silent_member(client, error.what)
            return members.member(client, info, admin.session.clock.time_ms(), admin.short_name)

    asked = [clients[client_id] for client_id in sorted(clients)]
    answers = await asyncio.gather(*map(ask, asked[:MEMBERS_ASKED]))
    rest = (
        members.silent_member(client, f"not asked: only {MEMBERS_ASKED} members are")
        for client in asked[MEMBERS_ASKED:]
    )
    return [*answers, *rest]


def _subscriptions(
    admin: Admin, connected: Mapping[str, ConsumerConnections], people: Iterable[MemberFacts]
) -> list[Subscription]:
    """What members want; of those that do not tell, what brokers heard last."""
    found = {
        (s.topic, s.expression_type, s.expression): s
        for member in people
        for s in member.subscriptions or ()
    }
    if any(member.subscriptions is None for member in people):
        for seen in connected.values():
            for data in seen.subscription_table.values():
                if not data.topic.startswith(RETRY_PREFIX):
                    s = members.wanted(data, admin.short_name)
                    found.setdefault((s.topic, s.expression_type, s.expression), s)
    return list(found.values())


async def _topics_with_offsets(admin: Admin, name: str, masters: Mapping[str, str]) -> list[str]:
    """The topics of a group without connected members."""
    tables = await _each(
        masters,
        lambda address: admin.ask_body(
            ConsumeStats,
            address,
            RequestCode.GET_CONSUME_STATS,
            GetConsumeStats(name, None),
            about=f"group {name!r}",
        ),
    )
    topics = {queue.topic for table in tables.values() for queue in table.offset_table}
    return sorted(admin.short_name(t) for t in topics if not t.startswith(RETRY_PREFIX))


async def _each(masters: Mapping[str, str], ask: Callable[[str], Awaitable[_T]]) -> dict[str, _T]:
    """Ask several brokers at once; those that fail are left out."""
    names = sorted(masters)
    answers = await asyncio.gather(*(_tried(ask(masters[name])) for name in names))
    return {name: answer for name, answer in zip(names, answers, strict=True) if answer is not None}


async def _tried(work: Awaitable[_T]) -> _T | None:
    try:
        return await work
    except PenstockError:
        return None
