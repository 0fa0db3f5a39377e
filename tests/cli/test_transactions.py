"""``penstock transaction`` on a real broker."""

from __future__ import annotations

from tests.cli.running import fail, succeed
from tests.support.waiting import wait_for

from penstock import Message, Producer
from penstock.testing.embedded import Embedded


def test_transactions_are_listed_and_resumed(cluster: Embedded) -> None:
    cluster.admin.create_topic("payments", 1)
    where = ("--namesrv", cluster.namesrv)
    nothing = succeed("transaction", "list", *where)
    assert "There are no transactions without a decision." in nothing.out + nothing.err
    settings = {"transactionTimeOut": "100", "transactionCheckInterval": "100"}
    before = cluster.admin.broker_config("broker-a")
    cluster.admin.update_broker_config("broker-a", {**settings, "transactionCheckMax": "1"})
    try:
        with Producer(
            "bank", namesrv=cluster.namesrv, check_transaction=lambda message: None
        ) as producer:
            half = producer.send_in_transaction(Message("payments", b"x"), lambda message: None)
            [row] = succeed("transaction", "list", *where, "--group", "bank", "--json").json
            assert (row["msg_id"], row["topic"], row["group"]) == (half.msg_id, "payments", "bank")
            wait_for(lambda: cluster.admin.transactions()[0].is_given_up)
        [row] = succeed("transaction", "list", *where, "--topic", "payments", "--json").json
        assert (row["state"], row["checks"]) == ("given up", 1)
        assert succeed("transaction", "list", *where, "--topic", "other", "--json").json == []
        shown = succeed("transaction", "list", *where)
        assert half.msg_id in shown.out
        assert "putting message back" in fail("transaction", "resume", half.offset_msg_id, *where)
        done = succeed("transaction", "resume", row["offset_msg_id"], *where, "--json")
        assert done.json == {"resumed": row["offset_msg_id"]}
        with Producer(
            "bank",
            namesrv=cluster.namesrv,
            check_transaction=lambda message: True,
            topics=["payments"],
        ):
            wait_for(lambda: all(one.is_given_up for one in cluster.admin.transactions()))
        assert cluster.admin.message(half.msg_id).topic == "payments"
    finally:
        cluster.admin.update_broker_config(
            "broker-a", {key: before[key] for key in (*settings, "transactionCheckMax")}
        )
