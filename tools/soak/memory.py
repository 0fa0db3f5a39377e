"""A broker under load for a long time: memory, open files, and resistance to corrupted requests.

A producer and a consumer run all the time. In addition, requests captured from Apache RocketMQ are
sent with some bytes changed. At the end the broker must still serve, must have logged no traceback,
and must use no more memory and files than after warm-up. A broker keeps counters for each topic,
group and client, so the load uses the same ones throughout.
"""

from __future__ import annotations

import gzip
import json
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from tools.soak.outcome import Outcome, say

from penstock import Message, Producer, PushConsumer
from penstock.model import StoredMessage
from penstock.runtime.child_process import ChildProcess

FRAMES: Final = Path(__file__).parents[2] / "tests" / "vectors" / "frames-5.5.0.jsonl.gz"
TOPIC: Final = "soak"
BATCH: Final = 50
GROWTH: Final = 1.25
"""Allowed growth of memory after warm-up; the allocator alone makes it vary."""
MORE_FILES: Final = 20
SAMPLE_SECONDS: Final = 1.0
# Requests that change state by name would create a topic or group for every changed byte.
HARMLESS: Final = frozenset({"PULL_MESSAGE", "QUERY_CONSUMER_OFFSET", "GET_ROUTEINFO_BY_TOPIC"})


def watch(seconds: float) -> Outcome:
    """Load a broker and measure its memory and files."""
    say(f"memory: {seconds:.0f} s")
    seed = random.SystemRandom().getrandbits(32)
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as directory:
        command = [sys.executable, "-m", "penstock", "up", "--data", directory]
        # Small segments that are removed soon, so that the log does not grow without bound.
        config = Path(directory).with_suffix(".conf")
        config.write_text("mappedFileSizeCommitLog=16777216\nfileReservedTime=1\n")
        command += ["--nameserver-port", "0", "--broker-port", "0", "--config", str(config)]
        try:
            with ChildProcess(command) as broker:
                return _watched(broker, seconds, seed)
        finally:
            config.unlink()


def _watched(broker: ChildProcess, seconds: float, seed: int) -> Outcome:
    ready = broker.wait_for_line(r"^ready namesrv=(\S+) broker=(\S+)")
    namesrv, address = ready.groups()
    load = _Load(namesrv, address, seed)
    load.start()
    memory: list[int] = []
    files: list[int] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until and broker.is_running:
        time.sleep(SAMPLE_SECONDS)
        memory.append(own_kb(broker.pid))
        files.append(len(list(Path(f"/proc/{broker.pid}/fd").iterdir())))
    load.stop()
    failures = load.failures()
    if not broker.is_running:
        failures.append("the broker has died")
    if "Traceback" in broker.output:
        failures.append("the broker wrote a traceback")
    # The first third is warm-up.
    third = max(1, len(memory) // 3)
    warm, last = (statistics.median(part) for part in (memory[third : 2 * third], memory[-third:]))
    if last > warm * GROWTH:
        failures.append(f"memory grew from {warm / 1024:.0f} to {last / 1024:.0f} MB")
    if max(files[-third:]) > max(files[third : 2 * third]) + MORE_FILES:
        failures.append(f"open files grew to {max(files[-third:])}")
    tried = (
        f"{load.sent} messages sent, {load.handled} handled, {load.odd} requests with changed "
        f"bytes (seed {seed}); {warm / 1024:.0f} MB when warm, {last / 1024:.0f} MB at the end, "
        f"{files[-1]} files"
    )
    return Outcome("memory", tried, [f"{failure}, seed {seed}" for failure in failures])


class _Load:
    """The load on the broker."""

    def __init__(self, namesrv: str, address: str, seed: int) -> None:
        self._namesrv = namesrv
        self._address = address
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._produce, self._send_corrupted)
        ]
        self._errors: list[str] = []
        self.sent = self.handled = self.odd = 0
        self._consumer = PushConsumer("soak", namesrv=namesrv, start_from="first", batch_size=32)
        self._consumer.on(TOPIC)(self._handle)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        # The consumer finds the topic once the producer has created it.
        self._consumer.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        until = time.monotonic() + 30
        while self.handled < self.sent and time.monotonic() < until:
            time.sleep(0.1)
        self._consumer.stop()

    def failures(self) -> list[str]:
        missing = self.sent - self.handled
        return self._errors + ([f"{missing} messages were not handled"] if missing > 0 else [])

    def _guarded(self, work: object) -> None:
        assert callable(work)
        try:
            work()
        except Exception as error:
            self._errors.append(f"{type(error).__name__}: {error}")

    def _handle(self, messages: list[StoredMessage]) -> None:
        self.handled += len(messages)

    def _produce(self) -> None:
        with Producer("soak-producer", namesrv=self._namesrv) as producer:
            while not self._stopping.is_set():
                bodies = [
                    self._random.randbytes(self._random.randrange(1, 600)) for _ in range(BATCH)
                ]
                producer.send_batch([Message(TOPIC, body) for body in bodies])
                self.sent += BATCH
                for body in bodies[:5]:
                    producer.send(Message(TOPIC, body, tag="single"))
                    self.sent += 1
                self._stopping.wait(0.05)

    def _send_corrupted(self) -> None:
        frames = _frames()
        host, _, port = self._address.rpartition(":")
        while not self._stopping.is_set():
            frame = bytearray(self._random.choice(frames))
            for _ in range(self._random.randrange(4)):
                frame[self._random.randrange(len(frame))] = self._random.randrange(256)
            with socket.create_connection((host, int(port)), 10) as connection:
                connection.settimeout(0.05)
                try:
                    connection.sendall(frame)
                    connection.recv(65_536)
                except OSError:
                    pass  # No answer and a closed connection are allowed.
            self.odd += 1


def _frames() -> list[bytes]:
    """Captured requests of real clients."""
    with gzip.open(FRAMES, "rt") as lines:
        captured = [json.loads(line) for line in lines]
    return [
        bytes.fromhex(frame["frame_hex"])
        for frame in captured
        if frame["request_code_name"] in HARMLESS and not frame["flag"] & 1
    ]


def own_kb(pid: int) -> int:
    """Anonymous memory; the kernel can reclaim the pages of files at any time."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0
