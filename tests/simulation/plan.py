"""The events of one simulated cluster, chosen by a seed before the run starts, and printable.

The plan lists the participants, the network conditions and the faults with their times. What is
known only during the run, such as which connections exist, is selected by the number in the event.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from penstock.testing.virtual_time.network import LAN, Conditions

WIDE = Conditions(latency=(0.002, 0.06), split=0.1)
ROUGH = Conditions(latency=(0.001, 0.2), split=0.2, refuse=0.05, lose=0.001)
NETWORKS = {"lan": LAN, "wide": WIDE, "rough": ROUGH}

# A lock lasts a minute at the broker, and its holder trusts it for half of that; members that
# are isolated for longer are the interesting cases.
LONGEST_CUT = 75.0
TRANSACTIONS_EVERY = 8
"""One small cluster of so many has transactions, and every big one."""
TIMERS_EVERY = 8
"""The same for timer messages."""


class Fault(StrEnum):
    """The faults of a simulated cluster."""

    JOIN = "a consumer joins"
    LEAVE = "a consumer leaves"
    DIE = "a consumer is killed"
    VANISH = "a consumer's machine fails"
    CUT = "a connection is cut"
    HALF_CUT = "a connection is cut, unnoticed by one end"
    ISOLATE_MEMBER = "a consumer is isolated"
    ISOLATE_PRODUCER = "a producer is isolated"
    ISOLATE_BROKER = "a broker is isolated"
    SPLIT = "a consumer and a broker cannot connect"
    RESTART_BROKER = "a broker is restarted"
    KILL_BROKER = "a broker is killed"
    POWER_OFF_BROKER = "a broker's machine fails"
    RESTART_NAME_SERVER = "the name server is restarted"
    ROUGH = "the network is rough"
    SET_CLOCK = "the clock of a broker is set"


_WEIGHTS: dict[Fault, int] = {
    Fault.JOIN: 8,
    Fault.LEAVE: 4,
    Fault.DIE: 3,
    Fault.VANISH: 2,
    Fault.CUT: 4,
    Fault.HALF_CUT: 2,
    Fault.ISOLATE_MEMBER: 3,
    Fault.ISOLATE_PRODUCER: 1,
    Fault.ISOLATE_BROKER: 2,
    Fault.SPLIT: 2,
    Fault.RESTART_BROKER: 2,
    Fault.KILL_BROKER: 2,
    Fault.POWER_OFF_BROKER: 1,
    Fault.RESTART_NAME_SERVER: 1,
    Fault.ROUGH: 2,
    Fault.SET_CLOCK: 2,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One fault: its time, its duration, and a number that selects the target."""

    at: float
    fault: Fault
    lasts: float
    pick: int

    def __str__(self) -> str:
        return f"{self.at:7.1f} s  {self.fault} (for {self.lasts:.1f} s, pick {self.pick})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """One consumer group and its consumer settings."""

    name: str
    orderly: bool
    topics: tuple[str, ...]
    members: int
    threads: int
    batch_size: int
    queue_limit: int
    max_span: int
    pull_batch_size: int
    max_retries: int
    is_async: bool
    """Whether handlers are coroutines that take time; synchronous ones return at once."""
    failing: float
    """The probability that a handler fails while faults last."""
    slowest: float
    """The maximum duration of a handler, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of one run."""

    seed: int
    brokers: int
    has_power_cuts: bool
    """Whether a failed machine loses unsynced data; brokers then flush before acknowledging."""
    queues: int
    producers: int
    messages: int
    rush: float
    """The part of the busy time in which messages are sent; a shorter part builds a backlog."""
    linger: float
    network: str
    groups: tuple[GroupPlan, ...]
    poisoned: float
    """The fraction of messages on which every handler fails."""
    busy_seconds: float
    events: tuple[Event, ...]
    transactions: int = 0
    """Begun by each of two members of a producer group."""
    timers: int = 0
    """Messages that are to be delivered later."""

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({topic for group in self.groups for topic in group.topics}))

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.brokers} brokers, {self.queues} queues per topic, network "
            f"{self.network}, busy {self.busy_seconds:.0f} s"
            + (", power cuts" if self.has_power_cuts else ""),
            f"  {self.producers} producers send {self.messages} messages in {self.rush:.0%} of it, "
            f"linger {self.linger} s, {self.poisoned:.0%} poisoned, "
            f"{self.transactions} transactions each of two more, {self.timers} timers",
        ]
        lines += [f"  {group}" for group in self.groups]
        lines += [f"  {event}" for event in self.events]
        return "\n".join(lines)


def plan(seed: int, *, is_big: bool = False) -> Plan:
    """The plan for a seed; a big one has more of everything."""
    chance = random.Random(f"plan {seed} {is_big}")
    scale = 4 if is_big else 1
    busy = chance.uniform(30, 70) * scale
    groups = _groups(chance, scale)
    return Plan(
        seed=seed,
        brokers=chance.choice([1, 1, 2] if not is_big else [2, 3, 4]),
        has_power_cuts=chance.random() < 0.3,
        queues=chance.choice([1, 2, 3]) if not is_big else chance.choice([4, 8]),
        producers=chance.randint(1, 2) * scale,
        messages=chance.randint(60, 250) * scale,
        rush=chance.choice([0.05, 0.3, 0.6, 1.0]),
        linger=chance.choice([0.0, 0.0, 0.01]),
        network=chance.choice(["lan", "lan", "wide"]),
        groups=groups,
        poisoned=chance.choice([0.0, 0.02, 0.05]),
        busy_seconds=busy,
        events=_events(chance, busy, scale),
        transactions=10 * scale if is_big or seed % TRANSACTIONS_EVERY == 5 else 0,
        timers=40 * scale if is_big or seed % TIMERS_EVERY == 3 else 0,
    )


def _groups(chance: random.Random, scale: int) -> tuple[GroupPlan, ...]:
    kinds = chance.choice([(True,), (True,), (False,), (False,), (True, False)])
    if scale > 1:
        kinds = chance.choice([(True, False), (True, True, False), (True, False, False)])
    groups = []
    for number, orderly in enumerate(kinds):
        topics = chance.choice([("orders",), ("orders",), ("orders", "events")])
        groups.append(
            GroupPlan(
                name=f"{'ledger' if orderly else 'billing'}-{number}",
                orderly=orderly,
                topics=topics,
                members=chance.randint(1, 2) * scale,
                threads=chance.choice([1, 3, 20]),
                batch_size=chance.choice([1, 1, 1, 4]),
                queue_limit=chance.choice([4, 20, 1000]),
                max_span=chance.choice([10, 2000]),
                pull_batch_size=chance.choice([3, 8, 32]),
                max_retries=chance.choice([1, 2, 3]),
                is_async=chance.random() < 0.8,
                failing=chance.choice([0.0, 0.05, 0.2]),
                # A queue may be released under a handler that runs longer than half a second.
                slowest=chance.choice([0.05, 0.4, 0.45]) if orderly else chance.choice([0.1, 3.0]),
            )
        )
    return tuple(groups)


def _events(chance: random.Random, busy: float, scale: int) -> tuple[Event, ...]:
    events: list[Event] = []
    at = 0.0
    while True:
        at += chance.uniform(1, 12) / scale
        if at >= busy:
            return tuple(events)
        fault = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        lasts = chance.choice([chance.uniform(0.1, 3), chance.uniform(1, 20)])
        if chance.random() < 0.15:
            lasts = chance.uniform(20, LONGEST_CUT)
        events.append(Event(at, fault, min(lasts, busy * 1.5 - at), chance.randrange(1 << 16)))
