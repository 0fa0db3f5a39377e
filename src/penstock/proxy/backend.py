"""What the endpoint needs of the brokers behind it.

Requests go over remoting connections, one for each client and broker: a broker sees the clients of
the endpoint as it sees those of its own protocol, in the same tables and with the same rules.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from penstock.auth.user_source import UserSource
from penstock.proxy.access import Signer
from penstock.proxy.facts import GroupFacts, TopicFacts
from penstock.remoting import Peer
from penstock.remoting.peer import Handler


class HalfPlace(NamedTuple):
    """Where the half message of a transaction is."""

    broker_name: str
    log_position: int
    state_offset: int
    """Its offset in the queue of the half topic."""


class Backend(Protocol):
    """The brokers, or the one in this process."""

    @property
    def users(self) -> UserSource | None:
        """The users whose signatures are checked; None: without authentication."""

    @property
    def own_signer(self) -> Signer | None:
        """The user of the endpoint itself, if the brokers want one."""

    async def topic(self, name: str, *, is_fresh: bool = False) -> TopicFacts | None:
        """A topic; None if there is none of that name.

        ``is_fresh``: as it is now. Otherwise the facts may be a second old; a broker checks what it
        is asked to do in any case.
        """

    def known_topic(self, name: str) -> TopicFacts | None:
        """A topic whose facts are at hand, a second old at most; None: they are to be asked for."""

    def known_group(self, name: str) -> GroupFacts | None:
        """The same of a group."""

    async def group(self, name: str, *, is_fresh: bool = False) -> GroupFacts:
        """A group, as its first use would create it; raises `GroupNotFound`."""

    async def broker_names(self) -> list[str]:
        """The brokers that clients are registered at."""

    async def connect(self, broker_name: str, handler: Handler, remote: str) -> Peer:
        """A new connection for a client at ``remote``; ``handler`` serves the broker's requests."""

    async def find_half(self, topic: str, transaction_id: str) -> HalfPlace | None:
        """The half message of a transaction that is open."""
