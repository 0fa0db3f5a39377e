"""One trace across languages: Java's client under OpenTelemetry's agent, ours with `Telemetry`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.interop.client_lab import Lab, check, same, wait_for
from tests.interop.client_scenarios import run_clients
from tests.interop.members import Members, members, unique
from tests.interop.programs import not_run
from tests.interop.results import Cell
from tests.interop.servers import Cluster
from tests.interop.toolchain import BUILD, QUICK, Toolchain, Unavailable, find_tool

from penstock import Message, StoredMessage
from penstock.otel import Telemetry

SECTION = "traces with OpenTelemetry's Java agent"
AGENT = "2.10.0"
_SPAN = re.compile(r"'(?P<name>[^']+)' : (?P<trace>\w{32}) (?P<span>\w{16}) (?P<kind>\w+)")
"""What the agent's logging exporter writes about a span."""

Run = Callable[[Members, Path, Lab], str]


def _agent() -> Path:
    """The agent's jar, downloaded once."""
    jar = BUILD / f"opentelemetry-javaagent-{AGENT}.jar"
    if not jar.is_file():
        artifact = f"io.opentelemetry.javaagent:opentelemetry-javaagent:{AGENT}"
        done = subprocess.run(
            [
                *(find_tool("mvn"), "-q", "-B", "dependency:copy"),
                *(f"-Dartifact={artifact}", f"-DoutputDirectory={BUILD}"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not jar.is_file():
            raise Unavailable(f"Maven could not fetch {artifact}")
    return jar


def _spans(log: Path, name: str) -> list[re.Match[str]]:
    return [one for one in _SPAN.finditer(log.read_text()) if one["name"] == name]


class Recorded:
    """Our spans."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = Telemetry(provider)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


def from_java(others: Members, log: Path, lab: Lab) -> str:
    """Java sends; our handler's span is in the trace of its send."""
    topic, ours = lab.topic(queues=1), Recorded()
    consumer = lab.push(middleware=[ours.telemetry])

    @consumer.on(topic)
    def handle(message: StoredMessage) -> None:
        check("traceparent" in message.properties, f"properties {dict(message.properties)}")

    consumer.start()
    others.command("send", topic, 3, "j")
    wait_for(lambda: len(ours.named(f"process {topic}")) == 3, lambda: "no spans of ours")
    wait_for(lambda: len(_spans(log, f"{topic} publish")) == 3, lambda: "no spans of the agent")
    sent = {(one["trace"], one["span"]) for one in _spans(log, f"{topic} publish")}
    same({"PRODUCER"}, {one["kind"] for one in _spans(log, f"{topic} publish")}, "kinds")
    parents = {
        (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}")
        for span in ours.named(f"process {topic}")
        if span.parent is not None
    }
    same(sent, parents, "the sends of Java are the parents of our handler calls")
    consumer.stop()
    return "3 sends of Java, 3 handler calls of ours, 3 traces"


def to_java(others: Members, log: Path, lab: Lab) -> str:
    """We send; the span of Java's listener is in the trace of our send."""
    topic, member, ours = lab.topic(queues=1), lab.name("other"), Recorded()
    others.consume(member, "concurrent", lab.name("theirs"), topic)
    producer = lab.producer(middleware=[ours.telemetry])
    for number in range(3):
        producer.send(Message(topic, f"p{number}".encode()))
    wait_for(
        lambda: len(_spans(log, f"{topic} process")) == 3,
        lambda: f"spans of the agent: {len(_spans(log, f'{topic} process'))}",
    )
    others.command("stop", member)
    contexts = [span.get_span_context() for span in ours.named(f"send {topic}")]
    sent = {f"{context.trace_id:032x}" for context in contexts if context is not None}
    same(3, len(sent), "sends of ours")
    same(sent, {one["trace"] for one in _spans(log, f"{topic} process")}, "traces")
    return "3 sends of ours, 3 listener calls of Java, 3 traces"


_RUNS: dict[str, Run] = {"traces_from_java_agent": from_java, "traces_to_java_agent": to_java}
NAMES: tuple[str, ...] = tuple(_RUNS)


def run_traces(
    toolchain: Toolchain, cluster: Cluster, names: Sequence[str], column: str
) -> Iterator[Cell]:
    """Run ``names`` one after the other with one JVM; yield a cell as each ends."""
    if not names:
        return
    try:
        agent = _agent()
    except Unavailable as missing:
        yield from not_run(names, SECTION, column, missing)
        return
    options = (
        *QUICK,
        f"-javaagent:{agent}",
        "-Dotel.traces.exporter=logging",
        "-Dotel.metrics.exporter=none",
        "-Dotel.logs.exporter=none",
        "-Dotel.bsp.schedule.delay=100",
    )
    command = toolchain.command("Member", cluster.namesrv, unique(), heap="384m", options=options)
    log = BUILD / "logs" / f"agent-{toolchain.version}.log"
    with members("Java", command, log) as others:
        runs = {name: partial(run, others, log) for name, run in _RUNS.items()}
        yield from run_clients(cluster, names, column, runs=runs, section=SECTION, parallel=1)
