"""``penstock tail`` and ``penstock query`` on a real broker."""

from __future__ import annotations

import json
import re
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.cli.running import PENSTOCK, Done, fail, run, succeed, wait_for

from penstock import Message, MessageQueue, Producer, PushConsumer, Receipt
from penstock.runtime.child_process import ChildProcess
from penstock.testing.embedded import Embedded


def send(cluster: Embedded, *messages: Message) -> list[Receipt]:
    with Producer("tests", namesrv=cluster.namesrv) as producer:
        return [producer.send(message) for message in messages]


def numbered(cluster: Embedded, topic: str, count: int, queues: int = 2) -> list[Receipt]:
    """Messages 0, 1, 2 ... of a new topic, each with a tag, a key and some JSON."""
    cluster.admin.create_topic(topic, queues)
    return send(
        cluster,
        *(
            Message(
                topic,
                json.dumps({"n": n}).encode(),
                tag="even" if n % 2 == 0 else "odd",
                keys=[f"k-{n}"],
            )
            for n in range(count)
        ),
    )


def numbers(done: Done) -> list[int]:
    return [json.loads(json.loads(line)["body"])["n"] for line in done.out.splitlines()]


def test_the_newest_are_shown_oldest_first(cluster: Embedded) -> None:
    numbered(cluster, "t-newest", 25)
    assert numbers(succeed("tail", "t-newest", "--json")) == list(range(15, 25))
    assert numbers(succeed("tail", "t-newest", "--json", "--last", "3")) == [22, 23, 24]
    assert succeed("tail", "t-newest", "--last", "0").out == ""


def test_the_newest_that_are_wanted_are_looked_for_further_back(cluster: Embedded) -> None:
    numbered(cluster, "t-back", 60, queues=1)
    done = succeed("tail", "t-back", "--json", "--last", "2", "--where", "json['n'] < 5")
    assert numbers(done) == [3, 4]


def test_from_the_start_all_queues_come_merged_by_time(cluster: Embedded) -> None:
    numbered(cluster, "t-merged", 9, queues=3)
    assert numbers(succeed("tail", "t-merged", "--json", "--from", "earliest")) == list(range(9))


def test_it_starts_at_the_given_place(cluster: Embedded) -> None:
    numbered(cluster, "t-from", 10, queues=1)
    assert numbers(succeed("tail", "t-from", "--json", "--from", "7")) == [7, 8, 9]
    assert numbers(succeed("tail", "t-from", "--json", "--from", "1h", "--limit", "2")) == [0, 1]
    assert succeed("tail", "t-from", "--from", "latest").out == ""
    part = cluster.admin.messages(MessageQueue("t-from", "broker-a", 0), 0)
    moment = part.messages[-1].store_timestamp
    expected = [n for n, m in enumerate(part.messages) if m.store_timestamp >= moment]
    assert numbers(succeed("tail", "t-from", "--json", "--from", str(moment))) == expected
    future = datetime.fromtimestamp(moment / 1000 + 3600, UTC).isoformat()
    assert succeed("tail", "t-from", "--from", future).out == ""


def test_a_start_behind_the_end_is_reported_with_the_end(cluster: Embedded) -> None:
    numbered(cluster, "t-behind", 3, queues=1)
    done = succeed("tail", "t-behind", "--from", "99999")
    assert (done.out, done.err) == ("", "Nothing after that; t-behind ends at broker-a:0@3.\n")
    cluster.admin.create_topic("t-bare", 1)
    assert (
        succeed("tail", "t-bare", "--from", "earliest").err == "Topic t-bare holds no messages.\n"
    )
    assert "has no unit" in fail("tail", "t-behind", "--from=-5")


def test_tag_key_expression_and_queue_choose(cluster: Embedded) -> None:
    receipts = numbered(cluster, "t-chosen", 12)
    everything = ("tail", "t-chosen", "--json", "--from", "earliest")
    assert sorted(numbers(succeed(*everything, "--tag", "odd"))) == [1, 3, 5, 7, 9, 11]
    assert sorted(numbers(succeed(*everything, "--key", "k-3", "--key", "k-8"))) == [3, 8]
    both = succeed(*everything, "--tag", "odd", "--where", "json['n'] > 7")
    assert sorted(numbers(both)) == [9, 11]
    first = [n for n, receipt in enumerate(receipts) if receipt.queue.queue_id == 1]
    assert numbers(succeed(*everything, "--queue", "1")) == first
    assert "no such queue" in fail("tail", "t-chosen", "--queue", "9")


