"""Whether the entries of a user allow an action: the order in which they count.

1. Only entries count whose pattern covers the resource, that name one of the actions, and that
   apply to the address of the peer. An entry without the action is as if it were not there.
2. Entries of the policy Custom; where none of them counts, those of Default.
3. The most specific one decides: a name before a prefix, a long prefix before a short one, a
   prefix before ``Topic:*``, and ``*`` last. Among equals a denial wins.

So a grant for one name wins over a denial of its prefix, as in RocketMQ. One rule is stricter than
there: a pattern never covers system topics and dead-letter topics, which hold the messages of
others; they need an entry with their name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from penstock.auth.model import Action, Address, Decision, Entry, Policy, Resource, ResourceType
from penstock.model.names import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    OFFSET_MOVED_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    TRANSACTION_GIVEN_UP_TOPIC,
    reply_topic,
)

_REPLY_SUFFIX: Final = reply_topic("")
_SYSTEM_TOPICS: Final = frozenset(
    {
        BENCHMARK_TOPIC,
        DEFAULT_TOPIC,
        OFFSET_MOVED_TOPIC,
        SCHEDULE_TOPIC,
        SELF_TEST_TOPIC,
        TRANSACTION_GIVEN_UP_TOPIC,
    }
)


class Verdict(NamedTuple):
    """The outcome, and the entry that decided; without one the request is refused."""

    is_allowed: bool
    entry: Entry | None = None

    @property
    def reason(self) -> str:
        """Why it was refused, in RocketMQ's words."""
        return "no matched policies" if self.entry is None else "the decision is deny"


def decide(
    entries: Iterable[Entry],
    type_: ResourceType,
    name: str,
    actions: Collection[Action],
    address: Address | None,
) -> Verdict:
    """Whether the entries allow one of ``actions`` on a resource."""
    by_name_only = type_ is ResourceType.TOPIC and needs_own_entry(name)
    counting = [
        entry
        for entry in entries
        if entry.resource.matches(type_, name)
        and (entry.resource.is_literal or not by_name_only)
        and entry.covers_actions(actions)
        and entry.covers_source(address)
    ]
    for policy in Policy:
        among = [entry for entry in counting if entry.policy is policy]
        if among:
            first = min(among, key=_rank)
            return Verdict(first.decision is Decision.ALLOW, first)
    return Verdict(False)


def _rank(entry: Entry) -> tuple[bool, int, int, bool]:
    resource = entry.resource
    kind = 0 if resource.is_literal else 1 if resource.is_prefix else 2
    return (
        resource.type is ResourceType.ANY,
        kind,
        -len(resource.name),
        entry.decision is Decision.ALLOW,
    )


def needs_own_entry(topic: str) -> bool:
    """Whether a topic is covered by an entry with its name only, never by a pattern."""
    return (
        topic in _SYSTEM_TOPICS
        or topic.startswith(DLQ_PREFIX)
        or topic.lower().startswith(SYSTEM_TOPIC_PREFIX)
        # The replies of all users of a cluster.
        or topic.endswith(_REPLY_SUFFIX)
    )


def replaces(entry: Entry, resource: Resource, policy: Policy) -> bool:
    """Whether an entry is the one of this resource: each policy has at most one."""
    return entry.resource == resource and entry.policy is policy
