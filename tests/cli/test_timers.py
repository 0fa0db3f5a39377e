"""``penstock timer`` against a broker."""

from __future__ import annotations

import time

from tests.cli.running import fail, succeed

from penstock.model.message_json import MessageJson
from penstock.testing.embedded import Embedded


def test_timers_are_listed_and_recalled(cluster: Embedded) -> None:
    assert "No timer message waits" in succeed("timer", "list", "--topic", "orders").err
    cluster.admin.update_broker_config("broker-a", {"recallMessageEnable": "true"})
    for body, delay in (("late", "2h30m"), ("soon", "45m")):
        succeed("send", "orders", body, "--delay", delay, "--key", body)
    succeed("send", "other", "x", "--delay", "1h1m")
    rows = succeed("timer", "list", "--topic", "orders", "--json").json
    assert [row["keys"] for row in rows] == [["soon"], ["late"]]
    # The words are those of the other commands that list messages.
    assert rows[0].keys() - MessageJson.__annotations__.keys() == {"due_ms", "recall_handle"}
    left = rows[0]["due_ms"] / 1000 - time.time()
    assert 44 * 60 < left < 46 * 60
    assert len(succeed("timer", "list", "--limit", "1", "--json").json) == 1
    done = succeed("timer", "recall", "orders", rows[0]["recall_handle"])
    assert f"Message {rows[0]['msg_id']} is recalled" in done.out
    rows = succeed("timer", "list", "--topic", "orders", "--json").json
    assert [row["keys"] for row in rows] == [["late"]]


def test_a_handle_that_is_none_is_one_sentence(cluster: Embedded) -> None:
    succeed("topic", "create", "orders-2")
    assert "recall handle is invalid" in fail("timer", "recall", "orders-2", "nonsense")
