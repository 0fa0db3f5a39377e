"""Consumer groups: list, create, change, delete; their connected members and what these do."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping

from penstock.admin.cluster_requests import on_host
from penstock.admin.reports import Client, GroupMode, Member
from penstock.admin.topics import TopicActions
from penstock.errors import (
    ConsumerNotOnline,
    GroupNotFound,
    InvalidArgument,
    PenstockError,
    RequestRefused,
)
from penstock.model import MessageQueue, Subscription
from penstock.model.names import dead_letter_topic, retry_topic, stream_group
from penstock.protocol import bodies, headers
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.validation import check_group, is_system_group
from penstock.runtime.durations import Duration, seconds

RELAY_SECONDS = 15.0
"""A broker gives the client ten seconds."""
_MEMBERS_ASKED = 100
_ASKED_AT_ONCE = 16


class GroupActions(TopicActions):
    """Actions on consumer groups."""

    @on_host
    async def group_modes(self, group: str) -> list[GroupMode]:
        """The topics for which a mode was set, broker by broker; all others are pulled."""
        name = self.long_name(group)
        code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
        tables = await self.each(
            await self.masters(),
            lambda address: self.ask_body(
                bodies.pop.RequestModes, address, code, about="the modes of groups"
            ),
        )
        return [
            GroupMode(self.short_name(topic), broker, mode.mode.value, mode.pop_share_queue_num)
            for broker, table in sorted(tables.items())
            for topic, groups in sorted(table.message_request_mode_map.items())
            if (mode := groups.get(name)) is not None
        ]

    @on_host
    async def set_group_mode(
        self, group: str, topic: str, mode: str, *, share: int = 0
    ) -> list[GroupMode]:
        """Let the members of a group pull or pop a topic, on every broker that has it.

        Members that leave the choice to the broker follow at their next rebalance: ``mode="auto"``
        here, ``clientRebalance=false`` in Java. ``share`` members share a popped queue with its
        owner; 0: all members pop from all queues.
        """
        chosen = mode.upper()
        if chosen not in bodies.common.RequestMode.__members__:
            raise InvalidArgument(f"mode {mode!r}", expected="pull or pop")
        name, topic_name = self.long_name(group), self.long_name(topic)
        body = encode_body(
            bodies.pop.SetRequestMode(topic_name, name, bodies.common.RequestMode[chosen], share)
        )
        await self.each(
            await self.topic_masters(topic_name),
            lambda address: self.ask(
                address,
                RequestCode.SET_MESSAGE_REQUEST_MODE,
                body=body,
                about=f"group {group!r} in topic {topic!r}",
            ),
        )
        return await self.group_modes(group)

    @on_host
    async def groups(self, *, internal: bool = False) -> list[str]:
        """The names of all consumer groups; ``internal`` adds those of RocketMQ itself."""
        tables = await self._group_tables()
        names = {
            name
            for table in tables.values()
            for name in table.subscription_group_table
            if self.is_ours(name) and (internal or not is_system_group(self.short_name(name)))
        }
        return sorted(map(self.short_name, names))

    async def _group_tables(self) -> dict[str, bodies.groups.SubscriptionGroupTable]:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return await self.each(
            await self.masters(),
            lambda address: self.ask_body(
                bodies.groups.SubscriptionGroupTable, address, code, about="all consumer groups"
            ),
        )

    @on_host
    async def group_config(self, group: str) -> dict[str, bodies.groups.SubscriptionGroupConfig]:
        """A group's settings by broker name; brokers that do not know it are left out."""
        configs = await self._group_config(self.long_name(group))
        if not configs:
            raise self._no_group(group)
        return configs

    async def _group_config(self, name: str) -> dict[str, bodies.groups.SubscriptionGroupConfig]:
        return {
            broker: table.subscription_group_table[name]
            for broker, table in (await self._group_tables()).items()
            if name in table.subscription_group_table
        }

    def _no_group(self, group: str) -> GroupNotFound:
        return GroupNotFound(
            f"no broker at name servers {self._nameservers_text} knows consumer group {group!r}",
            expected="a group that has been connected, or was created",
            hint=f"penstock group create {group}",
        )

    @on_host
    async def create_group(
        self,
        group: str,
        *,
        consume_enable: bool = True,
        consume_from_min_enable: bool = True,
        consume_broadcast_enable: bool = True,
        consume_message_orderly: bool = False,
        retry_queue_nums: int = 1,
        retry_max_times: int = 16,
        broker_id: int = 0,
        which_broker_when_consume_slowly: int = 1,
        notify_consumer_ids_changed_enable: bool = True,
    ) -> None:
        """Make a consumer group on every master, or change it; the keywords are RocketMQ's."""
        name = check_group(self.long_name(group))
        config = bodies.groups.SubscriptionGroupConfig(
            name,
            consume_enable=consume_enable,
            consume_from_min_enable=consume_from_min_enable,
            consume_broadcast_enable=consume_broadcast_enable,
            consume_message_orderly=consume_message_orderly,
            retry_queue_nums=retry_queue_nums,
            retry_max_times=retry_max_times,
            broker_id=broker_id,
            which_broker_when_consume_slowly=which_broker_when_consume_slowly,
            notify_consumer_ids_changed_enable=notify_consumer_ids_changed_enable,
        )
        code, body = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, encode_body(config)
        await self.each(
            await self.masters(),
            lambda address: self.ask(address, code, None, body, about=f"group {group!r}"),
        )

    @on_host
    async def delete_group(self, group: str, *, keep_offsets: bool = False) -> None:
        """Delete a group on every broker, with its retry and dead-letter topics.

        A connected group comes back with its next heartbeat: stop its consumers first.
        """
        name = check_group(self.long_name(group))
        if not await self._group_config(name):
            raise self._no_group(group)
        code = RequestCode.DELETE_SUBSCRIPTIONGROUP
        header = headers.admin.DeleteGroup(
            name, clean_offset=not keep_offsets, remove_offset=not keep_offsets
        )
        await self.each(
            await self.masters(),
            lambda address: self.ask(address, code, header, about=f"group {group!r}"),
        )
        for topic in (retry_topic(name), dead_letter_topic(name)):
            if await self.find_route(topic) is not None:
                await self._delete(topic)

    # ------------------------------------------------------------------------ who is connected

    @on_host
    async def connections(self, group: str) -> dict[str, bodies.common.ConsumerConnections]:
        """The connections of a group, by broker name; only brokers that have any."""
        return await self._connections(self.long_name(group))

    async def _connections(self, name: str) -> dict[str, bodies.common.ConsumerConnections]:
        async def ask(address: str) -> bodies.common.ConsumerConnections | None:
            try:
                return await self.ask_body(
                    bodies.common.ConsumerConnections,
                    address,
                    RequestCode.GET_CONSUMER_CONNECTION_LIST,
                    headers.admin.GetConsumerConnections(name),
                    about=f"group {name!r}",
                )
            except ConsumerNotOnline:
                return None

        answers = await self.each(await self.masters(), ask)
        return {broker: seen for broker, seen in answers.items() if seen is not None}

    @on_host
    async def clients(self, group: str) -> list[Client]:
        """The connected members of a consumer group."""
        seen = await self._connections(self.long_name(group))
        return _clients({broker: found.connection_set for broker, found in seen.items()})

    @on_host
    async def members(self, group: str, *, wait: Duration = 3) -> list[Member]:
        """The connected members of a consumer group, with the queues that each one holds.

        Each member is asked through a broker. What it does not report within ``wait`` is None;
        of more than 100 members, only the first by client id are asked.
        """
        name = self.long_name(group)
        seen = await self._connections(name)
        clients = _clients({broker: found.connection_set for broker, found in seen.items()})
        masters = await self.masters()
        limit, room = seconds(wait), asyncio.Semaphore(_ASKED_AT_ONCE)

        async def ask(client: Client) -> Member:
            header = headers.clients.GetConsumerRunningInfo(name, client.client_id, False)
            addresses = {b: masters[b] for b in client.broker_names if b in masters}
            try:
                async with room, asyncio.timeout(limit):
                    info = await self._running_info(addresses, header)
            except (PenstockError, TimeoutError):
                return Member(client, None, None)
            return self._member(client, info)

        answers = await asyncio.gather(*map(ask, clients[:_MEMBERS_ASKED]))
        return [*answers, *(Member(client, None, None) for client in clients[_MEMBERS_ASKED:])]

    def _member(self, client: Client, info: bodies.running.ConsumerRunningInfo) -> Member:
        held = [queue for queue, state in info.mq_table.items() if not state.dropped]
        held += [queue for queue, state in (info.mq_pop_table or {}).items() if not state.dropped]
        shown = (MessageQueue(self.short_name(q.topic), q.broker_name, q.queue_id) for q in held)
        orderly = info.properties.get(bodies.running.RunningProperty.ORDERLY, "").lower()
        return Member(
            client, tuple(sorted(set(shown))), {"true": True, "false": False}.get(orderly)
        )

    @on_host
    async def subscriptions(self, group: str) -> list[Subscription]:
        """The subscriptions of the connected members of a group, as the brokers know them."""
        found: dict[str, Subscription] = {}
        for seen in (await self._connections(self.long_name(group))).values():
            for data in seen.subscription_table.values():
                wanted = data.subscription()
                wanted = dataclasses.replace(wanted, topic=self.short_name(wanted.topic))
                known = found.get(wanted.topic)
                if known is None or known.version < wanted.version:
                    found[wanted.topic] = wanted
        return [found[topic] for topic in sorted(found)]

    @on_host
    async def producers(self, group: str) -> list[Client]:
        """The connected members of a producer group."""
        return await self._producers(self.long_name(group))

    @on_host
    async def streams(self, group: str) -> list[Client]:
        """The running Spark streams that commit their progress to a consumer group."""
        return await self._producers(stream_group(self.long_name(group)))

    async def _producers(self, name: str) -> list[Client]:
        async def ask(address: str) -> tuple[bodies.common.Connection, ...]:
            try:
                answer = await self.ask_body(
                    bodies.common.ProducerConnections,
                    address,
                    RequestCode.GET_PRODUCER_CONNECTION_LIST,
                    headers.admin.GetProducerConnections(name),
                    about=f"producer group {self.short_name(name)!r}",
                )
            except RequestRefused as error:
                if error.code != ResponseCode.SYSTEM_ERROR:
                    raise
                # The broker's answer when no member is connected.
                return ()
            return answer.connection_set

        return _clients(await self.each(await self.masters(), ask))

    @on_host
    async def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> bodies.running.ConsumerRunningInfo:
        """The state of a connected consumer, requested through its broker."""
        name = self.long_name(group)
        header = headers.clients.GetConsumerRunningInfo(name, client_id, stacks)
        return await self._running_info(await self.masters(), header)

    async def _running_info(
        self, brokers: Mapping[str, str], header: headers.clients.GetConsumerRunningInfo
    ) -> bodies.running.ConsumerRunningInfo:
        """Ask one broker after the other until one of them reaches the client."""
        about = f"client {header.client_id!r} of group {self.short_name(header.consumer_group)!r}"
        failure: PenstockError = ConsumerNotOnline(f"{about} is connected to no master")
        for number, address in enumerate(brokers.values()):
            try:
                return await self.ask_body(
                    bodies.running.ConsumerRunningInfo,
                    address,
                    RequestCode.GET_CONSUMER_RUNNING_INFO,
                    header,
                    about=about,
                    seconds=RELAY_SECONDS,
                )
            except PenstockError as error:
                # It need not be connected to this one.
                failure = failure if number else error
        raise failure

    async def _relay_message(
        self, address: str, header: headers.clients.ConsumeMessageDirectly, *, about: str
    ) -> bodies.running.ConsumeDirectlyResult:
        """Have a broker hand one of its messages to a consumer."""
        return await self.ask_body(
            bodies.running.ConsumeDirectlyResult,
            address,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            header,
            about=about,
            seconds=RELAY_SECONDS,
        )


def _clients(seen: dict[str, tuple[bodies.common.Connection, ...]]) -> list[Client]:
    """One row a client, however many brokers see it."""
    rows: dict[str, Client] = {}
    for broker in sorted(seen):
        for connection in seen[broker]:
            known = rows.get(connection.client_id)
            rows[connection.client_id] = Client(
                connection.client_id,
                connection.client_addr if known is None else known.address,
                connection.language or "",
                connection.version,
                (*(() if known is None else known.broker_names), broker),
            )
    return [rows[client_id] for client_id in sorted(rows)]
