"""What operators see of pop consumption: modes, lag and messages in flight."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Message, Producer, SimpleConsumer, embedded
from penstock.errors import InvalidArgument, TopicNotFound


@pytest.mark.spec("P56", "P57")
def test_lag_is_what_is_ready_and_in_flight(tmp_path: Any) -> None:
    def lag(mq: Any) -> list[tuple[int, int]]:
        rows = mq.admin.group_lag("workers", topic="jobs")
        return [(row.lag, row.in_flight) for row in rows]

    with embedded(tmp_path, clock="virtual") as mq:
        mq.admin.create_topic("jobs", queues=1)
        with Producer("p", namesrv=mq.namesrv) as producer:
            for i in range(10):
                producer.send(Message("jobs", b"%d" % i))
        consumer = SimpleConsumer(
            "workers", namesrv=mq.namesrv, start_from="first", invisible="10m"
        )
        consumer.subscribe("jobs")
        consumer.start()
        got = consumer.receive(4, wait=0)
        assert lag(mq) == [(10, 4)]
        consumer.ack(got[2])
        assert lag(mq) == [(9, 3)]
        consumer.ack(got[0])
        consumer.ack(got[0])
        assert lag(mq) == [(8, 2)]
        # Killed, not stopped: what it took stays invisible.
        mq.admin.reset_offsets("workers", "jobs", "first")
        assert lag(mq)[0][0] >= 0
        mq.admin.reset_offsets("workers", "jobs", "last")
        assert lag(mq) == [(2, 2)]
        consumer.stop()


def test_the_mode_of_a_group_is_set_and_shown() -> None:
    with embedded(clock="virtual", brokers=2) as mq:
        mq.admin.create_topic("jobs", queues=1)
        mq.admin.create_group("workers")
        assert mq.admin.group_modes("workers") == []
        modes = mq.admin.set_group_mode("workers", "jobs", "pop", share=2)
        assert [(one.topic, one.broker_name, one.mode, one.share) for one in modes] == [
            ("jobs", "broker-a", "POP", 2),
            ("jobs", "broker-b", "POP", 2),
        ]
        with pytest.raises(InvalidArgument, match="push"):
            mq.admin.set_group_mode("workers", "jobs", "push")
        with pytest.raises(TopicNotFound):
            mq.admin.set_group_mode("workers", "unknown", "pop")
