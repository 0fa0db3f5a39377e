"""The scenarios of our own client, and how one process runs them."""

from __future__ import annotations

import re
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

from tests.interop import client_consuming as consuming
from tests.interop import client_operating as operating
from tests.interop import client_popping as popping
from tests.interop import client_retrying as retrying
from tests.interop import client_sending as sending
from tests.interop import client_spark as spark
from tests.interop import client_spark_handling as spark_handling
from tests.interop import client_spark_pipelines as spark_pipelines
from tests.interop import client_spark_writing as spark_writing
from tests.interop.client_lab import Failed, Lab, NotApplicable
from tests.interop.results import FAIL, LIMIT, NOT_APPLICABLE, PASS, Cell
from tests.interop.servers import Cluster

SECTION = "Penstock client"
PARALLEL = 5
LIMIT_SECONDS = 150.0

Run = Callable[[Lab], str]

# Features that penstock refuses so far; a cell is a "limit" only if the refusal was observed.
PENSTOCK_LIMITS: dict[str, re.Pattern[str]] = {}

# Longest first: retries and rebalances wait for the clock.
_RUNS: tuple[Run, ...] = (
    retrying.retry_to_success,
    retrying.retry_to_dead_letters,
    retrying.dead_letter_at_once,
    retrying.retry_orderly_to_dead_letters,
    spark_handling.spark_consume_retries,
    spark_pipelines.spark_redrive,
    spark_handling.spark_consume_stream,
    spark_handling.spark_consume,
    spark_handling.spark_consume_ordered,
    spark_writing.spark_sink_stream,
    spark_writing.spark_sink_delay,
    spark_writing.spark_sink,
    spark_writing.spark_sink_topics,
    spark_writing.spark_sink_queues,
    spark_pipelines.spark_archive,
    consuming.push_orderly_rebalance,
    consuming.push_rebalance,
    sending.transaction,
    operating.admin_reset_online,
    operating.pull_rebalance,
    consuming.push_start_positions,
    consuming.push_pause_resume_seek,
    consuming.push_graceful_stop,
    sending.send_sync,
    sending.send_async,
    sending.send_oneway,
    sending.send_batch,
    sending.send_linger,
    sending.send_compressed,
    sending.send_compressed_lz4,
    sending.send_compressed_zstd,
    sending.send_big,
    sending.send_too_big,
    sending.send_delay,
    sending.send_sharding_key,
    sending.send_to_queue,
    sending.send_auto_create,
    sending.several_threads,
    sending.aio_send,
    sending.request_reply,
    consuming.push_concurrent,
    consuming.push_async_handlers,
    consuming.push_batches,
    consuming.push_many,
    consuming.aio_push,
    consuming.push_orderly,
    consuming.push_orderly_suspend,
    consuming.push_tags,
    consuming.push_sql92,
    consuming.push_broadcast,
    popping.pop_simple,
    popping.pop_extend_and_reject,
    popping.pop_push,
    operating.pull_subscribe,
    operating.pull_assign_seek_commit,
    operating.pull_seek_time,
    operating.pull_long_polling,
    operating.aio_pull,
    operating.admin_topics,
    operating.admin_groups,
    operating.admin_cluster,
    operating.admin_lag_and_reset,
    operating.admin_query,
    operating.admin_clients,
    operating.admin_consume_directly,
    operating.admin_reads_queues,
    spark.spark_batch,
    spark.spark_stream,
)
RUNS: Mapping[str, Run] = {f"client_{run.__name__}": run for run in _RUNS}


def run_clients(
    cluster: Cluster,
    names: Sequence[str],
    column: str,
    *,
    runs: Mapping[str, Run] = RUNS,
    section: str = SECTION,
    parallel: int = PARALLEL,
    limits: Mapping[str, re.Pattern[str]] | None = None,
    **access: Any,
) -> Iterator[Cell]:
    """Run ``names``, a few at a time; yield a cell as each ends."""
    if not names:
        return
    suffix = f"{int(time.time()):x}"

    def one(name: str) -> Cell:
        began = time.monotonic()
        status, evidence = _outcome(runs[name], cluster, f"{name}-{suffix}", access)
        refusal = (limits or {}).get(name)
        if status == FAIL and refusal is not None and (seen := refusal.search(evidence)):
            status, evidence = LIMIT, seen.group().strip()
        spent = int((time.monotonic() - began) * 1000)
        return Cell(section, name, column, status, evidence, spent)

    with ThreadPoolExecutor(parallel) as pool:
        running: list[Future[Cell]] = [pool.submit(one, name) for name in names]
        for future in as_completed(running):
            yield future.result()


def _outcome(run: Run, cluster: Cluster, unique: str, access: Mapping[str, Any]) -> tuple[str, str]:
    """Run one scenario on its own thread, so that a stuck one does not stop the others."""
    outcome: list[tuple[str, str]] = []

    def work() -> None:
        try:
            lab = Lab(cluster, unique, **access)
            try:
                outcome.append((PASS, run(lab)))
            finally:
                lab.close()
        except NotApplicable as reason:
            outcome.append((NOT_APPLICABLE, str(reason)))
        except Failed as failure:
            outcome.append((FAIL, str(failure)))
        except Exception as error:  # the matrix shows the failure; the other cells continue
            place = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in place if "interop" in frame.filename][-1:]
            where = f" at {ours[0].name}:{ours[0].lineno}" if ours else ""
            outcome.append((FAIL, f"{type(error).__name__}: {error}{where}"))

    thread = threading.Thread(target=work, name=unique, daemon=True)
    thread.start()
    thread.join(LIMIT_SECONDS)
    return outcome[0] if outcome else (FAIL, f"not finished after {LIMIT_SECONDS:.0f} s")
