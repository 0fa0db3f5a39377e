"""One run: a cluster executes its plan, then the faults stop and all messages must drain."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import tempfile
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simulation.clients import Member, Scene, SimulatedProducer
from tests.simulation.ledger import LOCK_TRUST, Broken, Ledger
from tests.simulation.plan import NETWORKS, ROUGH, Event, Fault, GroupPlan, Plan, plan
from tests.simulation.servers import BrokerSlot, NameServerSlot
from tests.simulation.timers import Reminders, SimulatedReminder
from tests.simulation.transactions import SimulatedBank, Table

from penstock.model import MessageQueue
from penstock.model.names import RETRY_PREFIX, TRANSACTION_GROUP
from penstock.testing.virtual_time.loop import VirtualLoop, run_virtual

CHECK_SECONDS = 1.0
DRAIN_STEP = 5.0
PATIENCE_SECONDS = 1200.0
MEMBERS_PER_GROUP = 4
SLOW_THREADS = (0.0, 0.2)
"""The time that a flush or a plain handler takes in a thread, so that kills can interrupt it."""
CLOCK_STEPS = (-120.0, -7.0, -0.4, 0.4, 7.0, 120.0, 100_000.0)
"""Seconds that a clock is set by; what waits for a time waits longer where it is set back."""
NOTES_KEPT = 80
TRACE_SHOWN = 20
MEMORY_DISK = Path("/dev/shm")
"""Stores are in memory where this exists: a simulated death needs no real disk."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a run; equal for equal seeds."""

    seed: int
    acknowledged: int
    handled: int
    dead_letters: int
    virtual_seconds: float
    digest: str


class SimulationFailed(AssertionError):
    """A seed broke a promise; the text contains what is needed to investigate it."""