def test_a_line_for_people_shows_tag_keys_and_body(cluster: Embedded) -> None:
    numbered(cluster, "t-lines", 1, queues=1)
    assert succeed("tail", "t-lines").out.endswith('broker-a:0@0  [even]  k-0  {"n": 0}\n')


def test_messages_on_which_the_expression_fails_are_reported(cluster: Embedded) -> None:
    numbered(cluster, "t-fails", 3)
    done = succeed("tail", "t-fails", "--where", "json['price'] > 1")
    assert done.out == ""
    assert "failed for 3 messages" in done.err


def test_no_group_and_no_offset_is_left_behind(cluster: Embedded) -> None:
    numbered(cluster, "t-trace", 40)
    before = cluster.admin.groups()
    succeed("tail", "t-trace", "--from", "earliest")
    assert cluster.admin.groups() == before
    assert cluster.admin.topic_groups("t-trace") == []


def test_following_shows_what_comes_until_ctrl_c(cluster: Embedded) -> None:
    cluster.admin.create_topic("t-follow", 2)
    send(cluster, Message("t-follow", b"before"))
    process = ChildProcess(
        [*PENSTOCK, "tail", "t-follow", "-f", "--json", "--namesrv", cluster.namesrv]
    )
    with process:
        process.wait_for_line('"body":"before"')
        for n in range(5):
            send(cluster, Message("t-follow", b"%d" % n, tag="new"))
        process.wait_for_line('"body":"4"')
        # Queues that are added while it runs are followed, too.
        cluster.admin.create_topic("t-follow", 3)
        with Producer("tests", namesrv=cluster.namesrv) as producer:
            producer.send(
                Message("t-follow", b"new queue"), queue=MessageQueue("t-follow", "broker-a", 2)
            )
        process.wait_for_line('"body":"new queue"')
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    shown = [json.loads(line)["body"] for line in process.output.splitlines()]
    assert shown == ["before", "0", "1", "2", "3", "4", "new queue"]


def test_following_waits_for_servers_that_go_away(tmp_path: Path) -> None:
    def up(*ports: str) -> ChildProcess:
        flags = ("--nameserver-port", ports[0], "--broker-port", ports[1])
        return ChildProcess([*PENSTOCK, "up", "--data", str(tmp_path / "data"), *flags])

    def say(body: bytes) -> None:
        with Producer("tests", namesrv=namesrv) as producer:
            producer.send(Message("t-away", body))

    with up("0", "0") as server:
        ready = server.wait_for_line(r"namesrv=127.0.0.1:(\d+) broker=127.0.0.1:(\d+)")
        namesrv = f"127.0.0.1:{ready[1]}"
        say(b"before")
        with ChildProcess([*PENSTOCK, "tail", "t-away", "-f", "-n", namesrv]) as following:
            following.wait_for_line("before")
            assert server.terminate() == 0
            following.wait_for_line("waiting for it")
            with up(ready[1], ready[2]) as again:
                again.wait_for_line("ready")
                say(b"after")
                following.wait_for_line("Connected again")
                following.wait_for_line("after")
                following.send_signal(signal.SIGINT)
                assert following.wait() == 0
    assert len(re.findall("before|after", following.output)) == 2


# A member of a group


def committed(cluster: Embedded, group: str, topic: str) -> list[int]:
    return [row.committed for row in cluster.admin.group_lag(group, topic=topic)]


def test_a_member_acknowledges_what_it_prints_and_nothing_else(cluster: Embedded) -> None:
    numbered(cluster, "t-member", 8, queues=1)
    member = ("tail", "t-member", "--group", "printing", "--from", "first", "--json")
    first = succeed(*member, "--limit", "3")
    assert numbers(first) == [0, 1, 2]
    assert "Joined group printing" in first.err
    assert committed(cluster, "printing", "t-member") == [3]
    assert numbers(succeed(*member, "--limit", "5")) == [3, 4, 5, 6, 7]
    assert committed(cluster, "printing", "t-member") == [8]


