from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import tempfile

import pytest

QUIET = "penstock.spark.session_setup.worker_daemon"


def stderr_of_a_daemon_whose_jvm_goes_away(module: str) -> str:
    """Start a daemon as Spark's JVM does, have it fork a worker, and vanish."""
    # Not a test's own directory: the name of such a socket has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="workers-") as directory:
        return _stderr_of_a_daemon(module, directory)


def _stderr_of_a_daemon(module: str, directory: str) -> str:
    environment = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": directory,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-m", module, "pyspark.worker"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        path = process.stdout.read(number_of(process.stdout.read(4))).decode()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            with connection.makefile("rb") as stream:
                worker = number_of(stream.read(4))
        wait_for_the_end_of(worker)
        process.stdin.close()
        said: str = process.stderr.read().decode()
    return said


def number_of(data: bytes) -> int:
    number: int = struct.unpack(">i", data)[0]
    return number


def wait_for_the_end_of(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        assert select.select([descriptor], [], [], 60)[0], "the worker lives on"
    finally:
        os.close(descriptor)


def test_a_worker_whose_jvm_is_gone_ends_without_a_word() -> None:
    assert stderr_of_a_daemon_whose_jvm_goes_away(QUIET) == ""


def test_pyspark_s_own_daemon_still_needs_this() -> None:
    # Should a later release be quiet by itself, the module can go.
    assert "BrokenPipeError" in stderr_of_a_daemon_whose_jvm_goes_away("pyspark.daemon")


@pytest.mark.usefixtures("spark")
def test_a_local_session_starts_it() -> None:
    from penstock.spark import session

    assert session().conf.get("spark.python.daemon.module") == QUIET
