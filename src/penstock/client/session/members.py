"""Producers and consumers as their session sees them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from penstock.model import MessageQueue, StoredMessage

if TYPE_CHECKING:
    from penstock.protocol.bodies.clients import ConsumerData
    from penstock.protocol.bodies.running import ConsumeDirectlyResult, ConsumerRunningInfo

TransactionAnswer: TypeAlias = Callable[[int], None]
"""Takes a `TransactionDecision`."""


class ConsumerMember(Protocol):
    """A consumer group as its session sees it."""

    @property
    def group(self) -> str: ...

    @property
    def topics(self) -> Collection[str]:
        """The topics whose routes it needs."""

    def consumer_data(self) -> ConsumerData:
        """Its part of a heartbeat."""

    async def rebalance(self) -> bool:
        """Take and release queues as the members of the group require; false: repeat soon."""

    async def persist_offsets(self) -> None: ...

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo: ...

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """Its offsets in the queues it holds."""

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None: ...

    async def consume_directly(self, message: StoredMessage) -> ConsumeDirectlyResult: ...


class ProducerMember(Protocol):
    """A producer group as its session sees it."""

    @property
    def group(self) -> str: ...

    @property
    def topics(self) -> Collection[str]:
        """The topics it has sent to."""

    def check_transaction(self, message: StoredMessage, answer: TransactionAnswer) -> None:
        """Have the user decide about a transaction, then call ``answer``."""
