"""The session: profile, master and environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import LifecycleError
from penstock.spark.jvm import jvm_of
from penstock.spark.session_setup.tuned_session import (
    DEFAULT_MASTER,
    LOCAL,
    is_local,
    launch_environment,
    session,
    submitted_settings,
)
from penstock.testing.embedded import Embedded


def test_a_running_session_is_returned_and_another_master_refused(spark: SparkSession) -> None:
    assert session().sparkContext is spark.sparkContext
    assert session(master=spark.sparkContext.master).sparkContext is spark.sparkContext
    with pytest.raises(LifecycleError, match=r"runs already, not on spark://elsewhere:7077"):
        session(master="spark://elsewhere:7077")


def test_a_thread_that_did_not_make_the_session_can_write_after_asking_for_it(
    spark: SparkSession, mq: Embedded
) -> None:
    mq.admin.create_topic("orders", queues=1)

    def write() -> None:
        writer = session().range(3).selectExpr("CAST(id AS string) AS body").write.mode("append")
        writer.format("penstock").options(namesrv=mq.namesrv, topic="orders").save()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()
    assert sum(part.count for part in mq.admin.topic_stats("orders")) == 3


def test_the_local_profile_is_in_force_and_the_environment_as_it_was(spark: SparkSession) -> None:
    # The session of the tests has options of its own for the JVM.
    for key, value in LOCAL.items():
        if key == "spark.driver.extraJavaOptions":
            continue
        assert spark.conf.get(key) == value, key
    home = jvm_of(spark).java.lang.System.getenv("SPARK_HOME")
    assert home != os.environ.get("SPARK_HOME")


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", True),
        ("local[*]", True),
        (DEFAULT_MASTER, True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        ("yarn", False),
    ],
)
def test_only_one_process_is_local(master: str, expected: bool) -> None:
    assert is_local(master) is expected


def test_the_settings_of_spark_submit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS",
        "--master spark://host:7077 --conf 'spark.a=b c' --conf spark.ui.enabled=true shell",
    )
    assert submitted_settings() == {
        "spark.master": "spark://host:7077",
        "spark.a": "b c",
        "spark.ui.enabled": "true",
    }
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    assert submitted_settings() == {}


def test_local_workers_import_the_installed_pyspark_and_run_this_python() -> None:
    changed = launch_environment("local[2]", {}, {"PATH": os.environ["PATH"]})
    assert changed["PYSPARK_PYTHON"] == sys.executable
    home = Path(changed["SPARK_HOME"])
    assert (home / "bin" / "spark-submit").is_file()
    assert not (home / "python").exists()


def test_what_the_user_set_stays() -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "SPARK_HOME": "/opt/spark",
        "PYSPARK_PYTHON": "/usr/bin/python3",
        "SPARK_LOCAL_IP": "192.0.2.1",
    }
    assert set(launch_environment("local[2]", {}, environment)) == {"JAVA_HOME"}
    python = launch_environment("local", {"spark.pyspark.python": "/x"}, {"PATH": ""})
    assert "PYSPARK_PYTHON" not in python
    cluster = launch_environment("spark://host:7077", {}, {"PATH": os.environ["PATH"]})
    assert set(cluster) == {"JAVA_HOME", "PYSPARK_PYTHON"}


_LOOKUP_WORKER_ENDED = re.compile(
    r"Traceback \(most recent call last\):"
    r"|  File \".+/pyspark/daemon\.py\", .+"
    r"|    .+"
    r"|BrokenPipeError: .+"
)
"""A line of a trace that has no frames outside of Spark's daemon and this error only."""


@pytest.mark.timeout(400)
def test_a_first_program_prints_nothing_but_its_own() -> None:
    code = "from penstock.spark import session; print(session().range(3).count())"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert done.stdout == "3\n"
    # Spark looks for data sources in a worker of ``pyspark.daemon``, which no setting replaces. On
    # a busy machine that worker may find its socket closed before it is stopped, and it may be
    # stopped in the middle of its trace.
    rest = [line for line in done.stderr.splitlines() if not _LOOKUP_WORKER_ENDED.fullmatch(line)]
    # Java itself says one thing about a module that Spark asks for.
    assert [line for line in rest if "incubator modules" not in line] == []


_LEAVING = """
import sys, time
from penstock import Message, Producer, embedded
from penstock.spark import session

with embedded() as mq:
    with Producer("p", namesrv=mq.namesrv) as producer:
        for number in range(500):
            producer.submit(Message("orders", b"%d" % number))
    spark = session("leaving", master="local[2]")
    for name in ("stopped", "left running"):
        batches = []
        options = {"namesrv": mq.namesrv, "topic": "orders", "maxOffsetsPerTrigger": "5"}
        stream = spark.readStream.format("penstock").options(**options)
        rows = stream.option("startingOffsets", "earliest").load()
        writer = rows.writeStream.foreachBatch(
            lambda batch, number: (batches.append(batch.count()), time.sleep(0.1))
        )
        query = writer.option("checkpointLocation", f"{sys.argv[1]}/{name}").start()
        while len(batches) < 2:
            time.sleep(0.01)
        if name == "stopped":
            query.stop()
    sys.exit(0)
"""


@pytest.mark.timeout(400)
def test_a_stream_that_is_stopped_in_mid_batch_or_left_running_prints_no_trace(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LEAVING, str(tmp_path)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # What Spark's own scheduler and workers say about tasks that end with the session is not ours
    # to hide; it may be cut off anywhere.
    assert not re.search(r'File ".*(/penstock/|py4j)', done.stderr), done.stderr
    assert "py4j" not in done.stderr.lower()


def test_ctrl_c_while_spark_starts_leaves_no_jvm_behind() -> None:
    code = (
        "import _thread, threading, time\n"
        "from penstock.spark import session\n"
        "from penstock.spark.session_setup.orphan_jvm import launched_jvms\n"
        "def press():\n"
        "    while not (found := launched_jvms()): time.sleep(0.01)\n"
        "    print(*found, flush=True)\n"
        "    _thread.interrupt_main()\n"
        "threading.Thread(target=press, daemon=True).start()\n"
        "session('broken-off', master='local[1]')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert "KeyboardInterrupt" in done.stderr
    (jvm,) = map(int, done.stdout.split())
    assert not _runs(jvm)


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
