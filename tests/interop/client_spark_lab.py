"""What the scenarios that need Spark itself share: one session, and notes of their handlers."""

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
    """The session of this run: scenarios run side by side, and one JVM is enough for all."""
    with _STARTING:
        # Compiling less well pays here too: each scenario ends before the better code would.
        options = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
        spark = session("penstock-interop", master="local[2,4]", config=options)
        spark.sparkContext.setLogLevel("ERROR")
        return spark


def table(lab: Lab, topic: str) -> DataFrame:
    """Everything a topic holds now, as Spark reads it."""
    reader = spark_session().read.format("penstock").option("namesrv", lab.cluster.namesrv)
    return reader.option("topic", topic).load()


class Call(NamedTuple):
    """A message as a handler on an executor got it."""

    body: str
    times: int
    topic: str
    queue_id: int
    offset: int
    moment: float


class Notes:
    """What handlers saw: a line each in a file that all executors append to."""

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
        """The calls so far, in their order; a line half written is not there yet."""
        if not self._path.exists():
            return []
        lines = self._path.read_text().splitlines(keepends=True)
        return [Call(*json.loads(line)) for line in lines if line.endswith("\n")]

    @property
    def bodies(self) -> list[str]:
        return [call.body for call in self.read()]
