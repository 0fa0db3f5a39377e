"""A program whose Spark runs in a Connect server; prints what it saw as JSON."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from penstock.errors import PenstockError
from penstock.model import StoredMessage
from penstock.spark import Avro, archive, consume, decode, offsets_behind_latest, session


class Handler:
    """Notes what it was called with."""

    def __init__(self, notes: str) -> None:
        self._notes = notes

    def __call__(self, message: StoredMessage) -> None:
        with Path(self._notes).open("a") as notes:
            notes.write(f"{json.loads(message.body)['id']}\n")


def main() -> None:
    remote, namesrv, directory = sys.argv[1:]
    spark = session("connect", remote=remote)
    found: dict[str, object] = {}
    stream = spark.readStream.format("penstock").options(namesrv=namesrv, topic="in")
    try:
        consume(stream.load(), Handler(""), group="g", checkpoint=directory)
    except PenstockError as error:
        found["frame"] = str(error)
    try:
        archive(spark, "in", "hdfs://nowhere/orders", namesrv=namesrv)
    except PenstockError as error:
        found["hadoop"] = str(error)
    rows = spark.read.format("penstock").options(namesrv=namesrv, topic="in").load()
    found["batch"] = rows.count()
    number = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    found["no_avro"] = decode(rows, Avro(number)).rejected.count()
    written = rows.select("body").write.format("penstock").mode("append")
    written.options(namesrv=namesrv, topic="out").save()
    copying = (
        stream.options(group="mirror", startingOffsets="earliest")
        .load()
        .select("body")
        .writeStream.format("penstock")
        .options(namesrv=namesrv, topic="copies", checkpointLocation=f"{directory}/copies")
        .trigger(availableNow=True)
        .start()
    )
    copying.awaitTermination()
    found["behind"] = offsets_behind_latest(copying)
    handling = consume(
        {"namesrv": namesrv, "topic": "in", "startingOffsets": "earliest"},
        Handler(f"{directory}/handled"),
        group="handlers",
        checkpoint=f"{directory}/handling",
        trigger={"availableNow": True},
    )
    handling.awaitTermination()
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # not after threads of Connect that wait for the server
    os._exit(0)
