"""Every benchmark runs and tells its figures; how good they are is not a test's business."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys

import pytest
from benchmarks.__main__ import NAMES, machine
from benchmarks.load import Generator, ask, load
from benchmarks.processes import ServerProcess, baseline, split, tree_cpu_seconds
from benchmarks.requests import pull, send, sends

from benchmarks import effort as efforts
from penstock.protocol.commands import Command, decode_command, encode_command
from penstock.protocol.frames import FrameDecoder
from penstock.protocol.headers.codec import decode_header
from penstock.protocol.headers.pull import PullMessage
from penstock.protocol.headers.send import decode_send_v2


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_runs_and_tells_its_figures_and_targets(name: str) -> None:
    found = importlib.import_module(f"benchmarks.{name}").run(efforts.TINY)
    assert json.loads(json.dumps(found)) == found
    for target in found.get("targets", ()):
        assert set(target) == {"name", "target", "reached", "met"}
        # In a short run a page of the console may cost nothing that can be measured.
        assert target["reached"] > 0 or "share of a core" in target["name"]


def test_the_machine_is_shown_with_the_figures() -> None:
    assert {"cores", "python", "commit", "load_before"} <= set(machine())


# Targets and medians


def test_rates_are_met_from_below_and_times_from_above() -> None:
    assert efforts.at_least("rate", 10, 10)["met"]
    assert not efforts.at_least("rate", 10, 9.9)["met"]
    assert efforts.at_most("time", 10, 10)["met"]
    assert not efforts.at_most("time", 10, 10.1)["met"]


def test_a_ratio_compares_round_by_round() -> None:
    assert efforts.ratio([1, 4, 9], [1, 2, 3]) == {"ratio": 2, "ratio_range": [1, 3]}


def test_there_is_always_one_of_what_is_scaled_down() -> None:
    assert efforts.TINY.scaled(10) == 1
    assert efforts.QUICK.scaled(10) == 10


# The load generator


class Wire:
    """Stands in for a transport; keeps what was written, write by write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)


def generator(ring: list[bytes], in_flight: int) -> tuple[Generator, Wire]:
    made, wire = Generator(ring, in_flight), Wire()
    made.connection_made(wire)  # type: ignore[arg-type]  # all it needs of a transport
    made.start()
    return made, wire


def frame(size: int) -> bytes:
    return size.to_bytes(4, "big") + bytes(size)


def test_as_many_requests_go_out_as_whole_answers_came_in_with_one_write() -> None:
    made, wire = generator([b"a", b"b", b"c", b"d"], 2)
    assert wire.writes == [b"ab"]
    made.data_received(frame(5) + frame(0) + frame(7)[:3])
    assert made.answers == 2
    assert wire.writes == [b"ab", b"cd"]
    made.data_received(frame(7)[3:])
    assert made.answers == 3
    assert wire.writes[2:] == [b"a"]


def test_a_ring_that_is_shorter_than_what_is_in_flight_is_repeated() -> None:
    _, wire = generator([b"a"], 3)
    assert wire.writes == [b"aaa"]


async def test_load_is_measured_on_both_sides() -> None:
    with baseline("echo") as server:
        measured = await load(server, [frame(20)], connections=2, in_flight=4, seconds=0.01)
    assert measured.per_second > 0
    assert measured.server_microseconds > 0


async def test_answers_come_in_the_order_of_their_questions() -> None:
    with baseline("remoting") as server:
        answers = await ask(server.port, [Command(14) for _ in range(5)], in_flight=2)
    assert [answer.request_id for answer in answers] == [1, 2, 3, 4, 5]


async def test_canned_answers_have_the_size_that_was_asked_for() -> None:
    with baseline("canned", 1000) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(frame(3) + frame(30))
        assert len(await reader.readexactly(2000)) == 2000
        writer.close()
        await writer.wait_closed()


def test_only_whole_frames_are_split_off() -> None:
    assert list(split(frame(2) + frame(0) + frame(9)[:5])) == [frame(2), frame(0)]


def test_a_server_that_does_not_come_up_ends_the_benchmark() -> None:
    with pytest.raises(RuntimeError, match="before it was ready"):
        ServerProcess(["-c", "raise SystemExit(3)"])


# Requests


def test_requests_say_what_a_java_client_says() -> None:
    (sent,) = FrameDecoder().feed(encode_command(send("orders", 3, 10, 7)))
    header = decode_send_v2(decode_command(sent).ext or {})
    assert (header.topic, header.queue_id, len(sent.body)) == ("orders", 3, 10)
    (pulled,) = FrameDecoder().feed(encode_command(pull("orders", 1, 64, hold_ms=500)))
    asked = decode_header(PullMessage, decode_command(pulled).ext)
    assert (asked.queue_offset, asked.suspend_timeout_millis) == (64, 500)


def test_sends_go_to_the_queues_in_turn() -> None:
    queues = [decode_send_v2(one.ext or {}).queue_id for one in sends("t", (4, 6), 1, 5)]
    assert queues == [4, 6, 4, 6, 4]


_CHILD = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
_PARENT = """
import signal, subprocess, sys, time
if sys.argv[1] == "ignoring":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", sys.argv[2]])
child.wait()
print("ended", flush=True)
input()
"""


@pytest.mark.parametrize("kind", ["waiting", "ignoring"])
def test_the_cpu_time_of_a_child_counts_when_it_has_ended(kind: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, kind, _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.readline()  # the child has worked, and waits
        living = tree_cpu_seconds(parent.pid)
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "ended\n"
        assert tree_cpu_seconds(parent.pid) >= living >= 0.2 - 0.02
        parent.stdin.write("\n")
