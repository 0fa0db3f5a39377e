"""The metrics and the health of a broker over HTTP: ``/metrics``, ``/healthz``, ``/readyz``.

It listens before the store is opened and until everything else has stopped, so that a start, a
recovery and a stop can be seen. The text is gathered in slices with turns of the loop in between,
and kept for a second: several scrapers cost as much as one.
"""

from __future__ import annotations

import asyncio
import gzip
import importlib.metadata
import time
from bisect import bisect_left
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from penstock.broker.config import BrokerConfig
from penstock.broker.metrics import collecting
from penstock.broker.metrics.exposition import Family, Histogram, bounded, common_labels, write
from penstock.broker.state import BrokerState
from penstock.remoting.http_get import HttpAnswer, HttpGetServer, HttpRequest
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service
from penstock.runtime.threads import run_to_end

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SERIES_BY_DETAIL: Final = {"broker": 0, "topic": 2_000, "all": 10_000}
"""How many series a family with names of topics or groups may have."""
KEPT_SECONDS: Final = 1.0
LOOP_LAG_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_TICK_SECONDS: Final = 0.5
_GZIP_FROM: Final = 1024
_GZIP_LEVEL: Final = 1


class MetricsExporter(Service):
    """Serves the metrics of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        *,
        state: Callable[[], BrokerState | None],
        not_ready: Callable[[], list[str]],
    ) -> None:
        """``state`` is None until the broker is built; ``not_ready`` says why it does not serve."""
        self._config = config
        self._clock = clock
        self._state = state
        self._not_ready = not_ready
        self._server = HttpGetServer(
            {
                "/metrics": self._metrics,
                "/healthz": self._health,
                "/-/healthy": self._health,
                "/readyz": self._readiness,
            },
            config.metrics_prom_exporter_host,
            config.metrics_prom_exporter_port,
        )
        self._gathering: asyncio.Task[bytes] | None = None
        self._gathered = b""
        self._zipped = b""
        self._gathered_at = float("-inf")
        self._late = [0] * (len(LOOP_LAG_BOUNDS) + 1)
        self._late_seconds = 0.0
        self._version = importlib.metadata.version("penstock")

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    async def _run(self, ready: Callable[[], None]) -> None:
        await self._server.start()
        ready()
        try:
            while True:
                due = self._clock.monotonic() + _TICK_SECONDS
                await self._clock.sleep(_TICK_SECONDS)
                self._note_lateness(max(0.0, self._clock.monotonic() - due))
        finally:
            if self._gathering is not None:
                self._gathering.cancel()
            await self._server.stop()

    def _note_lateness(self, seconds: float) -> None:
        self._late[bisect_left(LOOP_LAG_BOUNDS, seconds)] += 1
        self._late_seconds += seconds

    # Pages

    async def _health(self, request: HttpRequest) -> HttpAnswer:
        """The loop turns, or this would not be answered."""
        return HttpAnswer(b"ok\n")

    async def _readiness(self, request: HttpRequest) -> HttpAnswer:
        reasons = self._not_ready()
        if not reasons:
            return HttpAnswer(b"ready\n")
        text = "".join(f"{reason}\n" for reason in reasons)
        return HttpAnswer(text.encode(), HTTPStatus.SERVICE_UNAVAILABLE)

    async def _metrics(self, request: HttpRequest) -> HttpAnswer:
        text = await self._text()
        if not request.accepts_gzip or len(text) < _GZIP_FROM:
            return HttpAnswer(text, content_type=CONTENT_TYPE)
        if not self._zipped:
            self._zipped = await run_to_end(None, lambda: gzip.compress(text, _GZIP_LEVEL))
        return HttpAnswer(self._zipped, content_type=CONTENT_TYPE, is_gzipped=True)

    async def _text(self) -> bytes:
        """The text of the last second, or a new one; one gathering at a time."""
        if self._gathering is None:
            if self._clock.monotonic() - self._gathered_at < KEPT_SECONDS:
                return self._gathered
            self._gathering = asyncio.get_running_loop().create_task(self._gather())
            self._gathering.add_done_callback(self._end_gathering)
        # Shielded: one scraper that hangs up does not end it for the others.
        return await asyncio.shield(self._gathering)

    def _end_gathering(self, task: asyncio.Task[bytes]) -> None:
        self._gathering = None
        if not task.cancelled() and task.exception() is None:
            self._gathered, self._zipped = task.result(), b""
            self._gathered_at = self._clock.monotonic()

    # Gathering

    async def _gather(self) -> bytes:
        begun = time.perf_counter()
        families: list[Family | Histogram] = list(collecting.process_families(self._version))
        families.append(
            Histogram(
                "penstock_loop_lag_seconds",
                "How late a timer of the loop was.",
                LOOP_LAG_BOUNDS,
                list(self._late),
                self._late_seconds,
            )
        )
        broker = self._state()
        if broker is not None:
            families += await self._families(broker)
        parts: list[str] = []
        for part in write(families, self._common_labels()):
            parts.append(part)
            await asyncio.sleep(0)
        took = Family(
            "penstock_scrape_seconds",
            "gauge",
            "Time to gather the metrics.",
            (),
            [((), time.perf_counter() - begun)],
        )
        parts.extend(write([took], self._common_labels()))
        return "".join(parts).encode()

    async def _families(self, broker: BrokerState) -> list[Family | Histogram]:
        # Asking for the room on a disk may wait for it.
        disk = await run_to_end(None, broker.storage.store.disk_space)
        families: list[Family | Histogram] = list(collecting.broker_families(broker, disk))
        families += collecting.client_families(broker)
        limit = SERIES_BY_DETAIL[self._config.metrics_detail]
        if not limit:
            return families
        dropped: list[tuple[tuple[str, ...], int]] = []
        for family in [
            *await collecting.topic_families(broker),
            *await collecting.lag_families(broker),
        ]:
            kept, left_out = bounded(family, limit)
            families.append(kept)
            if left_out:
                dropped.append(((family.name,), left_out))
        families.append(
            Family(
                "penstock_series_dropped",
                "gauge",
                "Series that are in (other).",
                ("family",),
                dropped,
            )
        )
        return families

    def _common_labels(self) -> str:
        return common_labels(
            (
                ("cluster", self._config.broker_cluster_name),
                ("node_type", "broker"),
                ("node_id", self._config.broker_name),
                *self._config.metrics_labels.items(),
                ("otel_scope_name", "broker-meter"),
            )
        )
