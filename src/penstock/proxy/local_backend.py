"""The broker of this process as a backend: connections in memory, tables at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.auth.user_source import UserSource
from penstock.errors import ConnectFailed
from penstock.protocol.bodies.groups import SubscriptionGroupConfig
from penstock.protocol.bodies.topics import TopicConfig
from penstock.protocol.half_messages import TransactionKey
from penstock.proxy.access import Signer
from penstock.proxy.backend import HalfPlace
from penstock.proxy.facts import GroupFacts, TopicAtBroker, TopicFacts
from penstock.remoting import Peer
from penstock.remoting.peer import Handler

if TYPE_CHECKING:
    from penstock.broker import Broker

MESSAGE_TYPE = "message.type"


class LocalBackend:
    """One broker in the same loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def users(self) -> UserSource | None:
        return self._broker.state.users

    @property
    def own_signer(self) -> Signer | None:
        """None: the endpoint asks the tables of the broker, not its requests."""
        return None

    @property
    def _name(self) -> str:
        return self._broker.state.config.broker_name

    async def topic(self, name: str, *, is_fresh: bool = False) -> TopicFacts | None:
        return self.known_topic(name)

    def known_topic(self, name: str) -> TopicFacts | None:
        config = self._broker.state.topics.get(name)
        return None if config is None else topic_facts(name, {self._name: config})

    async def group(self, name: str, *, is_fresh: bool = False) -> GroupFacts:
        return self.known_group(name)

    def known_group(self, name: str) -> GroupFacts:
        # A request that the broker checks creates it; a caller without rights creates nothing.
        return group_facts(self._broker.state.groups.foresee(name))

    async def broker_names(self) -> list[str]:
        return [self._name]

    async def connect(self, broker_name: str, handler: Handler, remote: str) -> Peer:
        if broker_name != self._name:
            raise ConnectFailed(f"broker {broker_name!r} is not here", expected=self._name)
        return self._broker.connect_in_memory(handler, remote)

    async def find_half(self, topic: str, transaction_id: str) -> HalfPlace | None:
        # The topic of a message is the producer group of the API.
        key = TransactionKey(topic, topic, transaction_id)
        found = self._broker.state.transactions.open.get(key)
        if found is None:
            return None
        return HalfPlace(self._name, found.position, found.offsets[-1])


def topic_facts(name: str, at_brokers: dict[str, TopicConfig]) -> TopicFacts:
    """The facts of a topic from its settings at each broker."""
    types = (config.attributes or {} for config in at_brokers.values())
    return TopicFacts(
        name,
        next((found[MESSAGE_TYPE] for found in types if MESSAGE_TYPE in found), ""),
        [
            TopicAtBroker(broker, config.read_queue_nums, config.write_queue_nums, config.perm)
            for broker, config in sorted(at_brokers.items())
        ],
    )


def group_facts(config: SubscriptionGroupConfig) -> GroupFacts:
    """The facts of a group from its settings at a broker."""
    return GroupFacts(
        config.group_name,
        bool(config.consume_message_orderly),
        max(0, config.retry_max_times) + 1,
        config.group_retry_policy,
    )
