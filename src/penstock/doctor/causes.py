"""Every cause that the doctor looks for, with its check; docs/failures.md has the same list."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from penstock.doctor.checks import consuming, groups, offsets, popping, servers, topics
from penstock.doctor.checks.thresholds import Thresholds
from penstock.doctor.facts import ClusterFacts, GroupFacts
from penstock.doctor.findings import Finding

ClusterCheck = Callable[[ClusterFacts, Thresholds], Iterable[Finding]]
GroupCheck = Callable[[GroupFacts, Thresholds], Iterable[Finding]]


CLUSTER_CHECKS: Final[dict[str, tuple[str, ClusterCheck]]] = {
    "nameserver-unreachable": ("a name server does not answer", servers.nameserver_unreachable),
    "no-broker": ("no broker is registered", servers.no_broker),
    "broker-unreachable": ("a registered broker does not answer", servers.broker_unreachable),
    "stale-registration": (
        "name servers do not agree, or name a broker that is not there any more",
        servers.stale_registration,
    ),
    "clock-skew": ("the clocks of two machines differ", servers.clock_skew),
    "disk-full": ("the disk of a broker is full", servers.disk_full),
    "store-damaged": ("a broker has messages that it cannot read", servers.store_damaged),
}

GROUP_CHECKS: Final[dict[str, tuple[str, GroupCheck]]] = {
    "group-unknown": ("no broker knows the group", groups.group_unknown),
    "no-members": ("the group has no connected members", groups.no_members),
    "member-silent": ("a member does not answer", groups.member_silent),
    "consuming-disabled": ("the group is not allowed to consume", groups.consuming_disabled),
    "subscription-conflict": (
        "members of the group subscribe differently",
        groups.subscription_conflict,
    ),
    "too-many-members": ("there are more members than queues", groups.too_many_members),
    "member-clock-skew": ("a member's clock differs from its brokers'", groups.member_clock_skew),
    "topic-missing": ("a topic has no route", topics.topic_missing),
    "route-unreadable": ("a topic's route cannot be read", topics.route_unreadable),
    "route-stale": ("a route names a broker without the topic", topics.route_stale),
    "no-read-permission": ("a topic may not be read", topics.no_read_permission),
    "queues-not-read": ("a topic has queues that cannot be read", topics.queues_not_read),
    "filter-matches-nothing": ("a filter lets no message through", topics.filter_matches_nothing),
    "never-committed": ("the group has no offset", offsets.never_committed),
    "behind-first": (
        "messages were deleted before the group consumed them",
        offsets.behind_first,
    ),
    "beyond-last": ("the group's offset is past the end", offsets.beyond_last),
    "topic-remade": ("a topic was deleted and created again", offsets.topic_remade),
    "next-unreadable": ("the next message cannot be read", offsets.next_unreadable),
    "retry-backlog": ("failed messages wait for their next attempt", offsets.retry_backlog),
    "dead-letters": ("the group gave up on messages", offsets.dead_letters),
    "open-transactions": (
        "messages wait for transactions that are not decided",
        offsets.open_transactions,
    ),
    "timers-not-due": ("messages wait for their time", offsets.timers_not_due),
    "paused": ("a member is paused", consuming.paused),
    "stuck-handler": ("a handler does not return", consuming.stuck_handler),
    "handler-fails": ("handlers fail", consuming.handler_fails),
    "flow-control": ("a member cannot take more", consuming.flow_control),
    "lock-held-elsewhere": ("a queue is locked by another client", consuming.lock_held_elsewhere),
    "not-pulled": ("a member does not pull a queue that it holds", consuming.not_pulled),
    "messages-in-flight": ("popped messages are not finished", popping.messages_in_flight),
    "receipts-expire": (
        "popped messages are not acknowledged in time",
        popping.receipts_expire,
    ),
    "queue-without-member": ("a queue has no consumer", consuming.queue_without_member),
    "queue-with-two-members": ("two members consume a queue", consuming.queue_with_two_members),
}

TITLES: Final[dict[str, str]] = {
    **{name: title for name, (title, _) in CLUSTER_CHECKS.items()},
    **{name: title for name, (title, _) in GROUP_CHECKS.items()},
}
"""What each cause is called, as a half sentence."""


def examine_cluster(facts: ClusterFacts, limits: Thresholds) -> list[Finding]:
    """All that is wrong with the servers."""
    return [finding for _, check in CLUSTER_CHECKS.values() for finding in check(facts, limits)]


def examine_group(facts: GroupFacts, limits: Thresholds) -> list[Finding]:
    """All that is wrong with a group; what is wrong with the servers is not repeated."""
    return [finding for _, check in GROUP_CHECKS.values() for finding in check(facts, limits)]
