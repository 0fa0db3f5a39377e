"""The group and its members: which are connected, and whether they agree."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterator

from penstock.doctor.checks.thresholds import Thresholds
from penstock.doctor.facts import GroupFacts, MemberFacts
from penstock.doctor.findings import Finding, critical, duration, listed, note, plural, warning
from penstock.model.names import READ

NOWHERE_TO_GO = (
    "a consumer whose topics do not exist is connected to no broker: compare them with "
    "penstock topic list"
)


def group_unknown(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """Brokers make a group when its first consumer connects; most often the name is misspelt."""
    if facts.configs or not facts.cluster.masters:
        return
    near = difflib.get_close_matches(facts.group, facts.known_groups, n=3)
    meant = [f"did you mean {' or '.join(near)}?  penstock doctor {near[0]}"] if near else []
    yield critical(
        "group-unknown",
        f"no broker knows group {facts.group!r}: no member has ever connected",
        "penstock group list",
        *meant,
        "start a consumer of the group: brokers make it when it connects",
        NOWHERE_TO_GO,
        brokers_asked=sorted(facts.cluster.masters),
        groups=len(facts.known_groups),
    )


def no_members(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """Without a consumer nothing is consumed, and this is the usual reason."""
    if facts.members or facts.streams or not facts.configs:
        return
    if not facts.had_members:
        yield _job_without_members(facts)
        return
    found = critical if facts.lag or not facts.topics else warning
    waiting = f"; {plural(facts.lag, 'message')} wait" if facts.lag else ""
    yield found(
        "no-members",
        f"group {facts.group!r} has no connected members{waiting}",
        f"penstock group describe {facts.group}",
        "start its consumer, or its Spark stream, and look at what it logs: a wrong name server "
        "address, topic or group name keeps it away from here",
        NOWHERE_TO_GO,
        members=0,
        lag=facts.lag,
        brokers_asked=sorted(facts.cluster.masters),
    )


def _job_without_members(facts: GroupFacts) -> Finding:
    """Offsets without members: a program reads by itself, and may run once a night."""
    waiting = f"; {plural(facts.lag, 'message')} wait for its next run" if facts.lag else ""
    return note(
        "no-members",
        f"group {facts.group!r} never had members: its offsets were committed by a program that "
        f"reads by itself, such as a Spark job, and that is not running{waiting}",
        f"penstock group lag {facts.group}",
        "if a consumer should be there, look at what it logs: a wrong name server address, topic "
        "or group name keeps it away from here",
        members=0,
        lag=facts.lag,
        brokers_asked=sorted(facts.cluster.masters),
    )


def member_silent(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """It holds queues, and may not be working on them."""
    for member in facts.members:
        if member.error is not None and not member.error.startswith("not asked"):
            yield warning(
                "member-silent",
                f"member {member.client_id} ({member.language}, {member.address}) is connected "
                f"and does not report its state: {member.error}",
                f"look at the process behind {member.address}: is it stopped, or out of memory?",
                member=member.client_id,
                address=member.address,
                error=member.error,
            )


def consuming_disabled(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """A broker answers such a group's pulls with NO_PERMISSION."""
    refused = sorted(name for name, config in facts.configs.items() if not config.consume_enable)
    if refused:
        yield critical(
            "consuming-disabled",
            f"group {facts.group!r} is not allowed to consume on {listed(refused)} "
            "(consumeEnable is false)",
            f"penstock group create {facts.group}",
            brokers=refused,
            consume_enable=False,
        )
    refused = sorted(
        name for name, config in facts.configs.items() if not config.consume_broadcast_enable
    )
    if refused and facts.is_broadcasting:
        yield critical(
            "consuming-disabled",
            f"group {facts.group!r} is broadcasting, and not allowed to on {listed(refused)} "
            "(consumeBroadcastEnable is false)",
            f"penstock group create {facts.group}",
            brokers=refused,
            consume_broadcast_enable=False,
        )
    for topic in facts.topics:
        if topic.forbidden_on:
            yield critical(
                "consuming-disabled",
                f"group {facts.group!r} is kept from reading topic {topic.name!r} on "
                f"{listed(list(topic.forbidden_on))} (forbidden bit {READ})",
                "ask the operator who disabled it to enable it, or consume with another group",
                topic=topic.name,
                brokers=list(topic.forbidden_on),
            )


