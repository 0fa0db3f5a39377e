"""A job on the session's defaults: scan a store, tell what Java ran it."""

from __future__ import annotations

import json
import os
import sys

from penstock.spark import session


def main() -> None:
    before = set(os.environ)
    with session("no-java", master="local[1]") as spark:
        store = spark.read.format("penstock").option("topic", "golden-four").load(sys.argv[1])
        total = store.selectExpr("sum(length(body))").collect()[0][0]
        system = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
        found = {
            "bytes": total,
            "java_home": system.getProperty("java.home"),
            "version": system.getProperty("java.version"),
            "left_behind": sorted(
                {"JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON"} & (set(os.environ) - before)
            ),
        }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
