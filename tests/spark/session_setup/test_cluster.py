"""The same job on a real cluster: a standalone master and two workers, each a process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from penstock import Message, Producer, PullConsumer
from penstock.runtime.child_process import ChildProcess
from penstock.spark.session_setup.java import java_home
from penstock.testing.embedded import Embedded

_SCRIPT = Path(__file__).parent / "cluster_job.py"
_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_START_SECONDS = 120.0


class Cluster:
    """A master and its workers."""

    def __init__(self, url: str, workers: list[ChildProcess]) -> None:
        self.url = url
        self.workers = workers


@contextlib.contextmanager
def standalone(directory: Path, workers: int) -> Iterator[Cluster]:
    """Spark's own cluster on loopback; pip's package has the classes but no start scripts."""
    environment = {
        "JAVA_HOME": str(java_home(os.environ)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    package = "org.apache.spark.deploy"
    with contextlib.ExitStack() as stack:
        address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]

        def start(name: str, *arguments: str | Path) -> ChildProcess:
            command = [_SPARK_CLASS, f"{package}.{name}", *address, *arguments]
            return stack.enter_context(ChildProcess(command, environment=environment))

        master = start("master.Master")
        found = master.wait_for_line(r"Starting Spark master at (spark://\S+)", _START_SECONDS)
        url = found[1]
        started = [
            start("worker.Worker", "-c", "1", "-m", "1g", "-d", directory / f"worker-{n}", url)
            for n in range(workers)
        ]
        for worker in started:
            worker.wait_for_line("Successfully registered with master", _START_SECONDS)
        yield Cluster(url, started)


@pytest.mark.timeout(600)
def test_a_job_runs_on_a_cluster_by_changing_the_master(mq: Embedded, tmp_path: Path) -> None:
    mq.admin.create_topic("orders", queues=2)
    mq.admin.create_topic("copies", queues=2)
    bodies = [f"message {number:03d}" for number in range(100)]
    with Producer(group="shop", namesrv=mq.namesrv) as producer:
        for body in bodies:
            producer.send(Message("orders", body.encode(), tag="t", keys=[body.replace(" ", "-")]))
    (tmp_path / "elsewhere").mkdir()
    with standalone(tmp_path, workers=2) as cluster:
        ran = subprocess.run(
            [
                sys.executable,
                _SCRIPT,
                cluster.url,
                mq.namesrv,
                str(mq.data),
                f"file:{tmp_path / 'checkpoint'}",
            ],
            cwd=tmp_path / "elsewhere",
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert ran.returncode == 0, ran.stderr
        for worker in cluster.workers:
            worker.wait_for_line("Asked to launch executor", 1.0)
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found == {"path": bodies, "broker": bodies, "tasks": 2, "timezone": "UTC"}
    assert list((tmp_path / "elsewhere").iterdir()) == []
    with PullConsumer(group="check", namesrv=mq.namesrv, start_from="first") as consumer:
        consumer.subscribe("copies")
        copies: list[str] = []
        while batch := consumer.poll(5):
            copies += [message.body.decode() for message in batch]
    assert sorted(copies) == bodies
