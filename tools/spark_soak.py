"""Spark source, failing handlers and sink with kills; accounts for every message.

    python -m tools.spark_soak --messages 200000 --kills 10 --broker-kills 3

A broker process, a Spark process and this one. The Spark process runs two queries: one hands the
messages of a topic to a handler that fails at random (`consume`), one copies the topic through
source and sink. Both Spark and the broker are killed with SIGKILL and started again. At the end
every message must be handled or be a dead letter, and its copy must exist exactly once. Prints the
result as JSON; exits with 1 if a message is missing or copied twice.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock import Admin, DeadLetter, Message, Producer, RetryLater
from penstock.columnar.row_ids import ROW_PROPERTY
from penstock.errors import PenstockError
from penstock.model import StoredMessage
from penstock.runtime.child_process import ChildProcess
from penstock.spark.source.fetch import Fetcher
from penstock.spark.source.options import parse_read
from penstock.spark.source.planning import tasks
from penstock.spark.source.positions import Positions

ROOT = Path(__file__).parent.parent
IN, OUT, GROUP = "soak-in", "soak-out", "soak"
HANDLING, COPYING = "handling", "copying"
"""The checkpoints of the two queries."""
QUEUES = 4
MAX_RETRIES = 3
BURST = 200
START_SECONDS = 180.0
PATIENCE_SECONDS = 240.0
POLL_SECONDS = 0.5
DELAYS = " ".join(["1s"] * 18)
"""With the usual delays a soak would take days."""
FAILING, LATER, GIVEN_UP = 0.06, 0.10, 0.12
"""Cumulative shares of calls that raise, raise `RetryLater`, raise `DeadLetter`."""


@dataclass(frozen=True)
class Plan:
    """The size of the run and the number of kills."""

    messages: int = 20_000
    kills: int = 2
    broker_kills: int = 1
    seed: int = 1


@dataclass
class Fates:
    """The outcome of the messages; ``copies_again`` must be 0, the last four fields empty."""

    messages: int
    calls: int
    handled: int
    handled_again: int
    dead_letters: int
    copies: int
    copies_again: int
    kills: int
    broker_kills: int
    lost_by_handler: list[int]
    lost_by_sink: list[int]
    copied_twice_when_deduplicated: list[int]
    unknown: list[int]

    @property
    def is_good(self) -> bool:
        return not (
            self.copies_again
            or self.lost_by_handler
            or self.lost_by_sink
            or self.copied_twice_when_deduplicated
            or self.unknown
        )


# ------------------------------------------------------------------------- the Spark process


class Handler:
    """Fails at random, in the same way for the same message and attempt; records each call."""

    def __init__(self, seed: int, notes: str) -> None:
        self._seed = seed
        self._notes = notes

    def __call__(self, message: StoredMessage) -> None:
        number = int(message.body[:12])
        chance = random.Random(f"{self._seed} {number} {message.reconsume_times}").random()
        verdict = (
            "fails"
            if chance < FAILING
            else "later"
            if chance < LATER
            else "dead"
            if chance < GIVEN_UP
            else "done"
        )
        with Path(self._notes).open("a") as notes:
            notes.write(f"{number} {message.reconsume_times} {verdict}\n")
        if verdict == "fails":
            raise ValueError(f"message {number} failed")
        if verdict == "later":
            raise RetryLater("1s", "not now")
        if verdict == "dead":
            raise DeadLetter("not ever")


def job(namesrv: str, directory: Path, seed: int) -> None:
    """Run both queries until killed."""
    from penstock.spark import consume
    from penstock.spark.session_setup.tuned_session import session

    spark = session("penstock-soak", master="local[2,4]")
    consume(
        {"namesrv": namesrv, "topic": IN, "startingOffsets": "earliest"},
        Handler(seed, str(directory / "notes")),
        group=GROUP,
        checkpoint=directory / HANDLING,
        max_retries=MAX_RETRIES,
    )
    stream = spark.readStream.format("penstock").option("namesrv", namesrv)
    copied = stream.option("topic", IN).option("startingOffsets", "earliest").load()
    (
        copied.writeStream.format("penstock")
        .option("namesrv", namesrv)
        .option("topic", OUT)
        .option("checkpointLocation", str(directory / COPYING))
        .start()
    )
    say("running")
    spark.streams.awaitAnyTermination()
    say("a query ended")


# -------------------------------------------------------------------------- this process


class Cluster:
    """A broker process that restarts at the same address."""

    def __init__(self, directory: Path) -> None:
        config = directory / "broker.conf"
        config.write_text(f"messageDelayLevel={DELAYS}\n")
        self._arguments: list[str | Path] = [
            *(sys.executable, "-m", "penstock", "up", "--data", directory / "data"),
            *("--config", config),
        ]
        self._process = self._started("0", "0")

    def _started(self, nameserver_port: str, broker_port: str) -> ChildProcess:
        ports = ("--nameserver-port", nameserver_port, "--broker-port", broker_port)
        process = ChildProcess([*self._arguments, *ports], directory=ROOT).start()
        ready = process.wait_for_line(r"ready namesrv=(\S+:(\d+)) broker=\S+:(\d+)", START_SECONDS)
        self.namesrv, self._nameserver_port, self._broker_port = ready.groups()
        return process

    def kill(self) -> None:
        self._process.kill()
        self._process = self._started(self._nameserver_port, self._broker_port)

    def stop(self) -> None:
        self._process.kill()


def soak(plan: Plan, directory: Path, report: Callable[[str], None] | None = None) -> Fates:
    """Run everything and account for every message."""
    report = report or (lambda text: None)
    cluster = Cluster(directory)
    spark = ChildProcess(
        [
            *(sys.executable, "-m", "tools.spark_soak", "--job", cluster.namesrv),
            *("--directory", directory, "--seed", str(plan.seed)),
        ],
        directory=ROOT,
    )
    try:
        with Admin(namesrv=cluster.namesrv) as admin:
            for topic in (IN, OUT):
                admin.create_topic(topic, queues=QUEUES)
        spark.start().wait_for_line("^running$", START_SECONDS)
        _produce(plan, cluster, spark, directory, report)
        return _settled(plan, cluster.namesrv, directory, spark, report)
    finally:
        if spark.is_running:
            spark.kill()
        cluster.stop()


def _produce(
    plan: Plan,
    cluster: Cluster,
    spark: ChildProcess,
    directory: Path,
    report: Callable[[str], None],
) -> None:
    """Send the messages in bursts, with the kills in between."""
    bursts = [
        range(start, min(start + BURST, plan.messages)) for start in range(0, plan.messages, BURST)
    ]
    chance = random.Random(plan.seed)
    blows = Counter(chance.choices(range(len(bursts)), k=plan.kills))
    broker_blows = Counter(chance.choices(range(len(bursts)), k=plan.broker_kills))
    with Producer(group="soak-producer", namesrv=cluster.namesrv, retries=10) as producer:
        for place, burst in enumerate(bursts):
            _send(producer, burst)
            for _ in range(broker_blows[place]):
                # New queries that find no cluster fail by design; running ones wait for it.
                _until(lambda: _has_begun(directory), spark, "a query does not begin")
                report(f"kills the broker after message {burst[-1]}")
                cluster.kill()
            for _ in range(blows[place]):
                # Only after it made progress since its last start; otherwise nothing is tested.
                _until_called(directory, spark)
                report(f"kills Spark after message {burst[-1]}")
                spark.kill()
                spark.start().wait_for_line("^running$", START_SECONDS)


def _send(producer: Producer, burst: range) -> None:
    """Send some messages; wait while the broker restarts."""
    left = [Message(IN, b"%012d %s" % (number, b"x" * 100)) for number in burst]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left:
        try:
            producer.send_batch(left)
            return
        except PenstockError:
            # They may have been stored; the accounts allow duplicates.
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


def _settled(
    plan: Plan, namesrv: str, directory: Path, spark: ChildProcess, report: Callable[[str], None]
) -> Fates:
    """The accounts, when nothing is missing or the time is up."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    best = None
    while True:
        found = account(plan, namesrv, directory)
        missing = len(found.lost_by_handler) + len(found.lost_by_sink)
        if best is None or missing < best:
            best, deadline = missing, time.monotonic() + PATIENCE_SECONDS
        if not missing or time.monotonic() > deadline or not spark.is_running:
            if not spark.is_running:
                report(f"Spark ended by itself\n{spark.output[-4000:]}")
            return found
        report(f"{missing} messages are on their way")
        time.sleep(4 * POLL_SECONDS)


