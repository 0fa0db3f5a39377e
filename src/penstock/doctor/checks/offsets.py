"""Where the group stands: against the queues' ends, in its retries, in what it gave up on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.doctor.checks.thresholds import Thresholds
from penstock.doctor.facts import GroupFacts, QueueFacts, TopicFacts
from penstock.doctor.findings import Finding, critical, listed, note, plural, warning

_STARTS = {
    "CONSUME_FROM_LAST_OFFSET": "the end: what was sent before it came is skipped",
    "CONSUME_FROM_FIRST_OFFSET": "the first message",
    "CONSUME_FROM_TIMESTAMP": "a time",
}


def never_committed(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """A running consumer commits every five seconds, also in queues in which nothing comes."""
    oldest = min((m.started_ms for m in facts.members if m.started_ms), default=None)
    if oldest is not None and facts.now_ms - oldest < limits.settle_ms:
        return
    held = {queue for member in facts.members for queue in member.queues or ()}
    for topic in facts.topics:
        never = [
            q
            for q in topic.queues
            if q.is_committed_known
            and q.committed is None
            and q.max_offset > 0
            # A queue that no member holds is another matter.
            and (q.queue in held or not held)
        ]
        if not never:
            continue
        starts = next((m.starts_from for m in facts.members if m.starts_from), None)
        begins = "" if starts is None else f"; it begins at {_STARTS.get(starts, starts)}"
        messages = sum(q.max_offset - q.min_offset for q in never)
        yield warning(
            "never-committed",
            f"group {facts.group!r} has no offset in {len(never)} of {len(topic.queues)} queues "
            f"of topic {topic.name!r}, which hold {plural(messages, 'message')}{begins}",
            f"penstock group reset {facts.group} --topic {topic.name} --to first",
            topic=topic.name,
            queues=_names(never),
            messages=messages,
            starts_from=starts,
        )


def behind_first(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """Brokers delete old messages, consumed or not (fileReservedTime, and when the disk fills)."""
    for topic in facts.topics:
        behind = [q for q in topic.queues if q.committed is not None and q.committed < q.min_offset]
        if behind:
            lost = sum(q.min_offset - (q.committed or 0) for q in behind)
            yield warning(
                "behind-first",
                f"group {facts.group!r} stands before the first message in {len(behind)} of "
                f"{len(topic.queues)} queues of topic {topic.name!r}: {plural(lost, 'message')} "
                "were deleted before it consumed them",
                f"penstock group reset {facts.group} --topic {topic.name} --to first",
                "keep messages longer: fileReservedTime (hours) on the broker",
                topic=topic.name,
                lost=lost,
                queues=_ends(behind),
            )


def beyond_last(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """A queue shorter than what was consumed of it: the broker's store was lost or replaced."""
    for topic in facts.topics:
        beyond = [q for q in _beyond(topic) if not q.is_remade]
        if beyond:
            yield critical(
                "beyond-last",
                f"group {facts.group!r} stands past the end in {len(beyond)} of "
                f"{len(topic.queues)} queues of topic {topic.name!r}, as at {beyond[0].queue}: "
                f"offset {beyond[0].committed}, and the last message is before "
                f"{beyond[0].max_offset}; was the broker's store replaced?",
                f"penstock group reset {facts.group} --topic {topic.name} --to first",
                f"penstock group reset {facts.group} --topic {topic.name} --to last",
                topic=topic.name,
                queues=_ends(beyond),
            )