def test_a_member_consumes_until_ctrl_c(cluster: Embedded) -> None:
    cluster.admin.create_topic("t-joined", 1)
    member = ("--group", "joined", "--from", "first")
    process = ChildProcess(
        (*PENSTOCK, "tail", "t-joined", "--json", "-n", cluster.namesrv, *member)
    )
    with process:
        process.wait_for_line("Joined group joined")
        send(cluster, Message("t-joined", b"hello"))
        process.wait_for_line('"body":"hello"')
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    assert committed(cluster, "joined", "t-joined") == [1]


def test_a_member_does_as_the_others_do(cluster: Embedded) -> None:
    numbered(cluster, "t-other", 4, queues=1)
    consumer = PushConsumer("others", namesrv=cluster.namesrv, orderly=True, start_from="first")
    consumer.on("t-other", tags="even")(lambda message: None)
    with consumer:
        wait_for(lambda: len(consumer.assignment()) == 1)
        joining = ("--group", "others", "--limit", "1")
        assert "subscribe with 'even'" in fail("tail", "t-other", *joining, "--tag", "odd")
        cluster.admin.create_topic("t-elsewhere", 1)
        assert "miss messages" in fail("tail", "t-elsewhere", *joining)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--last", "3"], "--group together with --last"),
        (["--queue", "0"], "--group together with --queue"),
        (["--key", "k"], "--group together with --key"),
        (["--where", "True"], "--group together with --where"),
        (["--from", "7"], "first, last or a time"),
    ],
)
def test_what_a_member_cannot_do_is_one_sentence(
    cluster: Embedded, arguments: list[str], said: str
) -> None:
    cluster.admin.create_topic("t-wrong", 1)
    assert said in fail("tail", "t-wrong", "--group", "wrong", *arguments)


# Formats


def test_a_format_describes_the_line_of_a_message(cluster: Embedded) -> None:
    cluster.admin.create_topic("t-format", 1)
    body = json.dumps({"total": 7, "customer": {"id": "c-1"}, "items": ["x", "y"]}).encode()
    send(
        cluster,
        Message("t-format", body, tag="paid", keys=["a", "b"], properties={"region": "eu"}),
        Message("t-format", b"\xff{}", tag="raw"),
    )
    text = (
        "{tag:>6}|{keys}|{json[total]:03d}|{json[customer][id]}|{json[items][1]}|"
        "{properties[region]}|{size}\\t{{}}"
    )
    shown = succeed("tail", "t-format", "--from", "first", "--format", text, "--limit", "1").out
    assert shown == f"  paid|a,b|007|c-1|y|eu|{len(body)}\t{{}}\n"
    missing = succeed("tail", "t-format", "--last", "1", "--format", "{json[total]:03d} {body}").out
    assert missing == "- \\xff{}\n"
    found = succeed("query", "t-format", "--key", "b", "--format", "{topic} {queue_id}@{offset}")
    assert found.out == "t-format 0@0\n"
    msg_id = succeed("query", "t-format", "--key", "a", "--format", "{msg_id}").out.strip()
    assert succeed("query", "--id", msg_id, "--format", "{tag}").out == "paid\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{tagg}", "did you mean tag?"),
        ("{message.__class__}", "names among"),
        ("{tag", "expected '{stored:%H:%M:%S} {tag} {text}'"),
        ("{tag!r}", "has !r"),
        ("{size:{size}}", "braces within braces"),
        ("{size:%}x", None),
        ("{tag:d}", "does not fit"),
    ],
)
def test_a_format_that_means_nothing_is_refused(
    cluster: Embedded, text: str, said: str | None
) -> None:
    if "t-reject" not in cluster.admin.topics():
        numbered(cluster, "t-reject", 1, queues=1)
    if said is None:
        succeed("tail", "t-reject", "--format", text)
    else:
        assert said in fail("tail", "t-reject", "--format", text)
    both = run("tail", "t-reject", "--format", "{tag}", "--json")
    assert both.code == 1
    assert "both --format and --json" in both.err


