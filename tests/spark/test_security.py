"""Spark against servers with users and TLS: driver and executors sign, and show no secret."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock import Admin, Tls
from penstock.runtime.child_process import ChildProcess

SECRET = "a-secret-of-the-app"
ADMIN_SECRET = "a-secret-of-the-admin"
UP = (sys.executable, "-m", "penstock", "up", "--nameserver-port", "0", "--broker-port", "0")


class Secured(NamedTuple):
    namesrv: str
    authority: Path

    @property
    def options(self) -> dict[str, str]:
        tls = json.dumps({"ca_file": str(self.authority)})
        access = {"accessKey": "app", "secretKey": SECRET, "tls": tls}
        return {"namesrv": self.namesrv, "topic": "orders", **access}


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    """Servers with TLS and a user that may send to and read one topic."""
    (tmp_path / "admin.secret").write_text(ADMIN_SECRET)
    with ChildProcess(
        (*UP, "--auth", "--tls", "auto", "--admin-secret-file", "admin.secret", "--data", "data"),
        directory=tmp_path,
        environment={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
    ) as child:
        namesrv = child.wait_for_line(r"^ready namesrv=(\S+).*$")[1]
        authority = tmp_path / "data" / "tls" / "ca.pem"
        with Admin(
            namesrv=namesrv,
            tls=Tls(ca_file=authority),
            access_key="admin",
            secret_key=ADMIN_SECRET,
        ) as admin:
            admin.create_topic("orders", 2)
            admin.create_user("app", SECRET)
            admin.grant("app", ["Topic:orders"], ["Pub", "Sub", "Get"])
            admin.grant("app", ["Group:*"], ["Sub", "Get", "Update"])
        yield Secured(namesrv, authority)


@pytest.mark.spec("A91")
def test_spark_signs_over_tls_and_shows_no_secret(
    spark: SparkSession, secured: Secured, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = secured.options
    written = spark.range(200).selectExpr("cast(id AS string) AS body")
    written.write.format("penstock").mode("append").options(**options).save()
    batch = spark.read.format("penstock").options(**options, startingOffsets="earliest").load()
    assert batch.selectExpr("cast(body AS string)").distinct().count() == 200
    batch.explain(mode="extended")
    stream = spark.readStream.format("penstock").options(**options, startingOffsets="earliest")
    query = (
        stream.load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    progress = query.lastProgress
    assert progress is not None
    assert progress["sink"]
    shown = str(progress)
    for wrong in ({"topic": "payroll"}, {"secretKey": "wrong-" + SECRET}):
        with pytest.raises(PySparkException) as refused:
            spark.read.format("penstock").options(**{**options, **wrong}).load().collect()
        assert "NoPermission" in str(refused.value)
        shown += str(refused.value)
    saved = b"".join(
        path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()
    )
    printed = capfd.readouterr()
    for secret in (SECRET, ADMIN_SECRET):
        assert secret not in shown + printed.out + printed.err
        assert secret.encode() not in saved
