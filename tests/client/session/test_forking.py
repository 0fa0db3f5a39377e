"""Clients that are made before a fork and started after it, as servers with workers do."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from tests.support.scripted import ThreadedCluster

WORKERS = """
    import os, sys
    from penstock import PushConsumer, Producer, PullConsumer

    def make(cls, **kinds):
        return cls("g", namesrv=sys.argv[1], **kinds)

    unnamed = [make(Producer), make(PullConsumer), make(PushConsumer)]
    named = [make(Producer, instance="mine"), make(PushConsumer, model="broadcasting")]
    unnamed[2].on("T")(print)
    named[1].on("T")(print)
    made = [client.client_id for client in (*unnamed, *named)]
    for _ in range(2):
        child = os.fork()
        if child == 0:
            for client in (*unnamed, *named):
                client.start()
            print(*made, *(client.client_id for client in (*unnamed, *named)), flush=True)
            for client in (*unnamed, *named):
                client.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    for client in unnamed:
        client.start()
        client.stop()
    print(*made, *(client.client_id for client in (*unnamed, *named)), flush=True)
"""


def test_each_worker_goes_by_a_name_of_its_own_but_keeps_one_it_was_given(
    cluster: ThreadedCluster,
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(WORKERS), cluster.namesrv],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    made = lines[0][:5]
    first, second, parent = (line[5:] for line in lines)
    assert [line[:5] for line in lines] == [made] * 3
    # Members of one name take the same share: every message would be handled once a worker.
    assert len({*made, *first, *second}) == 3 * 3 + 2
    assert first[3:] == second[3:] == made[3:]
    assert parent == made