def test_a_wrong_topic_is_named_with_the_one_that_was_meant(cluster: Embedded) -> None:
    cluster.admin.create_topic("t-spelling", 1)
    assert "did you mean t-spelling?" in fail("tail", "t-speling")
    assert "did you mean t-spelling?" in fail("query", "t-speling", "--key", "k")


def test_a_wrong_place_to_start_is_one_sentence(cluster: Embedded) -> None:
    cluster.admin.create_topic("t-wrong", 1)
    said = fail("tail", "t-wrong", "--from", "someday")
    assert "first, last, an offset, or a time" in said
    assert "one of them" in fail("tail", "t-wrong", "--from", "1h", "--last", "3")


# ------------------------------------------------------------------------------------- query


def test_a_message_is_found_by_either_id(cluster: Embedded) -> None:
    receipt = numbered(cluster, "q-id", 3)[1]
    for found in (
        succeed("query", "--id", receipt.msg_id, "--json").json,
        succeed("query", "q-id", "--id", receipt.offset_msg_id, "--json").json,
    ):
        assert found["msg_id"] == receipt.msg_id
        assert found["body"] == '{"n": 1}'
        assert (found["topic"], found["queue_id"]) == ("q-id", receipt.queue.queue_id)
    shown = succeed("query", "--id", receipt.msg_id).out
    assert "KEYS = k-1" in shown
    assert shown.endswith('{"n": 1}\n')


def test_messages_are_found_by_key(cluster: Embedded) -> None:
    cluster.admin.create_topic("q-key", 2)
    send(cluster, *(Message("q-key", b"%d" % n, keys=["same"], tag="t") for n in range(5)))
    found = succeed("query", "q-key", "--key", "same", "--json").json
    assert {message["body"] for message in found} == {"0", "1", "2", "3", "4"}
    limited = succeed("query", "q-key", "--key", "same", "--limit", "2")
    assert len(limited.lines) == 3
    assert "--limit 2" in limited.err
    assert succeed("query", "q-key", "--key", "other", "--json").json == []
    wanted = succeed("query", "q-key", "--key", "same", "--where", "body == b'3'", "--json").json
    assert [message["body"] for message in wanted] == ["3"]


def test_messages_are_found_by_the_time_they_were_stored(cluster: Embedded) -> None:
    cluster.admin.create_topic("q-time", 2)
    moments = []
    for n in range(6):
        [receipt] = send(cluster, Message("q-time", b"%d" % n))
        moments.append(cluster.admin.message(receipt.offset_msg_id).store_timestamp)
        time.sleep(0.005)  # So that each has a millisecond of its own.
    span = ("--from", str(moments[2]), "--to", str(moments[4]))
    found = succeed("query", "q-time", *span, "--json").json
    assert [message["body"] for message in found] == ["2", "3"]
    until = succeed("query", "q-time", "--to", str(moments[1]), "--json").json
    assert [message["body"] for message in until] == ["0"]
    assert len(succeed("query", "q-time", "--from", "1h", "--json").json) == 6
    for first, last in (("first", "last"), ("earliest", "latest")):
        assert len(succeed("query", "q-time", "--from", first, "--to", last, "--json").json) == 6
        assert succeed("query", "q-time", "--from", last, "--json").json == []
        assert "expected last, or a time" in fail("query", "q-time", "--to", first)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to search for"),
        (["orders"], "nothing to search for"),
        (["--key", "k"], "nothing to search for"),
        (["--id", "7F", "--key", "k"], "an id alone"),
        (["orders", "--from", "1h", "--to", "2h"], "an end after the start"),
        (["--id", "nonsense"], "no message 'nonsense'"),
    ],
)
def test_a_question_that_cannot_be_answered_is_one_sentence(
    cluster: Embedded, arguments: list[str], said: str
) -> None:
    cluster.admin.create_topic("orders", 1)
    assert said in fail("query", *arguments)
