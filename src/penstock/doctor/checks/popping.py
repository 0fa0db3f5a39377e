"""Popped messages: how many are not finished, and whether their time is enough."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.doctor.checks.thresholds import Thresholds
from penstock.doctor.facts import GroupFacts
from penstock.doctor.findings import Finding, critical, listed, plural, warning


def messages_in_flight(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """Many unfinished messages in one queue: the broker gives no more of it at a limit."""
    many = {
        queue: count
        for queue, count in facts.popped.in_flight.items()
        if count >= limits.in_flight_messages
    }
    if not many:
        return
    most = max(many.values())
    found = critical if most >= limits.in_flight_limit else warning
    yield found(
        "messages-in-flight",
        f"group {facts.group!r} has {plural(sum(many.values()), 'message')} in flight in "
        f"{listed(sorted(map(str, many)), 4)}: received and not acknowledged",
        f"penstock group lag {facts.group}",
        "acknowledge each message when it is done; a queue gives no more at "
        f"{limits.in_flight_limit} (popInflightMessageThreshold)",
        "more members, or faster ones",
        in_flight={str(queue): count for queue, count in sorted(many.items())},
    )


def receipts_expire(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """The invisible time is shorter than the work: messages are handled twice."""
    expired, late = facts.popped.expired_last_hour, facts.popped.late_last_hour
    if not expired and not late:
        return
    slow = f", {late} of them after all, but too late" if late else ""
    yield warning(
        "receipts-expire",
        f"group {facts.group!r} did not acknowledge {plural(expired, 'popped message')} in time "
        f"within the last hour{slow}: they come again, and are dead letters in the end",
        "receive with a longer invisible time, or extend() messages whose work takes long",
        "a handler that hangs, or a program that forgets to acknowledge, looks the same: read its "
        "log",
        expired=expired,
        late=late,
    )
