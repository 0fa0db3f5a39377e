"""What a scrape a second of 10,000 series costs sends.

Two brokers have sent to the same 5,000 topics, which makes two series of each. Sends are measured
alternately: on one broker that is scraped every second, and on one that is not.

    python -m benchmarks.metrics_scrape [--full]
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from pathlib import Path
from typing import Final

import httpx
from benchmarks.effort import QUICK, Effort, Figures, at_least, median, ratio
from benchmarks.load import Measured, ask_successfully, load
from benchmarks.processes import ServerProcess, broker
from benchmarks.requests import send, sends
from benchmarks.script import main

from penstock.protocol.commands import encode_command
from penstock.remoting.loop import run as run_loop

TOPICS: Final = 5_000
BUSY: Final = "bench-busy"
IN_FLIGHT: Final = 256
WINDOW: Final = 10
"""The windows are longer than those of other benchmarks by this factor, for several scrapes."""
TARGET_RATIO: Final = 0.98


def run(effort: Effort = QUICK) -> Figures:
    """Measure; the ratio is that of the broker's CPU time for a send."""
    topics = effort.scaled(TOPICS)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        settings = Path(place) / "broker.conf"
        settings.write_text("metricsDetail=all\n")
        options = ("--metrics", "0", "--config", str(settings), "--console", "off")
        with broker(*options) as scraped, broker(*options) as alone:
            with_it, without, series, size = run_loop(_measure(scraped, alone, topics, effort))
    compared = ratio(
        [one.server_microseconds for one in without], [one.server_microseconds for one in with_it]
    )
    return {
        "benchmark": "metrics_scrape",
        "series": series,
        "scrape_bytes": size,
        "broker_microseconds_scraped": median([m.server_microseconds for m in with_it], 2),
        "broker_microseconds_alone": median([m.server_microseconds for m in without], 2),
        **compared,
        "targets": [at_least("sends beside a scrape a second", TARGET_RATIO, compared["ratio"])],
    }


async def _measure(
    scraped: ServerProcess, alone: ServerProcess, topics: int, effort: Effort
) -> tuple[list[Measured], list[Measured], int, int]:
    for server in (scraped, alone):
        first = [send(BUSY, 0, 128, 0), *(send(f"t{n}", 0, 128, 0) for n in range(topics))]
        await ask_successfully(server.port, first)
    ring = [encode_command(command) for command in sends(BUSY, (0, 1, 2, 3), 128, 1024)]
    found = re.search(r"metrics=(\S+)", scraped.ready_line)
    assert found is not None, scraped.ready_line
    with_it: list[Measured] = []
    without: list[Measured] = []
    seconds = effort.seconds * WINDOW
    async with httpx.AsyncClient(timeout=60) as client:
        page = (await client.get(f"http://{found[1]}/metrics")).raise_for_status()
        series = sum(1 for line in page.text.splitlines() if not line.startswith("#"))
        for _ in range(effort.rounds):
            scraping = asyncio.create_task(_scrape(client, f"http://{found[1]}/metrics"))
            with_it.append(await load(scraped, ring, in_flight=IN_FLIGHT, seconds=seconds))
            scraping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await scraping
            without.append(await load(alone, ring, in_flight=IN_FLIGHT, seconds=seconds))
    return with_it, without, series, len(page.content)


async def _scrape(client: httpx.AsyncClient, url: str) -> None:
    while True:
        await client.get(url)
        await asyncio.sleep(1)


if __name__ == "__main__":
    main(run)
