"""The scenarios of the official Java client, and how one JVM runs them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from tests.interop.programs import run_program
from tests.interop.results import Cell
from tests.interop.servers import Cluster
from tests.interop.toolchain import QUICK, Toolchain

SECTION = "official Java client"
PARALLEL = 6

# Longest first: a retry waits for the client's route poll and its 20 s rebalance.
SCENARIOS = (
    "pop_mode_switched",
    "pop_retries",
    "pop_shared_queue",
    "pop_slow_listener",
    "retry_to_success",
    "retry_to_dead_letters",
    "retry_orderly_to_dead_letters",
    "push_orderly_rebalance",
    "push_rebalance",
    "reset_offset_online",
    "delay_levels",
    "transaction",
    "timer_message",
    "recall_message",
    "push_start_positions",
    "send_sync",
    "send_async",
    "send_oneway",
    "send_batch",
    "send_big",
    "send_too_big",
    "send_compressed_lz4",
    "send_compressed_zstd",
    "send_to_queue",
    "send_vip_channel",
    "send_auto_create",
    "push_concurrent",
    "push_orderly",
    "push_orderly_suspend",
    "push_tags",
    "push_sql92",
    "push_broadcast",
    "push_many",
    "lite_pull_subscribe",
    "lite_pull_assign",
    "old_pull",
    "old_pull_no_permission",
    "old_pull_long_polling",
    "old_pull_offsets",
    "request_reply",
    "query_by_key",
    "query_by_unique_key",
    "query_by_offset_id",
    "reset_offset_offline",
    "consumer_running_info",
    "consume_directly",
    "topic_delete",
)

# Needs a cluster with more than one broker.
SEVERAL_BROKERS = "several_brokers"

PENSTOCK_LIMITS: dict[str, re.Pattern[str]] = {}
"""Scenarios that our broker refuses, and the refusal; none at the moment."""


def run_scenarios(
    toolchain: Toolchain,
    cluster: Cluster,
    names: Sequence[str],
    column: str,
    *,
    options: tuple[str, ...] = QUICK,
    limits: dict[str, re.Pattern[str]] | None = None,
) -> Iterator[Cell]:
    """Run ``names`` in one JVM; yield a cell as each ends, a failure for each without a result."""
    if not names:
        return
    suffix = f"{int(time.time()):x}"
    command = toolchain.command(
        "Scenarios",
        cluster.namesrv,
        cluster.broker,
        suffix,
        str(PARALLEL),
        *names,
        heap="512m",
        options=options,
    )
    yield from run_program(command, names, SECTION, column, limits=limits)
