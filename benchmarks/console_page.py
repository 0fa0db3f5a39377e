"""What an open page of the console costs a broker, as a share of a core.

A large cluster (10,000 topics, 1,000 groups) is served by `penstock up`. A tab is a client that
does what the console's script does: it reads the page, keeps the stream of live numbers open and
fetches the page again every 2.5 s. The CPU time of the broker's process is compared with the time
that has passed, also without any page; the console is a process of its own and does not count.

    python -m benchmarks.console_page [--full]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
from benchmarks.effort import QUICK, Effort, Figures, at_most, median
from benchmarks.processes import ServerProcess, broker
from benchmarks.script import main

TOPICS: Final = 10_000
GROUPS: Final = 1_000
REFRESH_SECONDS: Final = 2.5
WINDOW: Final = 10
"""The windows are longer than those of other benchmarks by this factor: a tab acts in seconds."""
TARGET_SHARE: Final = 0.02
PAGES: Final = {
    "overview": "",
    "topics": "topics",
    "groups": "groups",
    "group": "groups/group-0000",
    "topic": "topics/orders",
}


def write_tables(config: Path, topics: int, groups: int) -> None:
    """Files of a broker with many topics, and groups that are behind in ``orders`` differently."""
    version = {"timestamp": 1, "counter": 1, "stateVersion": 0}
    topic = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    topic_names = ["orders", *(f"topic-{number:05d}" for number in range(topics))]
    group_names = [f"group-{number:04d}" for number in range(groups)]
    tables: dict[str, dict[str, Any]] = {
        "topics.json": {
            "topicConfigTable": {name: {"topicName": name, **topic} for name in topic_names},
            "dataVersion": version,
        },
        "subscriptionGroup.json": {
            "subscriptionGroupTable": {name: {"groupName": name} for name in group_names},
            "dataVersion": version,
        },
        "consumerOffset.json": {
            "offsetTable": {
                f"orders@{name}": {"0": number * 7 % groups}
                for number, name in enumerate(group_names)
            }
        },
    }
    config.mkdir(parents=True, exist_ok=True)
    for old in config.iterdir():
        old.unlink()
    for file, table in tables.items():
        (config / file).write_text(json.dumps(table))


def run(effort: Effort = QUICK) -> Figures:
    """Measure; a share is the median of rounds. What the broker does by itself is part of it."""
    topics, groups = effort.scaled(TOPICS), effort.scaled(GROUPS)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as data:
        write_tables(Path(data) / "broker-a/config", topics, groups)
        with broker("--data", data, "--console", "0") as server:
            shares = asyncio.run(_measure(server, effort))
    idle = shares.pop("none")
    costs = {name: median(values, 6) for name, values in shares.items()}
    return {
        "benchmark": "console_page",
        "topics": topics,
        "groups": groups,
        "share_of_a_core_without_a_page": median(idle, 6),
        "share_of_a_core_by_page": costs,
        "targets": [
            at_most(f"share of a core for the page {name}", TARGET_SHARE, cost)
            for name, cost in costs.items()
        ],
    }


async def _measure(server: ServerProcess, effort: Effort) -> dict[str, list[float]]:
    found = re.search(r"console=(\S+)", server.ready_line)
    if found is None:
        raise RuntimeError(f"no console in {server.ready_line!r}: pip install 'penstock[console]'")
    seconds = effort.seconds * WINDOW
    shares: dict[str, list[float]] = {name: [] for name in ("none", *PAGES)}
    async with httpx.AsyncClient(base_url=f"{found[1]}c/local/", timeout=60) as client:
        for path in PAGES.values():  # starts the console, and fills its caches
            (await client.get(path)).raise_for_status()
        for _ in range(effort.rounds):
            shares["none"].append(await _share(server, seconds))
            for name, path in PAGES.items():
                tab = asyncio.create_task(_tab(client, path))
                shares[name].append(await _share(server, seconds))
                tab.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await tab
    return shares


async def _share(server: ServerProcess, seconds: float) -> float:
    before, began = server.cpu_seconds(), time.perf_counter()
    await asyncio.sleep(seconds)
    return (server.cpu_seconds() - before) / (time.perf_counter() - began)


async def _tab(client: httpx.AsyncClient, path: str) -> None:
    """An open tab."""
    page = (await client.get(path)).raise_for_status().text
    names = sorted(set(re.findall(r'data-live(?:-html)?="([^"]+)"', page)))[:100]
    async with asyncio.TaskGroup() as group:
        group.create_task(_listen(client, names))
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            (await client.get(path)).raise_for_status()


async def _listen(client: httpx.AsyncClient, names: list[str]) -> None:
    async with client.stream("GET", f"live?watch={quote(','.join(names))}") as stream:
        async for _ in stream.aiter_lines():
            pass


if __name__ == "__main__":
    main(run)