def subscription_conflict(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """Brokers keep one subscription a group: the last heartbeat's. Members share all queues.

    So a member that wants something else makes the others lose messages: those of its share that
    only they want.
    """
    known = [member for member in facts.members if member.subscriptions is not None]
    for topic in sorted({s.topic for member in known for s in member.subscriptions or ()}):
        said: dict[str, list[str]] = defaultdict(list)
        for member in known:
            said[_wanted(member, topic)].append(member.client_id)
        if len(said) > 1:
            differ = "; ".join(
                f"{listed(clients, 3)} {wish}" for wish, clients in sorted(said.items())
            )
            yield critical(
                "subscription-conflict",
                f"members of group {facts.group!r} subscribe differently to topic {topic!r}: "
                f"{differ}",
                "give every member of a group the same topics and the same filters, or put them "
                "into groups of their own",
                f"penstock group describe {facts.group}",
                topic=topic,
                subscriptions={wish: clients for wish, clients in sorted(said.items())},
            )
    models: dict[str, list[str]] = defaultdict(list)
    for member in facts.members:
        if member.model is not None:
            models[member.model].append(member.client_id)
    if len(models) > 1:
        yield critical(
            "subscription-conflict",
            f"members of group {facts.group!r} have different models: "
            + "; ".join(f"{listed(who, 3)} {model}" for model, who in sorted(models.items())),
            "give every member of a group the same model",
            models=dict(models),
        )


def _wanted(member: MemberFacts, topic: str) -> str:
    for wish in member.subscriptions or ():
        if wish.topic == topic:
            tags = " || ".join(sorted(wish.tags)) if wish.tags else wish.expression
            return f"wants {wish.expression_type} {tags!r}"
    return "does not want it"


def too_many_members(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """A queue goes to one member of a group; a member without one waits for another to leave."""
    if facts.is_broadcasting or facts.pops:
        return
    for topic in facts.topics:
        if topic.route is None:
            continue
        queues = len(topic.route.subscribe_queues(topic.name))
        sharing = [
            member
            for member in facts.members
            if member.subscriptions is None
            or any(s.topic == topic.name for s in member.subscriptions)
        ]
        if not 0 < queues < len(sharing):
            continue
        idle = sorted(
            member.client_id
            for member in sharing
            if member.queues is not None and not any(q.topic == topic.name for q in member.queues)
        )
        names = f" ({listed(idle, 3)})" if idle else ""
        per_broker = max(1, len({q.broker_name for q in topic.route.queues}))
        yield warning(
            "too-many-members",
            f"topic {topic.name!r} has {plural(queues, 'queue')} for {len(sharing)} members: "
            f"{len(sharing) - queues} get nothing{names}",
            f"penstock topic create {topic.name} --queues {-(-len(sharing) // per_broker)}",
            "or stop the members that are too many",
            topic=topic.name,
            queues=queues,
            members=len(sharing),
            idle=idle,
        )


def member_clock_skew(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """A member's clock against its brokers': it stamps offsets by time and measures timeouts."""
    ahead = {
        broker.name: broker.clock_ahead_ms
        for broker in facts.cluster.brokers
        if broker.clock_ahead_ms is not None and broker.broker_id == 0
    }
    for member in facts.members:
        known = [ahead[name] for name in member.broker_names if name in ahead]
        if member.clock_ms is None or not known:
            continue
        # Both were compared with this machine's clock, so they can be with each other.
        apart = (member.clock_ms - member.asked_ms) - known[0]
        precision = next(
            b.clock_precision_ms for b in facts.cluster.brokers if b.name in member.broker_names
        )
        if abs(apart) - precision <= limits.skew_ms:
            continue
        yield warning(
            "member-clock-skew",
            f"the clock of member {member.client_id} is {duration(apart)} "
            f"{'ahead of' if apart > 0 else 'behind'} that of broker {member.broker_names[0]}",
            "have both machines keep time with NTP; messages it sends carry the wrong time, and "
            "starting from a time starts elsewhere",
            member=member.client_id,
            ahead_seconds=round(apart / 1000, 1),
            precision_seconds=round(precision / 1000, 1),
        )