class World:
    """The cluster, its clients and the ledger."""

    def __init__(self, loop: VirtualLoop, the_plan: Plan, root: Path) -> None:
        self.loop = loop
        self.plan = the_plan
        self.notes: deque[str] = deque(maxlen=NOTES_KEPT)
        self.ledger = Ledger()
        for group in the_plan.groups:
            self.ledger.add_group(group.name, orderly=group.orderly, max_retries=group.max_retries)
        self._scene = Scene(
            loop,
            self.ledger,
            random.Random(f"world {the_plan.seed}"),
            self._locks_are_safe,
            self.note,
        )
        self._name_server = NameServerSlot(loop)
        self._brokers = [
            BrokerSlot(loop, n + 1, root, has_power_cuts=the_plan.has_power_cuts)
            for n in range(the_plan.brokers)
        ]
        self._producers = [
            SimulatedProducer(self._scene, the_plan, n) for n in range(the_plan.producers)
        ]
        self._transactions = Table()
        banks = [
            SimulatedBank(
                self._scene, self._transactions, the_plan.transactions, the_plan.busy_seconds, n
            )
            for n in range(2 if the_plan.transactions else 0)
        ]
        self._timers = Reminders()
        reminders = [
            SimulatedReminder(self._scene, self._timers, the_plan.timers, the_plan.busy_seconds)
            for _ in range(1 if the_plan.timers else 0)
        ]
        self._others: list[SimulatedBank | SimulatedReminder] = [*banks, *reminders]
        self._members: list[Member] = []
        self._numbers = 0

    def note(self, text: str) -> None:
        """Add a line to the log that is printed after a failure."""
        self.notes.append(f"{self.loop.time():9.3f}  {text}")

    def fail(self, error: Broken) -> None:
        """Record a broken promise; the next check raises it."""
        self._scene.fail(error)

    # --------------------------------------------------------------------------------- the run

    async def run(self) -> Summary:
        loop = self.loop
        loop.network.conditions = NETWORKS[self.plan.network]
        loop.executor_latency = SLOW_THREADS
        await self._name_server.start()
        for slot in self._brokers:
            await slot.start()
        for group in self.plan.groups:
            for _ in range(group.members):
                await self._join(group)
        watch = loop.create_task(self._watch())
        begun = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for producer in self._producers:
                tasks.create_task(producer.run())
            for other in self._others:
                tasks.create_task(other.run())
            for event in self.plan.events:
                tasks.create_task(self._apply(event, begun))
        await self._end_faults()
        await self._drain()
        self._check()
        dead = self._check_end()
        watch.cancel()
        await asyncio.wait((watch,))
        await self._shut_down()
        return Summary(
            self.plan.seed,
            sum(map(len, self.ledger.acknowledged.values())),
            sum(sum(group.succeeded.values()) for group in self.ledger.groups.values()),
            dead,
            round(loop.time(), 3),
            loop.trace.digest(),
        )

    async def _end_faults(self) -> None:
        """End all faults, heal the network and give every group a member."""
        self.note("the faults are over")
        self._scene.is_rough = False
        self.loop.network.heal()
        self.loop.network.conditions = NETWORKS[self.plan.network]
        for group in self.plan.groups:
            while not any(member.group == group.name for member in self._members):
                await self._join(group)

    async def _drain(self) -> None:
        # Traffic held back by a partition arrives now and may add work.
        await asyncio.sleep(DRAIN_STEP)
        waited = 0.0
        while self._unfinished() and waited < PATIENCE_SECONDS:
            self._check()
            await asyncio.sleep(DRAIN_STEP)
            waited += DRAIN_STEP

    async def _shut_down(self) -> None:
        for member in self._members:
            await member.leave()
        for other in self._others:
            await other.stop()
        for slot in self._brokers:
            await slot.stop()
        await self._name_server.stop()
        # A connection that was just closed notifies its protocol in the next turn.
        await asyncio.sleep(1)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            raise Broken("tasks are left:\n" + self.loop.describe_tasks())

    # ------------------------------------------------------------------------------- promises

    def _locks_are_safe(self, broker_name: str) -> bool:
        slot = next(slot for slot in self._brokers if slot.name == broker_name)
        return slot.broker is not None and self.loop.time() > slot.forgot_locks_at + LOCK_TRUST

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                self._check()
            except Broken as error:
                if error not in self._scene.broken:
                    self._scene.fail(error)
                return

    def _check(self) -> None:
        """Check what must hold at any time."""
        if self._scene.broken:
            raise self._scene.broken[0]
        for member in self._members:
            member.check_bounds()
        for slot in self._brokers:
            if slot.broker is not None:
                for topic, group, queue_id, offset in slot.broker.state.offsets.entries():
                    if group == TRANSACTION_GROUP:
                        continue
                    queue = MessageQueue(topic, slot.name, queue_id)
                    self.ledger.groups[group].check_commit(queue, offset)

    def _unfinished(self) -> str:
        """The reason why the run has not drained yet; empty when it has."""
        for group in self.plan.groups:
            dead = self._dead_letters(group.name)
            acknowledged = {b for topic in group.topics for b in self.ledger.acknowledged[topic]}
            missing = self.ledger.groups[group.name].missing(
                acknowledged,
                dead,
                power_was_cut=any(slot.had_power_cut for slot in self._brokers),
            )
            if missing:
                return f"{group.name} lost {len(missing)} acknowledged messages: {missing[:5]}"
            behind = self._behind(group)
            if behind:
                return f"{group.name} does not reach the end of {behind}"
        return self._transactions.unfinished(self._brokers) or self._timers.unfinished(
            self._brokers
        )

    def _behind(self, group: GroupPlan) -> str:
        topics = {*group.topics, RETRY_PREFIX + group.name}
        for slot in self._brokers:
            assert slot.broker is not None, "the faults are over"
            for queue, end in slot.ends().items():
                if queue.topic in topics and end:
                    at = slot.broker.state.offsets.committed(
                        group.name, queue.topic, queue.queue_id
                    )
                    if at != end:
                        return f"{queue}: committed {at}, end {end}"
        return ""

    def _dead_letters(self, group: str) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for slot in self._brokers:
            for message in slot.dead_letters(group):
                found[message.body] = found.get(message.body, 0) + 1
        return found

    def _check_end(self) -> int:
        """Check what must hold after draining; return the number of dead letters."""
        if left := self._unfinished():
            raise Broken(left)
        self._transactions.check_end(self._brokers)
        self._timers.check_end(self._brokers)
        count = 0
        for name, group in self.ledger.groups.items():
            dead = self._dead_letters(name)
            group.check_dead_letters(dead)
            count += len(dead)
        return count

    # --------------------------------------------------------------------------------- faults

    async def _join(self, group: GroupPlan) -> None:
        self._numbers += 1
        member = Member(self._scene, group, self._numbers)
        self.note(f"{member.name} joins from {member.host}")
        # A member counts before it starts: its actions before start() returns are checked too.
        self._members.append(member)
        if not await member.start() and member in self._members:
            self._members.remove(member)

    def _take(self, pick: int) -> Member | None:
        """Remove a member to be stopped, unless it is the last one of its group."""
        groups = [member.group for member in self._members]
        spare = [member for member in self._members if groups.count(member.group) > 1]
        if not spare:
            return None
        member = spare[pick % len(spare)]
        self._members.remove(member)
        return member

    async def _apply(self, event: Event, begun: float) -> None:
        await asyncio.sleep(begun + event.at - self.loop.time())
        self.note(f"{event}")
        await self._faults[event.fault](self, event)

    async def _on_join(self, event: Event) -> None:
        group = self.plan.groups[event.pick % len(self.plan.groups)]
        present = [member for member in self._members if member.group == group.name]
        if len(present) < MEMBERS_PER_GROUP:
            await self._join(group)

    async def _on_leave(self, event: Event) -> None:
        member = self._take(event.pick)
        if member is not None:
            self.note(f"{member.name} leaves")
            await member.leave()
            self.note(f"{member.name} has left")

    async def _on_death(self, event: Event) -> None:
        member = self._take(event.pick)
        if member is not None:
            self.note(f"{member.name} is killed")
            await member.die(silent=event.fault is Fault.VANISH)

    async def _on_cut(self, event: Event) -> None:
        connections = sorted(self.loop.network.connections.items())
        if connections:
            number, connection = connections[event.pick % len(connections)]
            self.note(f"{connection} is cut")
            seen = "both"
            if event.fault is Fault.HALF_CUT:
                seen = ("client", "server")[number % 2]
            connection.cut("both" if seen == "both" else "client" if seen == "client" else "server")

    async def _on_isolation(self, event: Event) -> None:
        hosts = {
            Fault.ISOLATE_MEMBER: [member.host for member in self._members],
            Fault.ISOLATE_PRODUCER: [producer.host for producer in self._producers]
            + [other.host for other in self._others],
            Fault.ISOLATE_BROKER: [slot.host for slot in self._brokers],
        }[event.fault]
        if hosts:
            host = hosts[event.pick % len(hosts)]
            self.note(f"{host} is isolated")
            self.loop.network.isolate(host)
            await asyncio.sleep(event.lasts)
            self._heal()

    async def _on_split(self, event: Event) -> None:
        if self._members:
            member = self._members[event.pick % len(self._members)]
            slot = self._brokers[event.pick % len(self._brokers)]
            self.note(f"{member.name} and {slot.name} cannot connect")
            self.loop.network.partition(member.host, slot.host, one_way=event.pick % 3 == 0)
            await asyncio.sleep(event.lasts)
            self._heal()

    def _heal(self) -> None:
        self.note("the network is healed")
        self.loop.network.heal()

    async def _on_broker(self, event: Event) -> None:
        slot = self._brokers[event.pick % len(self._brokers)]
        if slot.is_changing:
            return
        slot.is_changing = True
        if event.fault is Fault.RESTART_BROKER:
            await slot.stop()
        else:
            await slot.kill(silent=event.fault is Fault.POWER_OFF_BROKER)
        await asyncio.sleep(event.lasts)
        await slot.start()
        slot.is_changing = False
        self.note(f"{slot.name} is back")

    async def _on_name_server(self, event: Event) -> None:
        if self._name_server.is_up:
            await self._name_server.stop()
            await asyncio.sleep(event.lasts)
            await self._name_server.start()
            self.note("the name server is back")

    async def _on_rough(self, event: Event) -> None:
        self.loop.network.conditions = ROUGH
        await asyncio.sleep(event.lasts)
        self.loop.network.conditions = NETWORKS[self.plan.network]

    async def _on_clock(self, event: Event) -> None:
        """Set a clock ahead or back; some are set right again, others stay wrong to the end."""
        slot = self._brokers[event.pick % len(self._brokers)]
        by = CLOCK_STEPS[event.pick // len(self._brokers) % len(CLOCK_STEPS)]
        self.note(f"the clock of {slot.name} is set by {by:.0f} s")
        slot.set_clock(by)
        if event.pick % 2:
            await asyncio.sleep(event.lasts)
            self.note(f"the clock of {slot.name} is set right")
            slot.set_clock(-by)

    _faults: dict[Fault, Callable[[World, Event], Coroutine[Any, Any, None]]] = {  # noqa: RUF012
        Fault.JOIN: _on_join,
        Fault.LEAVE: _on_leave,
        Fault.DIE: _on_death,
        Fault.VANISH: _on_death,
        Fault.CUT: _on_cut,
        Fault.HALF_CUT: _on_cut,
        Fault.ISOLATE_MEMBER: _on_isolation,
        Fault.ISOLATE_PRODUCER: _on_isolation,
        Fault.ISOLATE_BROKER: _on_isolation,
        Fault.SPLIT: _on_split,
        Fault.RESTART_BROKER: _on_broker,
        Fault.KILL_BROKER: _on_broker,
        Fault.POWER_OFF_BROKER: _on_broker,
        Fault.RESTART_NAME_SERVER: _on_name_server,
        Fault.ROUGH: _on_rough,
        Fault.SET_CLOCK: _on_clock,
    }


class _ErrorWatch(logging.Handler):
    """Collects logged exceptions: the failure of a background task shows only in the log."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = Broken(f"logged by {record.name}: {self.format(record)}")
            self._world.fail(error)


def run_seed(seed: int, root: Path | None = None, *, is_big: bool = False) -> Summary:
    """Run one seed; `SimulationFailed` states what broke and how to repeat it."""
    the_plan = plan(seed, is_big=is_big)
    home = root or (MEMORY_DISK if os.access(MEMORY_DISK, os.W_OK) else None)
    worlds: list[World] = []

    async def main(loop: VirtualLoop) -> Summary:
        worlds.append(World(loop, the_plan, Path(directory)))
        watch = _ErrorWatch(worlds[0])
        logger = logging.getLogger("penstock")
        logger.addHandler(watch)
        try:
            return await worlds[0].run()
        finally:
            logger.removeHandler(watch)

    # Removed after the loop is closed: brokers of a failed run write until then.
    with tempfile.TemporaryDirectory(dir=home, prefix=f"penstock-seed-{seed}-") as directory:
        try:
            return run_virtual(main, seed=seed)
        except Exception as error:
            raise SimulationFailed(_report(the_plan, worlds, error, is_big=is_big)) from error


def _report(the_plan: Plan, worlds: list[World], error: Exception, *, is_big: bool) -> str:
    lines = [f"{type(error).__name__}: {error}", "", str(the_plan)]
    for world in worlds:
        lines += ["", "The last events:", *world.notes]
        lines += ["", "The end of the loop's trace:"]
        lines += [str(event) for event in world.loop.trace.events[-TRACE_SHOWN:]]
    big = " --big" if is_big else ""
    lines += ["", f"Repeat with: python -m tools.soak --seed {the_plan.seed}{big}"]
    return "\n".join(lines)
