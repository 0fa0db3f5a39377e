"""Our command line on a real cluster: every command that contacts one, as a separate process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.interop.client_lab import Lab, check, same, wait_for
from tests.interop.client_scenarios import Run, run_clients
from tests.interop.results import Cell
from tests.interop.servers import Cluster

from penstock import DeadLetter, StoredMessage

SECTION = "Penstock command line"
PARALLEL = 2
"""Each command starts an interpreter; more at once would only compete for the CPU."""
COMMAND_SECONDS = 60.0
INDEX_SECONDS = 30.0


def penstock(
    lab: Lab, *arguments: str, stdin: str = "", code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command against the lab's cluster; it must end with ``code``."""
    environment = {
        **os.environ,
        "NAMESRV_ADDR": lab.cluster.namesrv,
        # An empty directory: the user's own contexts must not be used.
        "XDG_CONFIG_HOME": str(lab.place),
    }
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        input=stdin,
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    check("Traceback" not in done.stderr, f"penstock {' '.join(arguments)}: {done.stderr[-300:]}")
    check(
        done.returncode == code,
        f"penstock {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}",
    )
    return done


def json_of(lab: Lab, *arguments: str, stdin: str = "") -> Any:
    """The ``--json`` output of a command, as one document."""
    return json.loads(penstock(lab, *arguments, "--json", stdin=stdin).stdout)


def json_lines_of(lab: Lab, *arguments: str, stdin: str = "") -> list[Any]:
    """The ``--json`` output of a command, line by line."""
    printed = penstock(lab, *arguments, "--json", stdin=stdin).stdout
    return [json.loads(line) for line in printed.splitlines()]


def refused(lab: Lab, *arguments: str) -> str:
    """The error message of a command that must fail: one sentence."""
    said = penstock(lab, *arguments, code=1).stderr
    check(len(said.splitlines()) == 1, f"more than one sentence: {said!r}")
    return said


def topics(lab: Lab) -> str:
    name = lab.name("made")
    made = json_of(lab, "topic", "create", name, "--queues", "3")
    same([(name, 3, "rw")], [(r["topic"], r["write_queues"], r["permission"]) for r in made], "row")
    lab.send(name, [f"m-{number}" for number in range(6)])
    wait_for(
        lambda: sum(q["messages"] for q in json_of(lab, "topic", "describe", name)["queues"]) == 6,
        lambda: "6 messages sent, not all of them counted",
    )
    listed = {row["topic"]: row for row in json_of(lab, "topic", "list")}
    same((3, 6), (listed[name]["queues"], listed[name]["messages"]), "its row in the list")
    check(name in penstock(lab, "topic", "list").stdout, "the topic is not in the table")
    said = refused(lab, "topic", "describe", name[:-1])
    check("did you mean" in said, f"no suggestion: {said}")
    check("--yes" in refused(lab, "topic", "delete", name), "no confirmation was required")
    penstock(lab, "topic", "delete", name, "--yes")
    wait_for(
        lambda: name not in json_of(lab, "topic", "list", "--names"),
        lambda: "the topic is still listed",
        40,
    )
    return "created, listed, described, deleted"


