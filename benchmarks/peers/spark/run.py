"""The Spark part: downloads jars, starts a process that measures, and collects its results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Final

from benchmarks.peers.servers.server import BUILD, PROJECT, Unavailable, class_path
from benchmarks.peers.spark.plan import KAFKA, SparkPlan

CONNECTOR: Final = "4.2.0"
"""The newest published version when its hashes were recorded; it runs on Spark 4.3."""
SparkRows = dict[str, dict[str, dict[str, list[float]]]]
Failures = list[dict[str, str]]


def connector_jars() -> list[str]:
    """The connector and its dependencies beyond Spark, or raise `Unavailable`."""
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        raise Unavailable("java (17 or newer) and mvn must be on PATH")
    # The broker's jars come first: the worker must not download anything.
    from benchmarks.peers.servers.kafka import Kafka

    Kafka().prepare()
    return class_path(maven, "spark_kafka", CONNECTOR).split(":")


def spark_versions() -> dict[str, str]:
    """The versions of Spark and of the connector."""
    return {"spark": version("pyspark"), KAFKA: CONNECTOR}


def run_spark(plan: SparkPlan) -> dict[str, Any]:
    """All figures by row, side and figure; failures; skipped parts with reasons."""
    skipped: Failures = []
    jars: list[str] = []
    try:
        jars = connector_jars()
    except Unavailable as missing:
        skipped.append({"what": KAFKA, "why": str(missing)})
    rows, failures = collected(plan, jars)
    return {
        "plan": asdict(plan),
        "versions": spark_versions(),
        "rows": rows,
        "failures": failures,
        "skipped": skipped,
    }


def collected(plan: SparkPlan, jars: list[str]) -> tuple[SparkRows, Failures]:
    """The results of the worker; with Kafka if there are jars."""
    rows: SparkRows = {}
    failures: Failures = []
    log = BUILD / "logs" / "spark.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.spark.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
        ) as worker,
    ):
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps({"plan": asdict(plan), "jars": jars}) + "\n")
        worker.stdin.close()
        done = False
        for line in worker.stdout:
            if not line.startswith("{"):
                continue  # output of other libraries
            result = json.loads(line)
            done = done or "done" in result
            sys.stderr.write(f"  spark: {line}")
            if "why" in result:
                failures.append({"who": result["side"], "row": result["row"], "why": result["why"]})
            for what, value in result.get("figures", {}).items():
                figures = rows.setdefault(result["row"], {}).setdefault(result["side"], {})
                figures.setdefault(what, []).append(value)
    if not done:
        why = f"the worker ended with {worker.returncode}: {_last_line(log.read_text())}"
        failures.append({"who": "spark", "row": "all remaining rows", "why": why})
    return rows, failures


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"
