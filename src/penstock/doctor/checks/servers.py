"""Name servers and brokers: reachable, agreeing, on time."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.doctor.checks.thresholds import Thresholds
from penstock.doctor.facts import ClusterFacts
from penstock.doctor.findings import Finding, critical, duration, warning

REGISTRATION_SECONDS = 120
"""How long a name server keeps a broker it does not hear of."""


def nameserver_unreachable(facts: ClusterFacts, limits: Thresholds) -> Iterator[Finding]:
    """Clients use whichever name server answers; without any they find nothing."""
    silent = [server for server in facts.nameservers if server.error is not None]
    found = critical if len(silent) == len(facts.nameservers) else warning
    for server in silent:
        yield found(
            "nameserver-unreachable",
            f"name server {server.address} does not answer: {server.error}; "
            f"{len(facts.nameservers) - len(silent)} of {len(facts.nameservers)} do",
            "penstock up",
            "check the address: --namesrv HOST:PORT, NAMESRV_ADDR, or the context in use",
            nameserver=server.address,
            answering=len(facts.nameservers) - len(silent),
            nameservers=len(facts.nameservers),
        )


def no_broker(facts: ClusterFacts, limits: Thresholds) -> Iterator[Finding]:
    """A name server without brokers knows no topic."""
    answering = [server.address for server in facts.nameservers if server.error is None]
    if answering and not facts.brokers:
        yield critical(
            "no-broker",
            f"no broker is registered at name server {', '.join(answering)}",
            f"penstock broker --namesrv {answering[0]}",
            "is a broker running, and does its namesrvAddr name this address?",
            nameservers=answering,
            brokers=0,
        )


def broker_unreachable(facts: ClusterFacts, limits: Thresholds) -> Iterator[Finding]:
    """What its queues hold cannot be had until it is back; the name server forgets it later."""
    for broker in facts.brokers:
        if broker.error is None:
            continue
        seen_by = [
            server.address
            for server in facts.nameservers
            if server.brokers.get((broker.name, broker.broker_id)) == broker.address
        ]
        found = critical if broker.broker_id == 0 else warning
        yield found(
            "broker-unreachable",
            f"broker {broker.name} (id {broker.broker_id}) is registered at "
            f"{', '.join(seen_by)} as {broker.address}, and does not answer there: {broker.error}",
            "penstock cluster overview",
            f"start it again; a broker that is gone for good is forgotten "
            f"{REGISTRATION_SECONDS} s after it was last heard of",
            broker=broker.name,
            broker_id=broker.broker_id,
            address=broker.address,
            nameservers=seen_by,
        )


def stale_registration(facts: ClusterFacts, limits: Thresholds) -> Iterator[Finding]:
    """Name servers do not share state: each has only what brokers registered with it."""
    answering = [server for server in facts.nameservers if server.error is None]
    registered = {key: address for server in answering for key, address in server.brokers.items()}
    for name, broker_id in sorted(registered):
        said = {
            server.address: server.brokers.get((name, broker_id), "not registered")
            for server in answering
        }
        if len(set(said.values())) > 1:
            answers = "; ".join(f"{server} says {address}" for server, address in said.items())
            yield warning(
                "stale-registration",
                f"the name servers do not agree about broker {name} (id {broker_id}): {answers}",
                "penstock cluster overview",
                "have every broker register with every name server (namesrvAddr), and give "
                "clients the same list",
                broker=name,
                broker_id=broker_id,
                said=said,
            )
    for broker in facts.brokers:
        if broker.said_name is not None and broker.said_name != broker.name:
            yield critical(
                "stale-registration",
                f"broker {broker.name} is registered as {broker.address}, where a broker called "
                f"{broker.said_name} answers: the entry is left over",
                "penstock cluster overview",
                f"wait {REGISTRATION_SECONDS} s for the name server to forget it; two brokers "
                "must not have one address",
                broker=broker.name,
                address=broker.address,
                answers_as=broker.said_name,
            )


def clock_skew(facts: ClusterFacts, limits: Thresholds) -> Iterator[Finding]:
    """Offsets by time, delays and ages depend on the clocks of the servers."""
    for broker in facts.brokers:
        ahead = broker.clock_ahead_ms
        if ahead is None or abs(ahead) - broker.clock_precision_ms <= limits.skew_ms:
            continue
        yield warning(
            "clock-skew",
            f"the clock of broker {broker.name} ({broker.address}) is {duration(ahead)} "
            f"{'ahead of' if ahead > 0 else 'behind'} this machine's",
            "have both machines keep time with NTP; until then give offsets, not times, to "
            "penstock group reset",
            broker=broker.name,
            ahead_seconds=round(ahead / 1000, 1),
            precision_seconds=round(broker.clock_precision_ms / 1000, 1),
        )


def disk_full(facts: ClusterFacts, limits: Thresholds) -> Iterator[Finding]:
    """Nothing new can be stored there; what is stored can still be read."""
    for broker in facts.brokers:
        used = broker.disk_used
        if used is None or used < limits.disk_used:
            continue
        yield critical(
            "disk-full",
            f"the disk of broker {broker.name} ({broker.address}) is {used:.0%} full: sends are "
            "refused, topics cannot be made",
            "make room on that disk; messages are taken again after the next round of cleaning",
            "keep messages for a shorter time: fileReservedTime, in hours",
            broker=broker.name,
            disk_used=used,
        )


def store_damaged(facts: ClusterFacts, limits: Thresholds) -> Iterator[Finding]:
    """Consumers of such a queue get what precedes the damage, and nothing behind it."""
    for broker in facts.brokers:
        if broker.store_damage is None:
            continue
        yield critical(
            "store-damaged",
            f"broker {broker.name} ({broker.address}) cannot read messages: {broker.store_damage}",
            "on its machine: penstock store verify DIR, which names all that is damaged",
            "a damaged queue: stop the broker, then penstock store repair DIR",
            "a damaged record of the log: penstock group reset moves a group past it",
            broker=broker.name,
            store_damage=broker.store_damage,
        )
