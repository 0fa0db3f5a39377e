"""Shared parts of the scenarios that need Spark itself: one session, and logs of handler calls."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from tests.interop.client_lab import Lab

from penstock import StoredMessage
from penstock.spark.session_setup.tuned_session import session

_STARTING = threading.Lock()


def spark_session() -> SparkSession:
    """The session of this run: scenarios run concurrently and share one JVM."""
    with _STARTING:
        # The cheaper compiler pays off: each scenario ends before better code would help.
        options = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
        spark = session("penstock-interop", master="local[2,4]", config=options)
        spark.sparkContext.setLogLevel("ERROR")
        return spark


def table(lab: Lab, topic: str) -> DataFrame:
    """All messages in a topic, as read by Spark."""
    reader = spark_session().read.format("penstock").option("namesrv", lab.cluster.namesrv)
    return reader.option("topic", topic).load()


class Call(NamedTuple):
    """A message as received by a handler on an executor."""

    body: str
    times: int
    topic: str
    queue_id: int
    offset: int
    moment: float


class Notes:
    """Calls of handlers: one line each in a file to which all executors append."""

    def __init__(self, directory: str) -> None:
        self._path = Path(directory) / "notes"

    def add(self, message: StoredMessage, moment: float) -> None:
        call = Call(
            message.body.decode(),
            message.reconsume_times,
            message.topic,
            message.queue.queue_id,
            message.queue_offset,
            moment,
        )
        with self._path.open("a") as file:
            file.write(json.dumps(call) + "\n")

    def read(self) -> list[Call]:
        """The calls so far, in order; an incomplete last line is left out."""
        if not self._path.exists():
            return []
        lines = self._path.read_text().splitlines(keepends=True)
        return [Call(*json.loads(line)) for line in lines if line.endswith("\n")]

    @property
    def bodies(self) -> list[str]:
        return [call.body for call in self.read()]
