"""Topics: found, readable, and with messages that pass the filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from penstock.doctor.checks.thresholds import Thresholds
from penstock.doctor.facts import GroupFacts, SampledMessage, TopicFacts
from penstock.doctor.findings import Finding, critical, listed, plural, warning
from penstock.errors import SubscriptionIllegal
from penstock.model import Subscription
from penstock.model.names import READ
from penstock.model.subscription import EVERYTHING, SQL92
from penstock.protocol.filters.tags import compile_sql

_TAGS_SHOWN = 8


def topic_missing(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """A consumer of a topic that does not exist waits for it and logs that once."""
    for topic in facts.topics:
        if topic.routes and topic.route is None:
            yield critical(
                "topic-missing",
                f"topic {topic.name!r} is not known to name server {', '.join(topic.routes)}",
                f"penstock topic create {topic.name}",
                "penstock topic list",
                topic=topic.name,
                nameservers=list(topic.routes),
            )
        unknown = [address for address, route in topic.routes.items() if route is None]
        if unknown and topic.route is not None:
            yield warning(
                "topic-missing",
                f"topic {topic.name!r} is known to some name servers only, not to "
                f"{', '.join(unknown)}: clients that ask there find nothing",
                "have every broker register with every name server (namesrvAddr)",
                topic=topic.name,
                nameservers=unknown,
            )


def route_unreadable(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """No name server answers, or the route has queues on brokers without an address."""
    for topic in facts.topics:
        if topic.route_error is not None:
            yield critical(
                "route-unreadable",
                f"the route of topic {topic.name!r} could not be had: {topic.route_error}",
                "penstock cluster overview",
                topic=topic.name,
            )
        route = topic.route
        if route is None:
            continue
        nowhere = sorted(
            queues.broker_name
            for queues in route.queues
            if (broker := route.broker(queues.broker_name)) is None or not broker.addresses
        )
        if nowhere:
            yield critical(
                "route-unreadable",
                f"the route of topic {topic.name!r} has queues on {listed(nowhere)}, and no "
                "address of it",
                "penstock cluster overview",
                f"start {listed(nowhere)}: it registers by itself",
                topic=topic.name,
                brokers=nowhere,
            )


def route_stale(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """A name server keeps an old registration; the broker refuses every pull."""
    for topic in facts.topics:
        if topic.missing_on:
            names = list(topic.missing_on)
            yield critical(
                "route-stale",
                f"the route of topic {topic.name!r} leads to {listed(names)}, which does not "
                "have the topic any more",
                f"penstock topic create {topic.name} --broker {names[0]}",
                f"penstock topic delete {topic.name}",
                topic=topic.name,
                brokers=names,
            )


def no_read_permission(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """Queues without read permission are not assigned to any member."""
    brokers = {b.name: b.permission for b in facts.cluster.brokers if b.broker_id == 0}
    for topic in facts.topics:
        route = topic.route
        if route is None:
            continue
        shut = [queues for queues in route.queues if not queues.permission & READ]
        closed = [q.broker_name for q in shut if _lacks_read(brokers, q.broker_name)]
        own = [q for q in shut if q.broker_name not in closed]
        total = len(route.queues)
        found = critical if len(shut) == total else warning
        if closed:
            yield found(
                "no-read-permission",
                f"topic {topic.name!r} cannot be read on {listed(sorted(closed))}: the broker "
                f"itself allows no reading (brokerPermission {brokers[closed[0]]})",
                f"set brokerPermission=6 on {listed(sorted(closed))}",
                topic=topic.name,
                brokers=sorted(closed),
                broker_permission=brokers[closed[0]],
            )
        if own:
            names = sorted(q.broker_name for q in own)
            yield found(
                "no-read-permission",
                f"topic {topic.name!r} has no read permission on {listed(names)} "
                f"(permission {own[0].permission}, read is {READ})",
                f"penstock topic create {topic.name} --queues {own[0].write_queues} "
                "--permission rw",
                topic=topic.name,
                brokers=names,
                permission=own[0].permission,
            )


def _lacks_read(brokers: Mapping[str, int | None], name: str) -> bool:
    permission = brokers.get(name)
    return permission is not None and not permission & READ


def queues_not_read(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """With more write queues than read queues, messages in the last ones are never consumed."""
    for topic in facts.topics:
        if topic.route is None:
            continue
        for queues in topic.route.queues:
            if queues.permission & READ and queues.read_queues < queues.write_queues:
                hidden = [
                    q
                    for q in topic.queues
                    if q.queue.broker_name == queues.broker_name
                    and q.queue.queue_id >= queues.read_queues
                ]
                waiting = sum(q.max_offset - q.min_offset for q in hidden)
                yield warning(
                    "queues-not-read",
                    f"topic {topic.name!r} has {queues.write_queues} queues to write and "
                    f"{queues.read_queues} to read on {queues.broker_name}: "
                    f"{plural(waiting, 'message')} in the others, which are not delivered",
                    f"penstock topic create {topic.name} --queues {queues.write_queues} "
                    f"--broker {queues.broker_name}",
                    topic=topic.name,
                    broker=queues.broker_name,
                    read_queues=queues.read_queues,
                    write_queues=queues.write_queues,
                    messages=waiting,
                )


def filter_matches_nothing(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """The newest messages are read and filtered; reported if none of them passes."""
    for topic in facts.topics:
        if not topic.sample:
            continue
        wishes = {
            (s.expression_type, s.expression): s
            for member in facts.members
            for s in member.subscriptions or ()
            if s.topic == topic.name and s.expression != EVERYTHING
        }
        for wanted in wishes.values():
            if not any(passes(wanted, message) for message in topic.sample):
                yield _no_match(facts, topic, wanted, topic.sample)


def _no_match(
    facts: GroupFacts, topic: TopicFacts, wanted: Subscription, sample: tuple[SampledMessage, ...]
) -> Finding:
    tags = Counter(message.tag or "(no tag)" for message in sample)
    seen = {tag: count for tag, count in tags.most_common(_TAGS_SHOWN)}
    shown = ", ".join(f"{tag} {count}" for tag, count in seen.items())
    if len(tags) > len(seen):
        shown += f" and {len(tags) - len(seen)} more"
    what = "SQL filter" if wanted.expression_type == SQL92 else "filter"
    return warning(
        "filter-matches-nothing",
        f"{what} {wanted.expression!r} of group {facts.group!r} lets none of the newest "
        f"{plural(len(sample), 'message')} of topic {topic.name!r} through; their tags: {shown}",
        f"penstock tail {topic.name} --from first",
        "tags are compared to the letter, upper and lower case too"
        if wanted.expression_type != SQL92
        else "a property that a message does not have is NULL, and NULL matches nothing",
        topic=topic.name,
        filter=wanted.expression,
        filter_type=wanted.expression_type,
        sampled=len(sample),
        matching=0,
        tags=seen,
    )


def passes(wanted: Subscription, message: SampledMessage) -> bool:
    """Whether a message passes a filter; every message passes an invalid one."""
    if wanted.expression_type == SQL92:
        try:
            return compile_sql(wanted.expression)(message.properties)
        except SubscriptionIllegal:
            return True
    return not wanted.tags or message.tag in wanted.tags
