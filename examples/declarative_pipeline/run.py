"""A Spark Declarative Pipeline that reads a topic and writes tables and another topic.

python examples/declarative_pipeline/run.py   (needs: pip install 'penstock[spark,java]'
                                               'pyspark[pipelines]')

It starts a broker in this process, sends orders, runs the pipeline in this directory with
``spark-pipelines`` and prints the result. With a broker of your own, this is all you need:

    NAMESRV_ADDR=127.0.0.1:9876 spark-pipelines run --spec spark-pipeline.yml
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.dataset
import pyspark

from penstock import Message, Producer, PullConsumer, embedded
from penstock.spark.session_setup.java import java_home

HERE = Path(__file__).parent
ORDERS = 30


def run_pipeline(namesrv: str, work: Path) -> None:
    """Run ``spark-pipelines`` on a copy of the pipeline; tables and checkpoints go to ``work``."""
    pipeline = work / "pipeline"
    shutil.copytree(HERE, pipeline)
    spec = pipeline / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/penstock-declarative", str(work)))
    home = Path(pyspark.__file__).parent
    settings = {
        "spark.sql.warehouse.dir": f"file://{work}/tables",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # it runs only for seconds
    }
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    done = subprocess.run(
        [home / "bin" / "spark-pipelines", "--remote", "local[2]", *words, "run", "--spec", spec],
        env={
            **os.environ,
            "NAMESRV_ADDR": namesrv,
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(java_home(os.environ)),
            "PYSPARK_PYTHON": sys.executable,
        },
        cwd=work,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"spark-pipelines ended with {done.returncode}:\n{done.stdout[-6000:]}")


def main() -> None:
    with embedded() as mq, tempfile.TemporaryDirectory() as name:
        mq.admin.create_topic("orders", 2)
        mq.admin.create_topic("large-orders", 1)
        with Producer("shop", namesrv=mq.namesrv) as producer:
            for number in range(ORDERS):
                order = {"shop": f"shop-{number % 3}", "amount": number * 20}
                body = json.dumps(order).encode()
                producer.send(Message("orders", body, keys=[f"o-{number}"]))
        print(f"{ORDERS} orders sent; spark-pipelines is running ...", flush=True)
        run_pipeline(mq.namesrv, Path(name))

        sold = pyarrow.dataset.dataset(f"{name}/tables/sold_by_shop", format="parquet").to_table()
        for row in sorted(sold.to_pylist(), key=lambda row: row["shop"]):
            print(f"{row['shop']}: {row['orders']} orders, {row['amount']} in all")
        with PullConsumer("reader", namesrv=mq.namesrv, start_from="first") as consumer:
            consumer.subscribe("large-orders")
            large: list[str] = []
            while messages := consumer.poll(2):
                large += [message.keys[0] for message in messages]
        print("large orders:", ", ".join(sorted(large)))


if __name__ == "__main__":
    main()
