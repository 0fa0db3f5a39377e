"""``session(remote=...)``: a session of Spark Connect, whose server runs elsewhere.

Tasks run in Pythons of the server, and need Penstock there. Spark reports that as a stack of its
own in the first read; so it is found out here, before anything else.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import ConnectFailed, InvalidArgument, LifecycleError, MissingPackage
from penstock.spark.jvm import running_context
from penstock.spark.session_setup.registration import register

if TYPE_CHECKING:
    import pyarrow as pa

PACKAGE = "penstock"


def connect_session(name: str, remote: str, config: Mapping[str, str]) -> SparkSession:
    """A session at a Connect server, with the format registered."""
    if not remote.startswith("sc://"):
        raise InvalidArgument(
            f"remote is {remote!r}",
            expected="the address of a Spark Connect server",
            hint="sc://HOST:15002",
        )
    if running_context() is not None:
        raise LifecycleError(
            f"a Spark session with a JVM runs in this process, and none at {remote} can be beside "
            "it",
            hint="stop() it first, or leave out remote",
        )
    if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("grpc_status") is None:
        raise MissingPackage(
            "Spark Connect needs grpcio and grpcio-status, which are not installed",
            hint="pip install 'pyspark[connect]'",
        )
    builder = SparkSession.builder.remote(remote).appName(name)
    for key, value in config.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
        check_workers(spark)
    except PySparkException as error:
        # An error of Connect has a class of its own, which is there only with grpc.
        if "UNAVAILABLE" not in str(error):
            raise
        raise ConnectFailed(
            f"no Spark Connect server answers at {remote}",
            hint="start-connect-server.sh starts one; is its port reachable from here?",
        ) from error
    register(spark)
    return spark


def check_workers(spark: SparkSession, package: str = PACKAGE) -> None:
    """Refuse workers whose Python has no Penstock, with a sentence that says what to do."""

    # A function inside another is sent by value, so that it needs no Penstock to arrive.
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        import pyarrow as pa

        try:
            __import__(package)
            found = "yes"
        except ImportError as error:
            found = str(error)
        for _ in batches:
            columns = [[found], [sys.executable], [sys.version.split()[0]]]
            names = ["found", "python", "version"]
            yield pa.RecordBatch.from_arrays([pa.array(one) for one in columns], names)

    look.__module__ = "__main__"
    where: Any = None
    try:
        answer = spark.range(0, 1, 1, 1).mapInArrow(
            look, "found string, python string, version string"
        )
        [where] = answer.collect()
    except PySparkException as error:
        if "No module named" not in str(error):
            raise
        missing = str(error).partition("No module named")[2].split("\n")[0].strip()
        raise _missing(f"a package {missing}", "their Python", spark) from error
    if where.found != "yes":
        raise _missing(package, f"their Python, {where.python} ({where.version})", spark)
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not where.version.startswith(f"{mine}."):
        raise LifecycleError(
            f"the workers of this Spark run Python {where.version}, and this program {mine}",
            expected="the same minor version, or functions cannot be sent there",
            hint="set PYSPARK_PYTHON where the server is started",
        )


def _missing(what: str, python: str, spark: SparkSession) -> MissingPackage:
    return MissingPackage(
        f"the workers of Spark {spark.version} have no {what}: {python}",
        hint="pip install 'penstock[spark]' into it, or set PYSPARK_PYTHON to a Python that has it "
        "where Spark is started",
    )
