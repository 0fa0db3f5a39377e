"""Topics: listed, made, changed, deleted, measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.admin.cluster_requests import ClusterRequests, on_host
from penstock.admin.reports import QueueRange
from penstock.client import requests
from penstock.client.requests import body_bytes
from penstock.errors import (
    InvalidArgument,
    NoPermission,
    RemotingError,
    RequestCodeNotSupported,
    ServiceNotAvailable,
    TopicNotFound,
)
from penstock.model import TopicRoute
from penstock.model.names import (
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    READ,
    RETRY_PREFIX,
    WRITE,
)
from penstock.protocol import bodies, headers
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.codes import RequestCode
from penstock.protocol.permissions import check_permission
from penstock.protocol.validation import check_topic, is_system_topic

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
# Brokers announce a change at once, and all their topics every 30 s: if the first announcement is
# lost, it is worth waiting for the second.
ROUTE_SECONDS = 45.0
ROUTE_STEP = 0.02
ROUTE_MAX_STEP = 0.5


class TopicActions(ClusterRequests):
    """Actions on topics."""

    @on_host
    async def topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics.

        ``internal`` adds those that brokers and groups have for themselves: system topics, retry
        and dead-letter topics.
        """
        answer = await self.ask_nameserver(
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, about="all topics"
        )
        names = set(decode_body(bodies.common.TopicList, body_bytes(answer)).topic_list)
        names = {name for name in names if self.is_ours(name)}
        if not internal:
            system = await self._system_topics()
            names = {name for name in names if name not in system and not _is_internal(name)}
        return sorted(map(self.short_name, names))

    async def _system_topics(self) -> set[str]:
        """Names of clusters and brokers, and what one broker counts among the system topics."""
        about = "system topics"
        answer = await self.ask_nameserver(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, about=about)
        known = decode_body(bodies.common.TopicList, body_bytes(answer))
        system = set(known.topic_list)
        if known.broker_addr:
            code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
            try:
                listed = await self.ask_body(
                    bodies.common.TopicList, known.broker_addr, code, about=about
                )
            except NoPermission:
                # A user without rights on the cluster was not shown any system topic before.
                return system
            system.update(listed.topic_list)
        return system

    @on_host
    async def create_topic(
        self,
        topic: str,
        queues: int = 8,
        *,
        read_queues: int | None = None,
        permission: int = READ | WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        brokers: Iterable[str] | None = None,
    ) -> TopicRoute:
        """Make a topic, or change it; return its route once the name servers know it.

        ``queues`` counts per broker: with two brokers there are twice as many. ``read_queues`` is
        given when a topic shrinks: first write fewer, then read fewer. ``brokers`` are names; left
        out, every master gets the topic. ``order`` also tells producers to leave a queue alone
        when its broker is away, instead of choosing another.
        """
        name = check_topic(self.long_name(topic))
        reads = queues if read_queues is None else read_queues
        for count in (queues, reads):
            if not 1 <= count <= bodies.topics.MAX_QUEUES:
                raise InvalidArgument(
                    f"{count} queues for topic {topic!r}",
                    expected=f"1 to {bodies.topics.MAX_QUEUES}",
                )
        masters = await self.masters(brokers)
        header = headers.admin.UpdateTopic(
            topic=name,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=reads,
            write_queue_nums=queues,
            perm=check_permission(permission),
            topic_filter_type=bodies.topics.TopicFilterType.SINGLE_TAG.value,
            order=order,
            topic_sys_flag=0,
            attributes=",".join(f"+{k}={v}" for k, v in attributes.items()) if attributes else None,
        )
        code, about = RequestCode.UPDATE_AND_CREATE_TOPIC, f"topic {topic!r}"
        await self.each(masters, lambda address: self.ask(address, code, header, about=about))
        if order:
            counts = ";".join(f"{broker}:{queues}" for broker in sorted(masters))
            await self.tell_nameservers(
                RequestCode.PUT_KV_CONFIG,
                headers.nameserver.PutKvConfig(ORDER_NAMESPACE, name, counts),
                about=about,
            )
        wanted = {broker: (reads, queues, permission) for broker in masters}
        return await self._shown_everywhere(name, wanted)

    async def _shown_everywhere(
        self, topic: str, wanted: Mapping[str, tuple[int, int, int]]
    ) -> TopicRoute:
        """Wait until every name server that answers shows what was made."""
        clock, calls = self.session.clock, self.session.calls
        deadline = clock.monotonic() + ROUTE_SECONDS
        route: TopicRoute | None = None
        answered = 0
        for address in self._settings.access.namesrv:
            pause = ROUTE_STEP
            while True:
                try:
                    route = await calls.call(address, requests.route(topic))
                except RemotingError:
                    break
                answered += 1
                if route is not None and _shows(route, wanted):
                    break
                if clock.monotonic() >= deadline:
                    raise ServiceNotAvailable(
                        f"topic {topic!r} was made on {', '.join(sorted(wanted))}, but name server "
                        f"{address} does not show it after {ROUTE_SECONDS:g} s",
                        hint="do these brokers register with this name server?",
                    )
                await clock.sleep(pause)
                pause = min(pause * 1.2, ROUTE_MAX_STEP)
        return route if answered and route is not None else await self.require_route(topic)

    @on_host
    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages, on every broker and at every name server."""
        name = check_topic(self.long_name(topic))
        if await self.find_route(name) is None:
            raise TopicNotFound(
                f"topic {topic!r} is not known to name servers {self._nameservers_text}"
            )
        await self._delete(name)

    async def _delete(self, name: str) -> None:
        about = f"topic {name!r}"
        code, header = RequestCode.DELETE_TOPIC_IN_BROKER, headers.admin.DeleteTopic(name)
        masters = await self.masters()
        await self.each(masters, lambda address: self.ask(address, code, header, about=about))
        await self.tell_nameservers(
            RequestCode.DELETE_TOPIC_IN_NAMESRV,
            headers.nameserver.DeleteTopicInNamesrv(name),
            about=about,
        )
        await self.tell_nameservers(
            RequestCode.DELETE_KV_CONFIG,
            headers.nameserver.DeleteKvConfig(ORDER_NAMESPACE, name),
            about=about,
        )

    @on_host
    async def route(self, topic: str) -> TopicRoute:
        """Which brokers have a topic, at which addresses, with how many queues."""
        return await self.require_route(self.long_name(topic))

    @on_host
    async def topic_config(self, topic: str) -> dict[str, bodies.topics.TopicConfig]:
        """A topic's settings by broker name."""
        name = self.long_name(topic)
        return await self.each(
            await self.topic_masters(name), lambda address: self._topic_config(address, name)
        )

    async def _topic_config(self, address: str, name: str) -> bodies.topics.TopicConfig:
        about = f"topic {name!r}"
        try:
            return await self.ask_body(
                bodies.topics.TopicConfig,
                address,
                RequestCode.GET_TOPIC_CONFIG,
                headers.admin.GetTopicConfig(name),
                about=about,
            )
        except RequestCodeNotSupported:
            # RocketMQ 4.9 gives its topics all at once or not at all.
            table = await self.ask_body(
                bodies.topics.TopicConfigTable,
                address,
                RequestCode.GET_ALL_TOPIC_CONFIG,
                about=about,
            )
        config = table.topic_config_table.get(name)
        if config is None:
            raise TopicNotFound(f"{address} has no topic {name!r}, though its route says so")
        return config

    @on_host
    async def message_types(self) -> dict[str, str]:
        """Which messages each topic is for (``message.type``): NORMAL, FIFO, DELAY, ...

        Only topics whose brokers let this user see them are listed.
        """
        code, about = RequestCode.GET_ALL_TOPIC_CONFIG, "the types of all topics"
        tables = await self.each(
            await self.masters(),
            lambda address: self.ask_body(
                bodies.topics.TopicConfigTable, address, code, about=about
            ),
        )
        return {
            self.short_name(name): config.message_type
            for table in tables.values()
            for name, config in table.topic_config_table.items()
            if self.is_ours(name)
        }

    @on_host
    async def topic_stats(self, topic: str) -> list[QueueRange]:
        """What each queue of a topic holds."""
        name = self.long_name(topic)
        return await self._ranges(name)

    async def _ranges(self, name: str) -> list[QueueRange]:
        code, header = RequestCode.GET_TOPIC_STATS_INFO, headers.admin.GetTopicStats(name)
        tables = await self.each(
            await self.topic_masters(name),
            lambda address: self.ask_body(
                bodies.stats.TopicStats, address, code, header, about=f"topic {name!r}"
            ),
        )
        rows = [
            QueueRange(
                self.short_name(queue.topic),
                queue.broker_name,
                queue.queue_id,
                ends.min_offset,
                ends.max_offset,
                ends.last_update_timestamp,
            )
            for table in tables.values()
            for queue, ends in table.offset_table.items()
        ]
        return sorted(rows, key=lambda row: (row.topic, row.broker_name, row.queue_id))

    @on_host
    async def topic_groups(self, topic: str) -> list[str]:
        """The groups that consume a topic, connected or not."""
        name = self.long_name(topic)
        code, header = (
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
            headers.admin.QueryTopicConsumers(name),
        )
        lists = await self.each(
            await self.topic_masters(name),
            lambda address: self.ask_body(
                bodies.common.GroupList, address, code, header, about=f"topic {topic!r}"
            ),
        )
        groups = {group for listed in lists.values() for group in listed.group_list}
        return sorted(map(self.short_name, groups))


def _is_internal(name: str) -> bool:
    return name.startswith((RETRY_PREFIX, DLQ_PREFIX)) or is_system_topic(name)


def _shows(route: TopicRoute, wanted: Mapping[str, tuple[int, int, int]]) -> bool:
    shown = {queues.broker_name: queues for queues in route.queues}
    for broker, (reads, writes, permission) in wanted.items():
        queues = shown.get(broker)
        if queues is None or (queues.read_queues, queues.write_queues) != (reads, writes):
            return False
        # A broker that may not be written to shows less than was asked for, never more.
        if queues.permission & ~permission:
            return False
    return True