def groups(lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    consumer, seen = lab.collect(topic, group)
    seen.wait_for(lab.send(topic, [f"m-{number}" for number in range(8)]))
    wait_for(lambda: lab.lag(group, topic) == 0, lambda: f"lag {lab.lag(group, topic)}")
    found = json_of(lab, "group", "describe", group)
    same([consumer.client_id], [member["client_id"] for member in found["members"]], "members")
    check(
        topic in {wanted["topic"] for wanted in found["subscriptions"]}, "no subscription is shown"
    )
    rows = json_of(lab, "group", "lag", group, "--topic", topic)
    same((8, 0), (sum(r["committed"] for r in rows), sum(r["lag"] for r in rows)), "lag")
    listed = {row["group"]: row for row in json_of(lab, "group", "list")}
    same(1, listed[group]["members"], "members in the list")
    consumer.stop()
    wait_for(
        lambda: not json_of(lab, "group", "describe", group)["members"],
        lambda: "the member is still connected",
    )

    def is_gone() -> bool:
        if group not in json_of(lab, "group", "list", "--names"):
            return True
        # Apache's broker recreates a group for a pull that it held when the group was deleted.
        penstock(lab, "group", "delete", group, "--yes")
        return False

    wait_for(is_gone, lambda: "the group is still listed")
    return "member, subscription and lag of a connected group; deleted"


def reset(lab: Lab) -> str:
    topic, group = lab.topic(queues=2), lab.name("group")
    lab.send(topic, [f"m-{number}" for number in range(10)])
    penstock(lab, "group", "create", group)

    def committed() -> list[int]:
        return [r["committed"] for r in json_of(lab, "group", "lag", group, "--topic", topic)]

    to = ("group", "reset", group, "--topic", topic, "--to")
    penstock(lab, *to, "latest", "--yes")
    same([5, 5], committed(), "at the end")
    planned = json_of(lab, *to, "earliest", "--dry-run")
    same([(5, 0), (5, 0)], [(row["committed"], row["target"]) for row in planned], "the preview")
    same([5, 5], committed(), "after the preview")
    penstock(lab, *to, "earliest", "--yes")
    same([0, 0], committed(), "at the beginning")
    queue = f"{lab.cluster.broker_name}:1"
    penstock(lab, *to, "3", "--queue", queue, "--yes")
    same([0, 3], committed(), "one queue at an offset")
    penstock(lab, *to, "2000-01-01", "--yes")
    same([0, 0], committed(), "at a time before the first message")
    check(
        "0 to 5" in refused(lab, *to, "6", "--queue", queue, "--yes"),
        "an offset beyond the end was accepted",
    )
    return "previewed; earliest, latest, by offset, by time"


def cluster(lab: Lab) -> str:
    rows = json_of(lab, "cluster", "overview")
    found = [(row["broker"], row["role"], row["address"], row["problem"]) for row in rows]
    same([(lab.cluster.broker_name, "master", lab.cluster.broker, None)], found, "brokers")
    check(rows[0]["version"][:1].isdigit(), f"version {rows[0]['version']}")
    check(isinstance(rows[0]["in_today"], int), f"in today {rows[0]['in_today']}")
    check(isinstance(rows[0]["disk_used"], float), f"disk used {rows[0]['disk_used']}")
    return f"broker version {rows[0]['version']}"


def send_and_tail(lab: Lab) -> str:
    topic = lab.topic(queues=1)
    command = [sys.executable, "-m", "penstock", "tail", topic, "--from", "earliest", "--follow"]
    following = subprocess.Popen(
        [*command, "--json", "--namesrv", lab.cluster.namesrv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lab.on_close(following.kill)
    send = ("send", topic, "one", "two", "--tag", "t", "--key", "k-1")
    receipts = json_lines_of(lab, *send, "--sharding-key", "s-1")
    same(2, len({receipt["msg_id"] for receipt in receipts}), "receipts")
    lines = '{"body": "three", "tag": "u", "properties": {"colour": "red"}}\n'
    json_lines_of(lab, "send", topic, "--jsonl", "--file", "-", stdin=lines)
    assert following.stdout is not None
    seen = [json.loads(following.stdout.readline()) for _ in range(3)]
    same(["one", "two", "three"], [row["body"] for row in seen], "messages shown by tail")
    same(("t", ["k-1"]), (seen[0]["tags"], seen[0]["keys"]), "tag and keys")
    same("red", seen[2]["properties"].get("colour"), "property")
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=COMMAND_SECONDS)
    check("Traceback" not in said, said)
    same(
        ["three"],
        [row["body"] for row in json_lines_of(lab, "tail", topic, "--tag", "u")],
        "by tag",
    )
    return "sent from arguments and JSON lines, shown by tail as they arrived"


def query(lab: Lab) -> str:
    topic = lab.topic()
    began = int(time.time() * 1000) - 60_000
    receipts = json_lines_of(lab, "send", topic, "a", "b", "--key", "k-1")

    def by_key() -> Any:
        return json_of(lab, "query", topic, "--key", "k-1")

    wait_for(lambda: len(by_key()) == 2, lambda: "the index is not up to date", INDEX_SECONDS)
    one = receipts[0]["msg_id"]
    same("a", json_of(lab, "query", topic, "--id", one)["body"], "by id")
    found = json_of(lab, "query", topic, "--from", str(began))
    same({"a", "b"}, {row["body"] for row in found}, "by time")
    return "by key, by id, by time"


def dead_letters(lab: Lab) -> str:
    topic, group = lab.topic(queues=1), lab.name("group")
    consumer = lab.push(group)
    handled: list[tuple[str, int]] = []
    mended: list[bool] = []

    @consumer.on(topic)
    def handle(message: StoredMessage) -> None:
        handled.append((message.body.decode(), message.reconsume_times))
        if not mended:
            raise DeadLetter("no such account")

    consumer.start()
    lab.send(topic, ["m-0", "m-1"])
    wait_for(lambda: len(json_of(lab, "dlq", "list", group)) == 2, lambda: f"handled {handled}", 80)
    letters = json_of(lab, "dlq", "list", group, "--reason", "account")
    same({"no such account"}, {letter["reason"] for letter in letters}, "reasons")
    shown = json_of(lab, "dlq", "show", group, letters[0]["msg_id"])
    same(letters[0]["msg_id"], shown["msg_id"], "the dead letter shown")
    mended.append(True)
    penstock(lab, "dlq", "redrive", group, "--yes")
    wait_for(lambda: len(handled) >= 4, lambda: f"handled {handled}", 80)
    consumer.stop()
    same({"m-0", "m-1"}, {body for body, _ in handled[2:]}, "redelivered messages")
    same([], json_of(lab, "dlq", "list", group), "dead letters left")
    return "listed with reasons, redriven once"


def doctor(lab: Lab) -> str:
    topic, group = lab.topic(), lab.name("group")
    penstock(lab, "group", "create", group)
    lab.send(topic, ["m-0"])
    _consume(lab, topic, group, "m-0")
    lab.send(topic, ["m-1"])
    said = penstock(lab, "doctor", group, code=1).stdout
    check("no-members" in said, f"no member is connected, but it reported {said!r}")
    _consume(lab, topic, group, "m-1", examined=True)
    return "reported a missing member, then no problem"


def _consume(lab: Lab, topic: str, group: str, body: str, *, examined: bool = False) -> None:
    """Let a member handle a message and commit; the doctor finds nothing while it is there."""
    consumer, seen = lab.collect(topic, group)
    seen.wait_for([body])
    wait_for(lambda: lab.lag(group, topic) == 0, lambda: f"lag {lab.lag(group, topic)}")
    if examined:
        penstock(lab, "doctor", group)
    consumer.stop()


_RUNS: tuple[Run, ...] = (
    dead_letters,
    groups,
    reset,
    topics,
    doctor,
    send_and_tail,
    query,
    cluster,
)
RUNS: Mapping[str, Run] = {f"cli_{run.__name__}": run for run in _RUNS}


def run_cli(servers: Cluster, names: Sequence[str], column: str) -> Iterator[Cell]:
    """Run ``names``, a few at a time; yield a cell as each ends."""
    yield from run_clients(servers, names, column, runs=RUNS, section=SECTION, parallel=PARALLEL)
