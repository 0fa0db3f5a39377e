"""``penstock send`` on a real broker."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.cli.running import PENSTOCK, fail, run, succeed

from penstock import Admin, Message, MessageQueue, Producer, Receipt, StoredMessage
from penstock.admin.queue_reading import ends, read
from penstock.cli.input_messages import Numbered
from penstock.cli.send import WINDOW_BYTES, _InFlight, send_all
from penstock.client.producing.selection import QueueSelector
from penstock.errors import SystemBusy
from penstock.runtime.child_process import ChildProcess
from penstock.runtime.pacing import Pacer
from penstock.testing.embedded import Embedded


def stored(cluster: Embedded, topic: str) -> list[StoredMessage]:
    return list(read(cluster.admin, ends(cluster.admin, topic)))


def bodies(cluster: Embedded, topic: str) -> set[bytes]:
    return {message.body for message in stored(cluster, topic)}


def test_an_argument_is_a_message_with_everything_it_can_have(cluster: Embedded) -> None:
    cluster.admin.create_topic("args", 2)
    done = succeed(
        *("send", "args", "größer als", "--tag", "paid", "--key", "o-1", "--key", "c-7"),
        *("--property", "region=eu", "--sharding-key", "c-7"),
    )
    [message] = stored(cluster, "args")
    assert message.body == "größer als".encode()
    assert (message.tag, message.keys) == ("paid", ("o-1", "c-7"))
    assert message.properties["region"] == "eu"
    assert message.properties["__SHARDINGKEY"] == "c-7"
    assert message.msg_id in done.out
    assert f"@{message.queue_offset}" in done.out


def test_a_queue_can_be_chosen(cluster: Embedded) -> None:
    cluster.admin.create_topic("placed", 4)
    for queue in ("broker-a:2", "2"):
        done = succeed("send", "placed", "a", "b", "--queue", queue, "--json")
        assert {json.loads(line)["queue_id"] for line in done.out.splitlines()} == {2}
    assert "one of broker-a:0, broker-a:1" in fail("send", "placed", "a", "--queue", "broker-a:9")
    assert "both choose" in fail("send", "placed", "a", "--queue", "1", "--sharding-key", "k")
    assert len(stored(cluster, "placed")) == 4


def test_several_arguments_are_several_messages_with_a_receipt_each(cluster: Embedded) -> None:
    cluster.admin.create_topic("several", 1)
    done = succeed("send", "several", "one", "two", "three", "--json")
    receipts = [json.loads(line) for line in done.out.splitlines()]
    assert [receipt["queue_offset"] for receipt in receipts] == [0, 1, 2]
    assert {receipt["status"] for receipt in receipts} == {"SEND_OK"}
    by_id = {message.msg_id: message.body for message in stored(cluster, "several")}
    assert [by_id[receipt["msg_id"]] for receipt in receipts] == [b"one", b"two", b"three"]


def test_lines_of_stdin_are_messages_in_order(cluster: Embedded) -> None:
    cluster.admin.create_topic("lines", 1)
    text = "".join(f"line {n}\n" for n in range(3000))
    done = succeed("send", "lines", stdin=text + "\n\nlast")
    assert "Sent 3,001 messages to lines" in done.out
    expected = [f"line {n}".encode() for n in range(3000)] + [b"last"]
    assert [message.body for message in stored(cluster, "lines")] == expected


def test_a_topic_that_a_message_made_is_reported_with_the_one_that_was_meant(
    cluster: Embedded,
) -> None:
    assert "Topic invoices is new: the broker created it." in succeed("send", "invoices", "1").err
    assert succeed("send", "invoices", "2").err == ""
    done = succeed("send", "invoises", "3", "--json")
    assert "Topic invoises is new; did you mean invoices?" in done.err
    assert done.json["topic"] == "invoises"


def test_json_lines_say_tags_and_keys_themselves(cluster: Embedded) -> None:
    cluster.admin.create_topic("jsonl", 1)
    lines = '{"body": {"total": 3}, "keys": ["o-1"]}\n{"body": "x", "tag": "own"}\n'
    succeed("send", "jsonl", "--jsonl", "--tag", "default", stdin=lines)
    first, second = stored(cluster, "jsonl")
    assert (first.body, first.tag, first.keys) == (b'{"total":3}', "default", ("o-1",))
    assert (second.body, second.tag) == (b"x", "own")


def test_a_file_is_lines_or_one_message(cluster: Embedded, tmp_path: Path) -> None:
    cluster.admin.create_topic("files", 1)
    path = tmp_path / "input"
    path.write_bytes(b"one\ntwo\n")
    succeed("send", "files", "--file", str(path))
    path.write_bytes(b"\x00\xff\nbinary")
    succeed("send", "files", "--file", str(path), "--whole")
    assert bodies(cluster, "files") == {b"one", b"two", b"\x00\xff\nbinary"}


@pytest.mark.parametrize("how", [[], ["--jsonl"], ["--whole"]])
def test_an_input_without_an_end_is_refused(cluster: Embedded, how: list[str]) -> None:
    said = fail("send", "endless", "--file", "/dev/zero", *how)
    assert "bytes" in said
    assert "where it is stored" in said
    assert "endless" not in cluster.admin.topics()


def test_a_delay_above_the_limit_names_the_limit_and_a_way_out(cluster: Embedded) -> None:
    said = fail("send", "late", "never", "--delay", "4d")
    assert "a delay of at most 3 days, which is the broker's timerMaxDelaySec" in said
    assert "or raise that" in said
    assert "or send the message later" in said


def test_a_delayed_message_comes_later(cluster: Embedded) -> None:
    cluster.admin.create_topic("late", 1)
    succeed("send", "late", "now")
    said = succeed("send", "late", "later", "--delay", "1s").out
    assert said.endswith("to late, delayed by 1s.\n")
    deadline = time.monotonic() + 30
    while bodies(cluster, "late") != {b"now", b"later"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    now, later = stored(cluster, "late")
    assert later.store_timestamp - now.store_timestamp >= 900


def test_a_rate_is_kept(cluster: Embedded) -> None:
    cluster.admin.create_topic("paced", 1)
    started = time.monotonic()
    succeed("send", "paced", "--rate", "50", stdin="x\n" * 21)
    # Twenty gaps of 20 ms: it may be slower, never faster.
    assert time.monotonic() - started >= 0.4
    assert len(stored(cluster, "paced")) == 21


def test_what_tail_prints_can_be_sent_on(cluster: Embedded) -> None:
    cluster.admin.create_topic("from", 1)
    cluster.admin.create_topic("onto", 1)
    succeed("send", "from", "one", "--tag", "t", "--key", "k", "--property", "a=b")
    printed = succeed("tail", "from", "--json").out
    succeed("send", "onto", "--jsonl", stdin=printed)
    [copy] = stored(cluster, "onto")
    assert (copy.body, copy.tag, copy.keys) == (b"one", "t", ("k",))
    assert copy.properties["a"] == "b"


def test_nothing_to_send_is_said(cluster: Embedded) -> None:
    done = succeed("send", "nothing", stdin="\n\n")
    assert done.out == ""
    assert "Nothing was sent" in done.err


def test_a_bad_line_is_named_and_what_was_sent_before_is_reported(cluster: Embedded) -> None:
    cluster.admin.create_topic("broken", 1)
    done = run("send", "broken", "--jsonl", stdin='{"body": "a"}\n{"body": "b"}\nnonsense\n')
    assert done.code == 1
    assert "2 messages were sent before it stopped." in done.err
    assert "penstock: line 3 is not JSON" in done.err
    assert bodies(cluster, "broken") == {b"a", b"b"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bad topic!", "x"], "letters, digits"),
        (["orders", ""], "body is empty"),
        (["orders", "x", "--delay", "7 lives"], "delay '7 lives'"),
        (["orders", "x", "--property", "KEYS=1"], "KEYS"),
        (["orders", "x", "--property", "nonsense"], "KEY=VALUE"),
        (["orders", "x", "--jsonl"], "both a BODY and an input"),
        (["orders", "--jsonl", "--whole"], "one of them"),
        (["orders", "--file", "/nowhere/at/all"], "cannot be read"),
        (["orders", "x", "--key", "a b"], "would be 2 keys; expected a key without blanks"),
        (["orders", "x", "--tag", "a || b"], "a message has one tag"),
    ],
)
def test_what_cannot_be_sent_is_one_sentence(
    cluster: Embedded, arguments: list[str], said: str
) -> None:
    assert said in fail("send", *arguments)


class Overlaps(Producer):
    """A producer that notes when two of one sharding key are on their way at once."""

    def __init__(self, namesrv: str) -> None:
        super().__init__("overlaps", namesrv=namesrv)
        self.flying: dict[str, Future[Receipt]] = {}
        self.overlaps = 0
        self.together = 0

    def submit(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        queue: MessageQueue | QueueSelector | None = None,
    ) -> Future[Receipt]:
        assert isinstance(message, Message)
        self.together = max(self.together, sum(not f.done() for f in self.flying.values()))
        before = self.flying.get(message.sharding_key or "")
        self.overlaps += before is not None and not before.done()
        self.flying[message.sharding_key or ""] = sent = super().submit(message, queue=queue)
        return sent


def test_messages_of_one_sharding_key_are_sent_one_after_the_other(cluster: Embedded) -> None:
    cluster.admin.create_topic("sharded", 4)
    messages = [
        Message("sharded", str(number).encode(), sharding_key=f"k-{number % 5}")
        for number in range(200)
    ]
    receipts: list[Receipt] = []
    with Overlaps(cluster.namesrv) as producer:
        numbered = [Numbered(line, message) for line, message in enumerate(messages, 1)]
        send_all(producer, numbered, Pacer(None), receipts.append)
    assert producer.overlaps == 0
    assert producer.together > 0
    assert len(receipts) == 200
    for key in range(5):
        own = [m for m in stored(cluster, "sharded") if m.properties["__SHARDINGKEY"] == f"k-{key}"]
        numbers = [int(m.body) for m in sorted(own, key=lambda m: m.queue_offset)]
        assert numbers == list(range(key, 200, 5))


class Late(Future[Receipt]):
    """An answer that has not come until a caller waits for it."""

    def __init__(self, answer: Future[Receipt]) -> None:
        super().__init__()
        self._answer = answer

    def done(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> Receipt:
        return self._answer.result(timeout)


class Failing(Producer):
    """A producer whose slow messages are late and whose bad ones fail."""

    def submit(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        queue: MessageQueue | QueueSelector | None = None,
    ) -> Future[Receipt]:
        assert isinstance(message, Message)
        if message.body == b"bad":
            failed: Future[Receipt] = Future()
            failed.set_exception(SystemBusy("too much to do"))
            return failed
        sent = super().submit(message, queue=queue)
        return Late(sent) if message.body == b"slow" else sent


def test_what_comes_after_a_failure_of_its_sharding_key_is_not_sent(cluster: Embedded) -> None:
    cluster.admin.create_topic("sharded-failure", 4)
    given = [("a", b"first"), ("a", b"slow"), ("k", b"bad"), ("k", b"after")]
    numbered = [
        Numbered(line, Message("sharded-failure", body, sharding_key=key))
        for line, (key, body) in enumerate(given, 1)
    ]
    receipts: list[Receipt] = []
    with Failing("failing", namesrv=cluster.namesrv) as producer, pytest.raises(SystemBusy):
        send_all(producer, numbered, Pacer(None), receipts.append)
    assert bodies(cluster, "sharded-failure") == {b"first", b"slow"}
    assert len(receipts) == 2


def test_a_cluster_that_is_away_is_one_sentence_with_a_way_out() -> None:
    said = fail("send", "orders", "x", "--namesrv", "127.0.0.1:1")
    assert "127.0.0.1:1" in said
    assert "penstock up" in said


@pytest.mark.parametrize(("by", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_reports_how_far_it_came(
    by: signal.Signals, code: int, cluster: Embedded
) -> None:
    topic = f"ended-by-{by.name}"
    cluster.admin.create_topic(topic, 1)
    process = subprocess.Popen(
        [*PENSTOCK, "send", topic, "--rate", "200", "--namesrv", cluster.namesrv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        process.stdin.write("x\n" * 20_000)
        process.stdin.flush()
        deadline = time.monotonic() + 60
        while not stored(cluster, topic):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(by)
        _, said = process.communicate(timeout=30)
    assert process.returncode == code
    counted = re.search(r"(\d+) messages were sent before it stopped\.", said)
    assert counted is not None, said
    # Ctrl-C may come when a message has left and its receipt was not counted yet.
    assert len(stored(cluster, topic)) - int(counted[1]) in (0, 1)
    assert "Traceback" not in said


def test_large_lines_wait_for_each_other() -> None:
    waiting = _InFlight(lambda receipt: None)
    assert not waiting.is_full(WINDOW_BYTES + 1), "one may be as large as it likes"
    waiting.add(1, WINDOW_BYTES // 2, Future())
    assert not waiting.is_full(1000)
    assert waiting.is_full(WINDOW_BYTES // 2 + 1)


class Away:
    """Listens in place of a broker that is away, and hangs up on each client that tries."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(30)

    def wait_for_a_try(self) -> None:
        """A client has connected, so a send was tried while there was no broker."""
        self._listener.accept()[0].close()

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("end", [ChildProcess.terminate, ChildProcess.kill], ids=["stop", "kill"])
@pytest.mark.parametrize("options", [[], ["--rate", "500"]], ids=["batches", "singles"])
def test_a_broker_that_restarts_costs_no_line(
    end: Callable[[ChildProcess], int], options: list[str], tmp_path: Path
) -> None:
    def up(namesrv: str, broker: str) -> ChildProcess:
        ports = ["--nameserver-port", namesrv, "--broker-port", broker, "--grpc-port", "off"]
        return ChildProcess([*PENSTOCK, "up", "--data", str(tmp_path), *ports, "--console", "off"])

    def wait_until_stored(namesrv: str, body: bytes) -> list[bytes]:
        deadline = time.monotonic() + 60
        with Admin(namesrv=namesrv) as admin:
            while True:
                found = [message.body for message in read(admin, ends(admin, "restarted"))]
                if body in found:
                    return found
                assert time.monotonic() < deadline, found[-3:]
                time.sleep(0.05)

    with up("0", "0") as first:
        ready = first.wait_for_line(r"^ready namesrv=127\.0\.0\.1:(\d+) broker=127\.0\.0\.1:(\d+) ")
        namesrv = f"127.0.0.1:{ready[1]}"
        with Admin(namesrv=namesrv) as admin:
            admin.create_topic("restarted", 4)
        sending = subprocess.Popen(
            [*PENSTOCK, "send", "restarted", "--namesrv", namesrv, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with sending:
            assert sending.stdin is not None
            sending.stdin.write("before\n")
            sending.stdin.flush()
            wait_until_stored(namesrv, b"before")
            end(first)
            away = Away(int(ready[2]))
            sending.stdin.write("".join(f"during {n}\n" for n in range(300)))
            sending.stdin.flush()
            away.wait_for_a_try()
            away.close()
            with up(ready[1], ready[2]) as second:
                second.wait_for_line("^ready ")
                sending.stdin.write("after\n")
                out, err = sending.communicate(timeout=60)
                assert sending.returncode == 0, err
                found = wait_until_stored(namesrv, b"after")
    expected = {b"before", b"after", *(f"during {n}".encode() for n in range(300))}
    assert set(found) == expected
    assert "Sent 302 messages to restarted" in out
    assert "Traceback" not in err
