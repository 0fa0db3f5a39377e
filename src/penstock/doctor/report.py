"""What an examination comes to: findings, and what could not be found out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.doctor.causes import examine_cluster, examine_group
from penstock.doctor.checks.thresholds import Thresholds
from penstock.doctor.facts import ClusterFacts, GroupFacts
from penstock.doctor.findings import Finding, Severity

_SEVERITIES = list(Severity)


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A group: what keeps messages from it, if anything."""

    facts: GroupFacts
    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]
    """Sentences about missing facts."""

    @property
    def is_healthy(self) -> bool:
        return is_sound(self.findings)

    def as_dict(self) -> dict[str, object]:
        """The same as plain values, for JSON."""
        return {
            **summary(self.facts),
            "healthy": self.is_healthy,
            "findings": [finding.as_dict() for finding in self.findings],
            "not_known": list(self.unknown),
        }


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The servers, and every group in a line."""

    facts: ClusterFacts
    findings: tuple[Finding, ...]
    groups: tuple[GroupReport, ...]

    @property
    def is_healthy(self) -> bool:
        return is_sound(self.findings) and all(group.is_healthy for group in self.groups)

    def as_dict(self) -> dict[str, object]:
        """The same as plain values, for JSON."""
        return {
            "healthy": self.is_healthy,
            "nameservers": [server.address for server in self.facts.nameservers],
            "brokers": [
                {
                    "broker": broker.name,
                    "broker_id": broker.broker_id,
                    "address": broker.address,
                    "version": broker.version,
                    "answers": broker.error is None,
                }
                for broker in self.facts.brokers
            ],
            "findings": [finding.as_dict() for finding in self.findings],
            "groups": [group.as_dict() for group in self.groups],
        }


def report_group(facts: GroupFacts, limits: Thresholds, *, with_servers: bool) -> GroupReport:
    """Check a group; ``with_servers`` what is wrong with the cluster counts, too."""
    found = examine_cluster(facts.cluster, limits) if with_servers else []
    found += examine_group(facts, limits)
    return GroupReport(facts, worst_first(found), tuple(unknown(facts)))


def is_sound(findings: Iterable[Finding]) -> bool:
    """Whether nothing is wrong; notes only explain."""
    return all(finding.severity is Severity.NOTE for finding in findings)


def worst_first(findings: list[Finding]) -> tuple[Finding, ...]:
    """What is worse before what is not; otherwise in the order of the checks."""
    return tuple(sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity)))


def summary(facts: GroupFacts) -> dict[str, object]:
    """A group in one line; None is what no broker was there to tell."""
    letters = facts.dead_letters
    if not facts.cluster.masters:
        unknown = dict.fromkeys(("members", "streams", "topics", "lag", "retries", "dead_letters"))
        return {"group": facts.group, **unknown}
    return {
        "group": facts.group,
        "members": len(facts.members),
        "streams": len(facts.streams),
        "topics": [topic.name for topic in facts.topics],
        "lag": facts.lag,
        "retries": facts.retry_lag,
        "dead_letters": None if letters is None else letters.count,
    }


def unknown(facts: GroupFacts) -> Iterator[str]:
    """What could not be judged, so that silence is not taken for health."""
    for broker in facts.cluster.brokers:
        if broker.error is None and broker.clock_ahead_ms is None:
            yield f"what time it is at broker {broker.name}: it does not report it"
    for member in facts.members:
        who = f"member {member.client_id} ({member.language or 'unknown language'})"
        if member.error is not None:
            yield f"all that {who} does: it did not answer ({member.error})"
            continue
        if member.is_paused is None and member.paused_queues is None:
            yield f"whether {who} is paused: its client does not report it"
        if not member.tells_longest and not member.polls:
            yield (
                f"how long the handlers of {who} have been running: its client does not report it; "
                "judged by when it last finished a message"
            )
        if member.is_orderly and member.refused_locks is None:
            yield f"for which locks {who} waits: its client does not report it"
    for topic in facts.topics:
        filtered = any(
            s.topic == topic.name and s.expression != "*"
            for member in facts.members
            for s in member.subscriptions or ()
        )
        if filtered and topic.sample is None:
            yield f"whether filters match in topic {topic.name}: its messages could not be read"
        if not facts.is_broadcasting and any(not q.is_committed_known for q in topic.queues):
            yield f"the offsets of the group in topic {topic.name}: a broker did not report them"
    if facts.is_broadcasting:
        yield "where members stand: a broadcasting member keeps its offsets to itself"