def topic_remade(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """The offsets of a deleted topic mean nothing in one that has its name: messages are skipped.

    Penstock's own clients notice it. Others keep their offsets, and commit them again.
    """
    for topic in facts.topics:
        stale = [q for q in _beyond(topic) if q.is_remade]
        if stale:
            skipped = sum(q.max_offset - q.min_offset for q in stale)
            yield critical(
                "topic-remade",
                f"topic {topic.name!r} was deleted and created again, and group {facts.group!r} "
                f"has offsets of the old one in {len(stale)} of {len(topic.queues)} queues, as at "
                f"{stale[0].queue}: offset {stale[0].committed}, and the last message is before "
                f"{stale[0].max_offset}; {plural(skipped, 'message')} are not delivered",
                f"penstock group reset {facts.group} --topic {topic.name} --to first",
                "restart the members of the group that are not of Penstock: they keep the offsets "
                "of the old topic",
                topic=topic.name,
                queues=_ends(stale),
            )


def next_unreadable(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """The next message is damaged on the broker's disk, so the queue does not go on."""
    for topic in facts.topics:
        for q in topic.queues:
            if q.read_error is None:
                continue
            following = max(q.committed or 0, q.min_offset) + 1
            yield critical(
                "next-unreadable",
                f"the next message of group {facts.group!r} in {q.queue} cannot be read: "
                f"{q.read_error}",
                f"on the machine of {q.queue.broker_name}: penstock store verify DIR, which names "
                "all that is damaged",
                # To go on behind it.
                f"penstock group reset {facts.group} --topic {topic.name} --queue "
                f"{q.queue.broker_name}:{q.queue.queue_id} --to {following}",
                topic=topic.name,
                queue=str(q.queue),
                offset=following - 1,
                error=q.read_error,
            )


def _beyond(topic: TopicFacts) -> list[QueueFacts]:
    return [q for q in topic.queues if q.committed is not None and q.committed > q.max_offset]


def retry_backlog(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """Retries that are due but not consumed; delayed ones are not counted."""
    if facts.retry_lag:
        behind = [q for q in facts.retries if q.lag]
        yield warning(
            "retry-backlog",
            f"{plural(facts.retry_lag, 'failed message')} of group {facts.group!r} "
            f"{'waits' if facts.retry_lag == 1 else 'wait'} for the next attempt",
            f"penstock group lag {facts.group}",
            "look at why its handler fails: what the consumer logs, or penstock dlq list "
            f"{facts.group}",
            waiting=facts.retry_lag,
            queues=_ends(behind),
        )


def dead_letters(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """They stay until they are redriven or expire."""
    letters = facts.dead_letters
    if letters is None or not letters.count:
        return
    reason = letters.newest_reason or "not recorded"
    yield warning(
        "dead-letters",
        f"group {facts.group!r} gave up on {plural(letters.count, 'message')}; the reason of the "
        f"newest: {reason}",
        f"penstock dlq list {facts.group}",
        f"penstock dlq redrive {facts.group} --dry-run",
        dead_letters=letters.count,
        newest_reason=letters.newest_reason,
        newest_msg_id=letters.newest_msg_id,
        newest_ms=letters.newest_ms or None,
    )


def open_transactions(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """Messages of a transaction are hidden until their producers say that it was committed."""
    for topic in facts.topics:
        waiting = [
            one
            for one in facts.transactions
            if one.topic == topic.name
            and (one.is_given_up or facts.now_ms - one.born_ms > limits.stuck_ms)
        ]
        if not waiting:
            continue
        producers = sorted({one.group for one in waiting})
        given_up = sum(one.is_given_up for one in waiting)
        yield warning(
            "open-transactions",
            f"{plural(len(waiting), 'message')} of topic {topic.name!r} wait for their "
            f"transactions, which the producers of {listed(producers)} have not decided; "
            f"brokers have given up {given_up} of them",
            "penstock transaction list",
            f"start a producer of {listed(producers)} with check_transaction; then resume "
            "those given up: penstock transaction resume",
            topic=topic.name,
            producers=producers,
            waiting=len(waiting),
            given_up=given_up,
            msg_ids=[one.msg_id for one in waiting[:8]],
        )


def timers_not_due(facts: GroupFacts, limits: Thresholds) -> Iterator[Finding]:
    """Reported only if the group has consumed everything else: its next message is one of them."""
    for topic in facts.topics:
        waiting = facts.timers.get(topic.name, 0)
        if waiting and not any(q.lag for q in topic.queues):
            yield note(
                "timers-not-due",
                f"{plural(waiting, 'message')} of topic {topic.name!r} wait for their time, and "
                "the group has consumed all others",
                f"penstock timer list --topic {topic.name}",
                topic=topic.name,
                waiting=waiting,
            )


def _names(queues: Iterable[QueueFacts]) -> list[str]:
    return [str(q.queue) for q in queues]


def _ends(queues: Iterable[QueueFacts]) -> list[dict[str, object]]:
    return [
        {
            "queue": str(q.queue),
            "committed": q.committed,
            "first": q.min_offset,
            "end": q.max_offset,
        }
        for q in queues
    ]
