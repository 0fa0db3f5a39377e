"""How fast ``penstock.arrow.read`` gives rows: from the files of a store, and from a broker.

A store of two queues with 200-byte bodies is written and read with three columns (offset, store
time, body) and with all, by one thread; then a broker in another process serves it. Rates are rows
per second of wall-clock time. `benchmarks.peers` measures how fast confluent-kafka consumes on the
same machine (the client "confluent"); the first target is the one for one core.

    python -m benchmarks.arrow_read [--full | --tiny]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.effort import FULL, QUICK, Effort, Figures, at_least, median, ratio
from benchmarks.processes import ServerProcess
from benchmarks.script import main
from benchmarks.spark_path import BODY_BYTES, TOPIC, fill

import penstock.arrow
from penstock import Admin, MessageQueue
from penstock.columnar.schema import ALL

MESSAGES: Final = 2_000_000
LEAN: Final = ("offset", "store_timestamp", "body")
TARGET: Final = 1_500_000


def run(effort: Effort = QUICK) -> Figures:
    """Rows per second from a store and from a broker, for three columns and for all."""
    count = effort.scaled(MESSAGES if effort is FULL else MESSAGES // 2)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        store = Path(directory) / "broker-a"
        fill(store, count)
        figures: Figures = {"benchmark": "arrow_read", "rows": count, "body_bytes": BODY_BYTES}
        rates = {name: _rates(store, names, count, effort) for name, names in _COLUMNS.items()}
        for name, each in rates.items():
            figures[f"store_{name}_rows_per_second"] = median(each)
        server = ServerProcess(
            [
                *("-m", "penstock", "up", "--data", directory),
                *("--nameserver-port", "0", "--broker-port", "0"),
            ]
        )
        try:
            namesrv = server.ready_line.partition("namesrv=")[2].split()[0]
            _name_topic(namesrv)
            live = _rates(TOPIC, LEAN, count, effort, namesrv)
        finally:
            server.stop()
    return {
        **figures,
        "broker_lean_rows_per_second": median(live),
        **{f"broker_to_store_{key}": value for key, value in ratio(live, rates["lean"]).items()},
        "targets": [at_least("rows a second from a store", TARGET, median(rates["lean"]))],
    }


_COLUMNS: Final = {"lean": LEAN, "all": ALL}


def _rates(
    source: str | Path,
    names: tuple[str, ...],
    count: int,
    effort: Effort,
    namesrv: str | None = None,
) -> list[float]:
    rates = []
    for number in range(effort.rounds + 1):
        started = time.perf_counter()
        topic = None if isinstance(source, str) else TOPIC
        reader = penstock.arrow.read(source, topic=topic, columns=names, namesrv=namesrv)
        found = sum(batch.num_rows for batch in reader)
        seconds = time.perf_counter() - started
        assert found == count, f"{found} of {count} rows"
        if number:  # the first round fills the page cache
            rates.append(count / seconds)
    return rates


def _name_topic(namesrv: str) -> None:
    """A store that was written without a broker has queues, but no topic in its tables."""
    with Admin(namesrv=namesrv) as admin:
        admin.create_topic(TOPIC, queues=2)
        assert admin.offsets_at(TOPIC, 0).keys() == {
            MessageQueue(TOPIC, "broker-a", number) for number in range(2)
        }


if __name__ == "__main__":
    main(run)
