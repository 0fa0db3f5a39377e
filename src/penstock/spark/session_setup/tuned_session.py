"""``session()``: a Spark session that is tuned for one machine, and has defaults on a cluster.

The local profile has settings with a measured benefit: Unix sockets to the Python workers (40 ms
less a task), two checkpoint files fewer a micro-batch, no shuffle into 200 parts, no web server. On
other masters only what every job needs is set, so that the same program runs there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkConf
from pyspark.sql import SparkSession

from penstock.errors import InvalidArgument, LifecycleError
from penstock.spark.jvm import activate, running_context
from penstock.spark.session_setup.cached_home_dirs import cached_home_dir
from penstock.spark.session_setup.java import java_home
from penstock.spark.session_setup.orphan_jvm import kill_orphan_on_failure
from penstock.spark.session_setup.registration import register
from penstock.spark.session_setup.stopping import stop_at_exit

DEFAULT_MASTER: Final = "local[*,4]"
"""All cores, and four attempts a task as on a cluster; plain local[*] gives up at the first."""

EVERYWHERE: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
}
LOCAL: Final[Mapping[str, str]] = {
    **EVERYWHERE,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # For a stream that is stopped inside foreachBatch, Spark searches the whole error text with a
    # regular expression that needs more than the usual megabyte, and prints a StackOverflowError.
    "spark.driver.extraJavaOptions": "-Xss8m",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.daemon.module": "penstock.spark.session_setup.worker_daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


# Spark's own logs two lines at every start: that it is used, and that Hadoop has no native code.
_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
# What a stream that is stopped in the middle of a batch had begun. A write that fails is also
# logged by the executor, and raised.
logger.writes.name = org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec
logger.writes.level = off
logger.appends.name = org.apache.spark.sql.execution.datasources.v2.AppendDataExec
logger.appends.level = off
logger.tasks.name = org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask
logger.tasks.level = off
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = warn
logger.utils.filter.aborting.type = RegexFilter
logger.utils.filter.aborting.regex = Aborting task
logger.utils.filter.aborting.onMatch = DENY
logger.utils.filter.aborting.onMismatch = NEUTRAL
logger.cancelled.name = org.apache.spark.scheduler.DAGScheduler
logger.cancelled.level = error
"""


def session(
    name: str = "penstock",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A Spark session with ``format("penstock")`` registered; the running one if there is one.

    If a thread other than the one that created the session writes, it must call this first: Spark
    looks up the formats of writes in the session of the calling thread.

    ``master`` is the argument, else spark-submit's, else this machine with all its cores.
    ``remote`` is the address of a Spark Connect server instead (``"sc://host:15002"``, or in the
    environment as ``SPARK_REMOTE``): nothing runs in this process then, and the Pythons of the
    server need Penstock, too. ``config`` overrides the profile. Java is the machine's
    (``JAVA_HOME``, ``PATH``) if it is 17, 21 or 25, else that of ``pip install 'penstock[java]'``.
    """
    if remote is None and master is None:
        remote = os.environ.get("SPARK_REMOTE")
    if remote is not None:
        from penstock.spark.session_setup.connect_session import connect_session

        if master is not None:
            raise InvalidArgument(
                f"master {master!r} and remote {remote!r}", expected="one of the two"
            )
        return connect_session(name, remote, config or {})
    running = running_context()
    if running is not None:
        if master is not None and running.master != master:
            raise LifecycleError(
                f"a Spark session on {running.master} runs already, not on {master}",
                hint="stop() it first, or leave out master",
            )
        return _registered(_builder(config or {}).getOrCreate())
    given = dict(config or {})
    settings = submitted_settings()
    chosen = master or given.get("spark.master") or settings.get("spark.master") or DEFAULT_MASTER
    profile = LOCAL if is_local(chosen) else EVERYWHERE
    wanted = {key: value for key, value in profile.items() if key not in settings}
    wanted |= {**given, "spark.master": chosen, "spark.app.name": name}
    with _environment(launch_environment(chosen, wanted, os.environ)), kill_orphan_on_failure():
        spark = _builder(wanted).getOrCreate()
    stop_at_exit(spark)
    return _registered(spark)


def _builder(settings: Mapping[str, str]) -> SparkSession.Builder:
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder


def is_local(master: str) -> bool:
    """Whether all of Spark runs in one process; ``local-cluster`` does not."""
    return master == "local" or master.startswith("local[")


def submitted_settings() -> dict[str, str]:
    """The settings that were given to spark-submit, or in ``PYSPARK_SUBMIT_ARGS``."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit has started the JVM: its settings are the JVM's properties.
        return dict(SparkConf().getAll())
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    settings: dict[str, str] = {}
    for word, following in itertools.pairwise([*words, ""]):
        if word == "--master":
            settings["spark.master"] = following
        elif word == "--conf":
            key, _, value = following.partition("=")
            settings[key] = value
    return settings


def launch_environment(
    master: str, settings: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """The environment variables to set while Spark starts; those the user has set are kept."""
    changed: dict[str, str] = {}
    if "PYSPARK_PYTHON" not in environment and "spark.pyspark.python" not in settings:
        # Otherwise workers run the first python3 on PATH, which may have no penstock or pyarrow.
        changed["PYSPARK_PYTHON"] = sys.executable
    if "PYSPARK_GATEWAY_PORT" in environment:
        return changed
    changed["JAVA_HOME"] = str(java_home(environment))
    if is_local(master):
        if "SPARK_LOCAL_IP" not in environment:
            # Otherwise Spark looks for another address first, and logs a warning.
            changed["SPARK_LOCAL_IP"] = LOCAL["spark.driver.host"]
        if "SPARK_HOME" not in environment:
            changed |= _lean_spark_home()
    return changed


def _lean_spark_home() -> dict[str, str]:
    """A ``SPARK_HOME`` whose workers import pyspark as installed, and that logs only warnings.

    With Spark's own home they import it from a zip without bytecode, which costs every kind of
    worker half a second at its first start. A ``SPARK_CONF_DIR`` keeps its own logging.
    """
    installed = Path(pyspark.__file__).parent
    links = {name: installed / name for name in ("bin", "jars", "sbin")}
    if not all(path.is_dir() for path in links.values()):
        return {}  # not pip's package: another installation has its own home
    return {
        "SPARK_HOME": str(cached_home_dir("spark", links, {"conf/log4j2.properties": _LOGGING}))
    }


@contextlib.contextmanager
def _environment(changed: Mapping[str, str]) -> Iterator[None]:
    """Set variables while Spark starts: the JVM inherits them, this process restores its own."""
    before = {key: os.environ.get(key) for key in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def _registered(spark: SparkSession) -> SparkSession:
    register(spark)
    activate(spark)
    return spark
