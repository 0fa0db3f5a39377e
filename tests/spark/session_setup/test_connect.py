"""Spark Connect: a real server, and a program without a JVM of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from penstock import Message, Producer
from penstock.errors import InvalidArgument, LifecycleError, MissingPackage
from penstock.runtime.child_process import ChildProcess
from penstock.spark.session_setup.connect_session import check_workers
from penstock.spark.session_setup.tuned_session import launch_environment, session
from penstock.testing.embedded import Embedded

_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_JOB = Path(__file__).with_name("connect_job.py")
_SECONDS = 280.0
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextlib.contextmanager
def connect_server() -> Iterator[str]:
    """A Connect server on loopback; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": _QUICK,
        "spark.sql.shuffle.partitions": "2",
        # Workers start slowly on a machine that does other things.
        "spark.python.authenticate.socketTimeout": "120s",
    }
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command: list[str | Path] = [
        _SUBMIT,
        "--master",
        "local[2,4]",
        *words,
        "--class",
        _SERVER,
        "spark-internal",
    ]
    environment = launch_environment("local[2,4]", {}, os.environ)
    with ChildProcess(command, environment=environment) as server:
        _until_open(port, server)
        yield f"sc://127.0.0.1:{port}"


def _until_open(port: int, server: ChildProcess) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert server.is_running, server.output
            assert time.monotonic() < deadline, server.output
            time.sleep(0.1)


@pytest.mark.timeout(600)
def test_a_remote_session_reads_writes_streams_and_handles(mq: Embedded, tmp_path: Path) -> None:
    for topic in ("in", "out", "copies"):
        mq.admin.create_topic(topic, 2)
    with Producer("p", namesrv=mq.namesrv) as producer:
        for number in range(20):
            producer.send(Message("in", json.dumps({"id": number}).encode()))
    with connect_server() as remote:
        command: list[str | Path] = [sys.executable, _JOB, remote, mq.namesrv, tmp_path]
        with ChildProcess(command, environment={"PYTHONWARNINGS": "ignore"}) as job:
            found = json.loads(job.wait_for_line(r"^(\{.*\})$", _SECONDS)[1])
    assert found["batch"] == 20
    assert found["no_avro"] == 20
    assert found["behind"][0]["maxOffsetsBehindLatest"] == 0
    for topic in ("out", "copies"):
        assert sum(part.count for part in mq.admin.topic_stats(topic)) == 20
    assert sum(row.committed for row in mq.admin.group_lag("mirror")) == 20
    handled = sorted(int(line) for line in (tmp_path / "handled").read_text().splitlines())
    assert handled == list(range(20))
    assert "cannot be reached through Spark Connect" in found["hadoop"]
    assert "the options of a read instead of a stream" in found["frame"]


def test_what_is_no_remote_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidArgument, match="sc://HOST"):
        session(remote="127.0.0.1:15002")
    with pytest.raises(InvalidArgument, match="one of the two"):
        session(remote="sc://127.0.0.1", master="local[1]")
    with pytest.raises(LifecycleError, match="runs in this process"):
        session(remote="sc://127.0.0.1")
    check_workers(spark)
    with pytest.raises(MissingPackage, match="have no nothing_of_that_name: ") as refused:
        check_workers(spark, "nothing_of_that_name")
    assert "pip install 'penstock[spark]' into it" in str(refused.value)
