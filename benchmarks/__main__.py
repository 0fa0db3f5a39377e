"""Runs benchmarks and reports their results.

    python -m benchmarks [--full | --tiny] [NAME ...]

One JSON document goes to stdout and to ``benchmarks/results/latest.json``: the machine, versions,
all figures, and for every target whether this run met it. A short table of the targets goes to
stderr. `against_apache` and `grpc_against_apache` are not included: they need Java and are run
separately.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks.effort import Effort, Figures
from benchmarks.script import effort_option

NAMES: Final = (
    "send_header",
    "decode_records",
    "broker_path",
    "broker_later",
    "store_append",
    "store_read",
    "store_open",
    "remoting_echo",
    "broker_send",
    "signed_sends",
    "broker_pull",
    "broker_topics",
    "broker_idle",
    "console_page",
    "metrics_scrape",
    "client_send",
    "client_consume",
    "client_latency",
)
SPARK_NAMES: Final = (
    "spark_path",
    "spark_seam",
    "spark_broker",
    "spark_sink",
    "spark_handlers",
    "arrow_read",
)
"""Benchmarks that start Spark, or need its package."""
ALL_NAMES: Final = (*NAMES, *SPARK_NAMES)
RESULTS: Final = Path(__file__).with_name("results") / "latest.json"


def machine() -> Figures:
    """The machine and the versions behind the figures."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "orjson": version("orjson"),
        "uvloop": version("uvloop"),
        "penstock": version("penstock"),
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def run_all(names: list[str], effort: Effort) -> Figures:
    """Run each named benchmark, one after the other."""
    document: Figures = {"machine": machine(), "effort": str(effort), "benchmarks": {}}
    for name in names:
        began = time.monotonic()
        figures: dict[str, Any] = importlib.import_module(f"benchmarks.{name}").run(effort)
        document["benchmarks"][name] = figures
        _print(name, figures, time.monotonic() - began)
    targets = [
        target
        for figures in document["benchmarks"].values()
        for target in figures.get("targets", ())
    ]
    document["targets_met"] = sum(target["met"] for target in targets)
    document["targets"] = len(targets)
    return document


def _print(name: str, figures: Figures, seconds: float) -> None:
    sys.stderr.write(f"{name} ({seconds:.0f} s)\n")
    for target in figures.get("targets", ()):
        met = "yes" if target["met"] else "NO"
        reached = f"{target['reached']:>14,.10g} of {target['target']:>12,.10g}"
        sys.stderr.write(f"  {target['name']:<58} {reached}  {met}\n")
    sys.stderr.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL_NAMES)}")
    effort_option(parser)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in ALL_NAMES]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; known are {', '.join(ALL_NAMES)}")
    logging.disable(logging.INFO)
    document = json.dumps(run_all(options.names or list(ALL_NAMES), options.effort), indent=2)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(document + "\n")
    print(document)


if __name__ == "__main__":
    main()
