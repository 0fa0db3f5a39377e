"""What members do with their queues: paused, busy, stuck, waiting for a lock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from penstock.doctor.checks.thresholds import Thresholds
from penstock.doctor.facts import GroupFacts, HeldQueue, MemberFacts
from penstock.doctor.findings import Finding, critical, duration, listed, plural, warning
from penstock.model import MessageQueue
from penstock.model.names import RETRY_PREFIX

LOCK_SECONDS = 60
"""How long a broker keeps a lock that is not renewed."""
_A_MINUTE_MS = 60_000


def paused(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """The program paused it, and no other member can take its queues meanwhile."""
    for member in facts.members:
        held = len(member.queues or ())
        if member.is_paused:
            yield critical(
                "paused",
                f"member {member.client_id} is paused, and keeps {plural(held, 'queue')} from "
                "the others",
                "have its program call resume(), or stop it: its queues then go to the others",
                member=member.client_id,
                queues=held,
            )
        elif member.paused_queues:
            yield warning(
                "paused",
                f"member {member.client_id} has paused {len(member.paused_queues)} of its "
                f"{held} queues: {listed(list(member.paused_queues))}",
                "have its program call resume(queues)",
                member=member.client_id,
                queues=list(member.paused_queues),
            )


def stuck_handler(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """A handler that does not return keeps its thread, and the committed offset, where they are."""
    for member in facts.members:
        longest = member.longest
        if longest is not None and longest.running_ms > limits.stuck_ms:
            yield _stuck(facts, member, longest.running_ms)
        elif not member.tells_longest:
            yield from _seems_stuck(facts, member, limits)


def _stuck(facts: GroupFacts, member: MemberFacts, running_ms: int) -> Finding:
    longest = member.longest
    assert longest is not None
    timeout = member.consume_timeout_seconds
    is_late = timeout is not None and running_ms > timeout * 1000
    found = critical if is_late or member.is_orderly else warning
    held_up = " and holds its queue up" if member.is_orderly else ""
    return found(
        "stuck-handler",
        f"a handler of member {member.client_id} has been running for {duration(running_ms)} on "
        f"{longest.queue} offset {longest.offset}{held_up}",
        f"penstock query --id {longest.msg_id}",
        f"look at what its thread waits for: py-spy dump, or jstack, on {member.address}",
        member=member.client_id,
        queue=longest.queue,
        offset=longest.offset,
        msg_id=longest.msg_id,
        running_seconds=round(running_ms / 1000, 1),
        handlers_running=member.running,
        consume_timeout_seconds=timeout,
    )


def _seems_stuck(facts: GroupFacts, member: MemberFacts, limits: Thresholds) -> Iterator[Finding]:
    """Of a member that does not tell: it has messages, and none was finished for a while."""
    idle = {
        queue: facts.now_ms - held.last_consume_ms
        for queue, held in (member.queues or {}).items()
        if held.cached + held.taken > 0 and held.last_consume_ms > 0
    }
    stuck = {queue: idle_ms for queue, idle_ms in idle.items() if idle_ms > limits.stuck_ms}
    if stuck:
        queue = max(stuck, key=lambda q: stuck[q])
        held = (member.queues or {})[queue]
        yield warning(
            "stuck-handler",
            f"member {member.client_id} has {plural(held.cached + held.taken, 'message')} of "
            f"{queue} and finished none for {duration(stuck[queue])}",
            f"look at what its threads wait for: jstack on {member.address}",
            member=member.client_id,
            queue=str(queue),
            idle_seconds=round(stuck[queue] / 1000, 1),
            queues=sorted(map(str, stuck)),
        )


def handler_fails(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """Failed messages are out of sight between attempts: no lag shows them, nor a retry topic."""
    for member in facts.members:
        handling = member.handling
        if handling is None:
            continue
        ok, failed = handling.ok_per_second, handling.failed_per_second
        newest = member.last_failure
        if newest is not None and newest.ago_ms <= _A_MINUTE_MS:
            # Rates are known ten seconds later, and a group has its first failure before.
            failed = failed or 1 / 60
        if failed > ok:
            yield _fails(facts, member, "in the last minute", ok, failed * 60)
        elif not failed and not ok and handling.failed_last_hour:
            yield _fails(facts, member, "in the last hour", ok, handling.failed_last_hour)


def _fails(
    facts: GroupFacts, member: MemberFacts, when: str, ok: float, failures: float
) -> Finding:
    newest = member.last_failure
    count = max(1, round(failures))
    reason = "" if newest is None else f"; the newest: {newest.reason}"
    # In order a message is tried again until it succeeds, and all behind it wait.
    found = critical if member.is_orderly else warning
    look = f"look at what member {member.client_id} logs: handler failed"
    return found(
        "handler-fails",
        f"handlers of member {member.client_id} failed {plural(count, 'time')} {when}, and "
        f"{'none' if not ok else 'fewer'} succeeded{reason}",
        look if newest is None else f"penstock query --id {newest.msg_id}",
        f"failed messages are tried again, then kept: penstock dlq list {facts.group}",
        member=member.client_id,
        failures=count,
        ok_per_second=round(ok, 2),
        newest_reason=None if newest is None else newest.reason,
        newest_msg_id=None if newest is None else newest.msg_id,
        newest_queue=None if newest is None else newest.queue,
    )


def flow_control(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """Pulling waits while a queue has as many messages here as it may have: handlers are slow."""
    for member in facts.members:
        for queue, held in sorted((member.queues or {}).items()):
            limit = _limit_reached(member, queue, held)
            if limit is None:
                continue
            stops = None if member.flow_stops is None else sum(member.flow_stops.values())
            often = "" if stops is None else f"; pulling has waited {stops} times so far"
            yield warning(
                "flow-control",
                f"member {member.client_id} takes no more of {queue}: it has {held.cached} "
                f"messages ({held.cached_mib} MiB) that are not finished, and its limit of "
                f"{limit} is reached{often}",
                f"penstock group lag {facts.group}",
                "make the handler faster, give it more threads, or start more members",
                member=member.client_id,
                queue=str(queue),
                limit=limit,
                cached=held.cached,
                cached_mib=held.cached_mib,
                count_limit=member.count_limit,
                mib_limit=member.mib_limit,
                span_limit=member.span_limit,
                stops=None if member.flow_stops is None else dict(member.flow_stops),
            )


def _limit_reached(member: MemberFacts, queue: MessageQueue, held: HeldQueue) -> str | None:
    if member.stopped_queues is not None:
        return member.stopped_queues.get(str(queue))
    if member.count_limit is not None and held.cached > member.count_limit:
        return "count"
    if member.mib_limit is not None and held.cached_mib > member.mib_limit:
        return "size"
    if (
        member.is_orderly is False
        and member.span_limit is not None
        and held.cached_span > member.span_limit
    ):
        return "span"
    return None


def lock_held_elsewhere(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """An orderly queue is consumed by the member that holds its lock at the broker."""
    owners = _lock_owners(facts)
    present = {member.client_id for member in facts.members}
    for member in facts.members:
        if not member.is_orderly:
            continue
        waiting = {
            str(queue): "" for queue, held in (member.queues or {}).items() if not held.is_locked
        }
        waiting |= member.refused_locks or {}
        for queue, owner in sorted(waiting.items()):
            holder = owner or next((o for o in owners.get(queue, ()) if o != member.client_id), "")
            if not holder:
                who = "another client, which the broker does not name"
            elif holder in present:
                who = f"member {holder}"
            else:
                who = f"{holder}, which is not connected any more"
            yield critical(
                "lock-held-elsewhere",
                f"member {member.client_id} waits for the lock of {queue}, which {who} holds",
                f"a broker frees a lock {LOCK_SECONDS} s after it was last renewed: wait, or "
                "stop the client that holds it",
                f"penstock doctor {facts.group}",
                member=member.client_id,
                queue=queue,
                holder=holder or None,
                holder_is_member=holder in present if holder else None,
            )


def _lock_owners(facts: GroupFacts) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = defaultdict(list)
    for member in facts.members:
        for queue, held in (member.queues or {}).items():
            if member.is_orderly and held.is_locked:
                owners[str(queue)].append(member.client_id)
    return owners


def not_pulled(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """A member has a queue, messages wait in it, and it has none of them; nothing else tells why.

    Java's consumers do not tell whether they are paused: this is how it shows.
    """
    if facts.is_broadcasting or any(not c.consume_enable for c in facts.configs.values()):
        return
    ahead = {b.name: b.clock_ahead_ms or 0 for b in facts.cluster.brokers if b.broker_id == 0}
    waiting = {
        q.queue: q
        for topic in facts.topics
        if topic.route is not None and not topic.forbidden_on
        for q in topic.queues
        if q.is_committed_known
        and q.lag
        and q.queue in topic.route.subscribe_queues(topic.name)
        and facts.now_ms + ahead.get(q.queue.broker_name, 0) - q.last_stored_ms > limits.settle_ms
    }
    for member in facts.members:
        if member.is_paused or not _has_settled(member, limits):
            continue
        idle = [
            waiting[queue]
            for queue, held in (member.queues or {}).items()
            if queue in waiting
            and held.cached + held.taken == 0
            and str(queue) not in (member.paused_queues or ())
            and (held.is_locked or not member.is_orderly)
        ]
        if idle:
            lag = sum(q.lag for q in idle)
            may_be_paused = (
                " (it does not report whether it is)" if member.is_paused is None else ""
            )
            yield critical(
                "not-pulled",
                f"member {member.client_id} holds {listed([str(q.queue) for q in idle], 4)}, where "
                f"{plural(lag, 'message')} wait, and has pulled none of them",
                f"is it paused{may_be_paused}? look at its log for pulls that fail",
                f"penstock group lag {facts.group}",
                member=member.client_id,
                queues=[str(q.queue) for q in idle],
                lag=lag,
                oldest_pull_seconds=round(
                    max(member.asked_ms - (member.queues or {})[q.queue].last_pull_ms for q in idle)
                    / 1000,
                    1,
                ),
            )


def queue_without_member(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """Between two rebalances a queue may have no consumer; for longer, something is wrong."""
    if facts.is_broadcasting or facts.pops or not _all_reported(facts, limits):
        return
    taken = {queue for member in facts.members for queue in member.queues or ()}
    waited = {queue for member in facts.members for queue in member.refused_locks or ()}
    for topic in facts.topics:
        if topic.route is None or not topic.is_subscribed:
            continue
        lag = {q.queue: q.lag for q in topic.queues}
        alone = [
            queue
            for queue in topic.route.subscribe_queues(topic.name)
            if queue not in taken
            and str(queue) not in waited
            and queue.broker_name not in facts.cluster.silent
        ]
        if alone:
            behind = sum(lag.get(queue, 0) for queue in alone)
            yield critical(
                "queue-without-member",
                f"no member of group {facts.group!r} consumes {listed(list(map(str, alone)), 4)}, "
                f"where {plural(behind, 'message')} wait",
                f"penstock group describe {facts.group}",
                "have all members share queues in the same way (allocation, topics); a member "
                "that is paused takes none",
                topic=topic.name,
                queues=list(map(str, alone)),
                lag=behind,
            )


def queue_with_two_members(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """Each of them consumes every message of it, and they overwrite each other's offset."""
    if facts.is_broadcasting or not _all_reported(facts, limits):
        return
    holders: dict[MessageQueue, list[str]] = defaultdict(list)
    for member in facts.members:
        for queue in member.queues or ():
            if not queue.topic.startswith(RETRY_PREFIX):
                holders[queue].append(member.client_id)
    for queue, clients in sorted(holders.items()):
        if len(clients) > 1:
            yield warning(
                "queue-with-two-members",
                f"{queue} is consumed by {len(clients)} members of group {facts.group!r} at "
                f"once: {listed(sorted(clients))}",
                "give all members the same allocation, and each a client id of its own (instance)",
                queue=str(queue),
                members=sorted(clients),
            )


def _all_reported(facts: GroupFacts, limits: Thresholds) -> bool:
    """Whether every member reported its queues, and had time to get them.

    Who polls may have chosen its queues itself.
    """
    return bool(facts.members) and all(
        member.polls is False and _has_settled(member, limits) for member in facts.members
    )


def _has_settled(member: MemberFacts, limits: Thresholds) -> bool:
    return (
        member.queues is not None
        and member.started_ms is not None
        and member.asked_ms - member.started_ms >= limits.settle_ms
    )