def _until_called(directory: Path, spark: ChildProcess) -> None:
    """Wait for the next call of the handler."""
    before = _calls(directory)
    _until(lambda: _calls(directory) != before, spark, "the handler is not called any more")


def _until(is_so: Callable[[], bool], spark: ChildProcess, otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > deadline or not spark.is_running:
            raise AssertionError(f"{otherwise}\n{spark.output[-4000:]}")
        time.sleep(POLL_SECONDS)


def _has_begun(directory: Path) -> bool:
    """Whether both queries have saved their starting offsets."""
    return all((directory / name / "offsets" / "0").exists() for name in (HANDLING, COPYING))


def _calls(directory: Path) -> int:
    notes = directory / "notes"
    return notes.stat().st_size if notes.exists() else 0


# ------------------------------------------------------------------------------- the accounts


def account(plan: Plan, namesrv: str, directory: Path) -> Fates:
    """The outcome of each message, from the call records, the dead letters and the copies."""
    calls = _notes(directory / "notes")
    done = Counter(number for number, verdict in calls if verdict == "done")
    dead = {number for number, _ in _stored(namesrv, f"%DLQ%{GROUP}")}
    copies = list(_stored(namesrv, OUT))
    sent = Counter(number for number, _ in _stored(namesrv, IN))
    everything = set(range(plan.messages))
    once = {(number, name) for number, name in copies}
    distinct = Counter(number for number, _ in once)
    return Fates(
        messages=plan.messages,
        calls=len(calls),
        handled=len(done),
        handled_again=sum(count - 1 for count in done.values()),
        dead_letters=len(dead),
        copies=len(copies),
        copies_again=len(copies) - len(once),
        kills=plan.kills,
        broker_kills=plan.broker_kills,
        lost_by_handler=sorted(everything - set(done) - dead)[:20],
        lost_by_sink=sorted(everything - set(distinct))[:20],
        # A message that the producer sent twice may have two copies.
        copied_twice_when_deduplicated=sorted(
            number for number, count in distinct.items() if count > sent[number]
        )[:20],
        unknown=sorted((set(done) | dead | set(distinct)) - everything)[:20],
    )


def _notes(path: Path) -> list[tuple[int, str]]:
    if not path.exists():
        return []
    lines = [line.split() for line in path.read_text().splitlines()]
    # A killed process may leave an incomplete line.
    return [(int(parts[0]), parts[2]) for parts in lines if len(parts) == 3]


def _stored(namesrv: str, topic: str) -> Iterator[tuple[int, str]]:
    """The messages of a topic with the names of their rows."""
    options = parse_read({"namesrv": namesrv, "topic": topic})
    try:
        planned = tasks(Positions(options).batch_ranges())
    except PenstockError:
        return  # there were no dead letters
    fetcher = Fetcher(options)
    for task in planned:
        for batch in fetcher.batches(task.ranges, ("body", "properties")):
            for body, pairs in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                properties = dict(pairs)
                yield int(body[:12]), properties.get(ROW_PROPERTY, "")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return 1 if a message is missing."""
    parser = argparse.ArgumentParser(prog="python -m tools.spark_soak", description=__doc__)
    parser.add_argument("--messages", type=int, default=Plan.messages)
    parser.add_argument("--kills", type=int, default=Plan.kills, help="of the Spark process")
    parser.add_argument("--broker-kills", type=int, default=Plan.broker_kills)
    parser.add_argument("--seed", type=int, default=Plan.seed)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.job:
        job(chosen.job, chosen.directory, chosen.seed)
        return 1
    plan = Plan(chosen.messages, chosen.kills, chosen.broker_kills, chosen.seed)
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as directory:
        begun = time.monotonic()
        fates = soak(
            plan, Path(directory), lambda text: say(f"{time.monotonic() - begun:4.0f} s: {text}")
        )
    say(json.dumps(asdict(fates), indent=2))
    return 0 if fates.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
