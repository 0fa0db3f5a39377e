"""``penstock dlq`` on a real broker: found with the reason, redriven once, purged."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
from tests.cli.running import fail, run, succeed

from penstock import DeadLetter, Message, Producer, PushConsumer, StoredMessage
from penstock.admin.redrive_task import RedriveTask
from penstock.model.names import WRITE
from penstock.testing.embedded import Embedded


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def pending(cluster: Embedded, group: str) -> int:
    return sum(place.pending for place in cluster.admin.dead_letter_queues(group))


def give_up(cluster: Embedded, group: str, count: int) -> str:
    """Have ``group`` give up messages 0 to ``count``; odd ones with a timeout. The topic."""
    topic = f"orders-of-{group}"
    cluster.admin.create_topic(topic, 1)
    # One thread: they die in the order they were sent.
    consumer = PushConsumer(
        group, namesrv=cluster.namesrv, start_from="first", max_retries=0, threads=1
    )

    @consumer.on(topic)
    def handle(message: StoredMessage) -> None:
        if int(message.body) % 2:
            raise TimeoutError(f"no answer for {message.body.decode()}")
        raise DeadLetter("card has expired")

    with Producer("shop", namesrv=cluster.namesrv) as producer:
        for n in range(count):
            producer.send(Message(topic, b"%d" % n, keys=[f"o-{n}"], tag="paid"))
    before = pending(cluster, group)
    with consumer:
        until(lambda: pending(cluster, group) == before + count, "all are dead")
    return topic


class Handled:
    """A consumer of a group that handles everything, and counts."""

    def __init__(self, cluster: Embedded, group: str, topic: str) -> None:
        self.bodies: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self._consumer = PushConsumer(group, namesrv=cluster.namesrv, start_from="first")
        self._consumer.on(topic)(self._handle)

    def _handle(self, message: StoredMessage) -> None:
        with self._lock:
            self.bodies[message.body] += 1

    def __enter__(self) -> Handled:
        self._consumer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._consumer.stop()


def test_groups_are_listed_with_what_is_pending(cluster: Embedded) -> None:
    give_up(cluster, "g-list", 3)
    rows = {row["group"]: row for row in succeed("dlq", "list", "--json").json}
    assert (rows["g-list"]["pending"], rows["g-list"]["stored"]) == (3, 3)
    assert ["g-list", "3", "3"] in [line[:3] for line in succeed("dlq", "list").lines]


def test_letters_are_listed_with_reason_and_attempts(cluster: Embedded) -> None:
    topic = give_up(cluster, "g-letters", 4)
    rows = succeed("dlq", "list", "g-letters", "--json").json
    assert [row["body"] for row in rows] == ["0", "1", "2", "3"]
    assert {row["origin_topic"] for row in rows} == {topic}
    assert {row["attempts"] for row in rows} == {1}
    assert {row["state"] for row in rows} == {"pending"}
    assert rows[0]["reason"] == "card has expired"
    assert (rows[1]["reason_type"], rows[1]["reason"]) == ("TimeoutError", "no answer for 1")
    shown = succeed("dlq", "list", "g-letters").out
    assert "TimeoutError: no answer for 3" in shown


def test_letters_are_chosen_by_reason_tag_key_and_expression(cluster: Embedded) -> None:
    give_up(cluster, "g-chosen", 6)

    def listed(*arguments: str) -> list[str]:
        rows = succeed("dlq", "list", "g-chosen", "--json", *arguments).json
        return [row["body"] for row in rows]

    assert listed("--reason", "timeout") == ["1", "3", "5"]
    assert listed("--key", "o-2", "--key", "o-3") == ["2", "3"]
    assert listed("--where", "attempts == 1 and 'answer' in (reason or '')") == ["1", "3", "5"]
    assert listed("--tag", "other") == []
    assert listed("--limit", "2") == ["4", "5"]


def test_one_letter_is_shown_with_everything(cluster: Embedded) -> None:
    topic = give_up(cluster, "g-show", 2)
    [_, row] = succeed("dlq", "list", "g-show", "--json").json
    shown = succeed("dlq", "show", "g-show", row["msg_id"]).out
    for part in ("TimeoutError", "no answer for 1", topic, "KEYS = o-1", "pending"):
        assert part in shown
    assert shown.endswith("body (1 bytes)\n1\n")
    assert succeed("dlq", "show", "g-show", row["offset_msg_id"], "--json").json == row
    assert "no dead letter 'nonsense'" in fail("dlq", "show", "g-show", "nonsense")


def test_one_letter_is_not_called_letters(cluster: Embedded) -> None:
    give_up(cluster, "g-one", 1)
    assert "Redrive 1 of 1 dead letter to group g-one at" in fail("dlq", "redrive", "g-one")
    assert "Purge 1 dead letter of g-one at" in fail("dlq", "purge", "g-one")
    done = succeed("dlq", "redrive", "g-one", "--yes")
    assert done.out == "Redrove 1 dead letter to group g-one; 0 left pending.\n"


def test_a_redriven_letter_is_handled_by_its_group_once(cluster: Embedded) -> None:
    topic = give_up(cluster, "g-redrive", 5)
    done = succeed("dlq", "redrive", "g-redrive", "--yes")
    assert "Redrove 5 dead letters to group g-redrive; 0 left pending." in done.out
    again = succeed("dlq", "redrive", "g-redrive", "--yes")
    assert "nothing to redrive" in again.err
    with Handled(cluster, "g-redrive", topic) as handled:
        until(lambda: len(handled.bodies) == 5, "all were handled")
    assert set(handled.bodies.values()) == {1}
    listed = succeed("dlq", "list", "g-redrive")
    assert listed.out == ""
    assert "--all shows 5 settled ones" in listed.err
    states = [row["state"] for row in succeed("dlq", "list", "g-redrive", "--all", "--json").json]
    assert states == ["redriven"] * 5


def test_redriving_some_and_then_all_sends_nothing_twice(cluster: Embedded) -> None:
    topic = give_up(cluster, "g-some", 6)
    some = succeed("dlq", "redrive", "g-some", "--reason", "Timeout", "--yes", "--json").json
    assert (some["redriven"], some["pending"]) == (3, 3)
    states = [row["state"] for row in succeed("dlq", "list", "g-some", "--json").json]
    assert states == ["pending", "redriven"] * 3
    rest = succeed("dlq", "redrive", "g-some", "--yes", "--json").json
    assert (rest["redriven"], rest["pending"]) == (3, 0)
    assert not set(some["ids"]) & set(rest["ids"])
    with Handled(cluster, "g-some", topic) as handled:
        until(lambda: len(handled.bodies) == 6, "all were handled")
    assert set(handled.bodies.values()) == {1}


def test_a_dry_run_shows_and_changes_nothing(cluster: Embedded) -> None:
    give_up(cluster, "g-dry", 3)
    done = succeed("dlq", "redrive", "g-dry", "--dry-run", "--key", "o-2")
    assert "1 would be redriven." in done.err
    assert "o-2" in done.out
    counted = succeed("dlq", "redrive", "g-dry", "--dry-run", "--json").json
    assert (counted["redriven"], len(counted["ids"]), counted["dry_run"]) == (0, 3, True)
    assert succeed("dlq", "purge", "g-dry", "--dry-run", "--json").json["found"] == 3
    assert pending(cluster, "g-dry") == 3


def test_one_letter_is_redriven_by_its_id_and_a_limit_takes_the_oldest(cluster: Embedded) -> None:
    give_up(cluster, "g-ids", 4)
    rows = succeed("dlq", "list", "g-ids", "--json").json
    wanted = rows[2]["msg_id"]
    report = succeed("dlq", "redrive", "g-ids", "--id", wanted, "--yes", "--json").json
    assert (report["ids"], report["pending"]) == ([wanted], 3)
    report = succeed("dlq", "redrive", "g-ids", "--limit", "1", "--yes", "--json").json
    assert report["ids"] == [rows[0]["msg_id"]]


def test_letters_can_go_to_another_topic_instead(cluster: Embedded) -> None:
    give_up(cluster, "g-topic", 2)
    cluster.admin.create_topic("repairs", 1)
    succeed("dlq", "redrive", "g-topic", "--to-topic", "repairs", "--yes")
    assert {row["body"] for row in succeed("query", "repairs", "--from", "1h", "--json").json} == {
        "0",
        "1",
    }
    assert pending(cluster, "g-topic") == 0


def test_redriving_again_is_possible_when_it_is_said(cluster: Embedded) -> None:
    give_up(cluster, "g-again", 2)
    assert succeed("dlq", "redrive", "g-again", "--yes", "--json").json["redriven"] == 2
    report = succeed("dlq", "redrive", "g-again", "--again", "--yes", "--json").json
    assert (report["redriven"], report["pending"]) == (2, 0)


def test_a_redrive_that_was_stopped_goes_on_where_it_was(cluster: Embedded) -> None:
    topic = give_up(cluster, "g-stopped", 6)
    plan = RedriveTask(
        cluster.admin, "g-stopped", None, cluster.admin.dead_letter_queues("g-stopped")
    )
    plan.plan(lambda letter: True, None)

    def stop_after_two(count: int) -> None:
        if len(plan.sent) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.run(1000, on_sent=stop_after_two)
    assert (len(plan.sent), plan.left) == (2, 4)
    assert pending(cluster, "g-stopped") == 4
    report = succeed("dlq", "redrive", "g-stopped", "--yes", "--json").json
    assert (report["redriven"], report["pending"]) == (4, 0)
    with Handled(cluster, "g-stopped", topic) as handled:
        until(lambda: len(handled.bodies) == 6, "all were handled")
    assert set(handled.bodies.values()) == {1}


def test_letters_sent_without_a_record_are_recognized_by_their_copies(
    cluster: Embedded,
) -> None:
    give_up(cluster, "g-killed", 3)
    # As after a kill between sending and moving the mark.
    cluster.admin.redrive("g-killed", cluster.admin.dead_letters("g-killed")[:2])
    assert pending(cluster, "g-killed") == 3
    report = succeed("dlq", "redrive", "g-killed", "--yes", "--json").json
    assert (report["redriven"], report["pending"]) == (1, 0)
    assert pending(cluster, "g-killed") == 0


def test_a_rate_is_kept(cluster: Embedded) -> None:
    give_up(cluster, "g-rate", 5)
    started = time.monotonic()
    succeed("dlq", "redrive", "g-rate", "--rate", "20", "--yes")
    assert time.monotonic() - started >= 0.2


def test_purged_letters_are_put_aside_and_can_still_be_seen(cluster: Embedded) -> None:
    give_up(cluster, "g-purge", 4)
    done = succeed("dlq", "purge", "g-purge", "--yes")
    assert "Purged 4 dead letters of g-purge." in done.out
    assert succeed("dlq", "list", "g-purge", "--json").json == []
    assert "nothing to redrive" in succeed("dlq", "redrive", "g-purge", "--yes").err
    rows = succeed("dlq", "list", "g-purge", "--all", "--json").json
    assert [row["state"] for row in rows] == ["settled"] * 4
    give_up(cluster, "g-purge", 1)
    assert len(succeed("dlq", "list", "g-purge", "--json").json) == 1


def test_only_what_died_before_a_time_is_purged(cluster: Embedded) -> None:
    give_up(cluster, "g-before", 5)
    rows = succeed("dlq", "list", "g-before", "--json").json
    moment = rows[2]["store_timestamp"]
    kept = [row["body"] for row in rows if row["store_timestamp"] >= moment]
    succeed("dlq", "purge", "g-before", "--before", str(moment), "--yes")
    assert [row["body"] for row in succeed("dlq", "list", "g-before", "--json").json] == kept
    succeed("dlq", "purge", "g-before", "--before", "1h", "--yes")
    assert len(succeed("dlq", "list", "g-before", "--json").json) == len(kept)


def test_a_deleted_dead_letter_topic_is_gone_and_begins_anew(cluster: Embedded) -> None:
    give_up(cluster, "g-delete", 3)
    succeed("dlq", "purge", "g-delete", "--yes")
    succeed("dlq", "purge", "g-delete", "--delete-topic", "--yes")
    assert succeed("dlq", "list", "g-delete", "--all", "--json").json == []
    give_up(cluster, "g-delete", 2)
    assert pending(cluster, "g-delete") == 2


@pytest.mark.parametrize("verb", ["redrive", "purge"])
def test_nothing_changes_without_a_yes(cluster: Embedded, verb: str) -> None:
    group = f"g-ask-{verb}"
    give_up(cluster, group, 1)
    said = fail("dlq", verb, group)
    assert "--yes" in said
    assert "1" in said
    assert pending(cluster, group) == 1


def test_an_unknown_group_is_one_sentence(cluster: Embedded) -> None:
    for verb in ("list", "redrive", "purge"):
        assert "no broker knows consumer group 'nobody'" in fail("dlq", verb, "nobody")


def test_a_group_without_dead_letters_has_none(cluster: Embedded) -> None:
    cluster.admin.create_group("g-healthy")
    assert "has no dead letters" in succeed("dlq", "list", "g-healthy").err
    assert "nothing to redrive" in succeed("dlq", "redrive", "g-healthy", "--yes").err
    assert "Purged 0" in succeed("dlq", "purge", "g-healthy", "--yes").out


def test_a_letter_that_says_no_origin_needs_a_topic(cluster: Embedded) -> None:
    # As another program may have put it there.
    cluster.admin.create_topic("%DLQ%g-foreign", 1)
    cluster.admin.create_group("g-foreign")
    with Producer("tests", namesrv=cluster.namesrv) as producer:
        producer.send(Message("%DLQ%g-foreign", b"whose?"))
    done = run("dlq", "redrive", "g-foreign", "--yes")
    assert done.code == 1
    assert "--to-topic" in done.err
    [row] = succeed("dlq", "list", "g-foreign", "--json").json
    assert (row["reason"], row["reason_text"]) == (None, "not recorded")


def test_a_namespace_is_a_world_of_its_own(cluster: Embedded) -> None:
    inside = ("--namespace", "NS")
    succeed("topic", "create", "bills", "--queues", "1", *inside)
    succeed("send", "bills", "1", "2", *inside)
    consumer = PushConsumer(
        "g-inside", namesrv=cluster.namesrv, namespace="NS", start_from="first", max_retries=0
    )

    @consumer.on("bills")
    def handle(message: StoredMessage) -> None:
        raise TimeoutError

    with consumer:
        until(
            lambda: len(succeed("dlq", "list", "g-inside", "--json", *inside).json) == 2,
            "both are dead",
        )
    assert "no broker knows consumer group 'g-inside'" in fail("dlq", "list", "g-inside")
    purged = succeed("dlq", "purge", "g-inside", "--before", "1h", "--yes", "--json", *inside).json
    assert purged["purged"] == 0
    redriven = succeed("dlq", "redrive", "g-inside", "--yes", "--json", *inside).json
    assert (redriven["redriven"], redriven["pending"]) == (2, 0)
    states = succeed("dlq", "list", "g-inside", "--all", "--json", *inside).json
    assert [row["state"] for row in states] == ["redriven", "redriven"]


def test_letters_that_may_not_be_read_are_one_sentence_with_a_way_out(cluster: Embedded) -> None:
    # As RocketMQ made its dead-letter topics for years: to be written to only.
    give_up(cluster, "g-unreadable", 1)
    cluster.admin.create_topic("%DLQ%g-unreadable", 1, permission=WRITE)
    said = fail("dlq", "list", "g-unreadable")
    assert "penstock topic create '%DLQ%g-unreadable' --permission rw" in said
    succeed("topic", "create", "%DLQ%g-unreadable", "--permission", "rw")
    assert len(succeed("dlq", "list", "g-unreadable", "--json").json) == 1
