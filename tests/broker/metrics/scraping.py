"""Asks a broker for its metrics and its health over HTTP."""

from __future__ import annotations

import asyncio
import gzip
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from penstock.broker import Broker

SECONDS = 60
PROM: dict[str, object] = {"metrics_exporter_type": "PROM", "metrics_prom_exporter_port": 0}

Key = tuple[str, frozenset[tuple[str, str]]]


class Answer(NamedTuple):
    """An answer of HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes


async def ask(address: str, path: str, *more: str) -> Answer:
    """GET a page."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        lines = [f"GET {path} HTTP/1.1", f"Host: {address}", "Connection: close", *more, "", ""]
        writer.write("\r\n".join(lines).encode())
        async with asyncio.timeout(SECONDS):
            data = await reader.read(-1)
    finally:
        writer.close()
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in rest)
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    return Answer(int(first.split()[1]), headers, body)


def address_of(broker: Broker) -> str:
    assert broker.metrics_address is not None
    return broker.metrics_address


class Metrics:
    """Parsed metrics."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of all series of a name that have these labels."""
        return [
            value
            for (sample, found), value in self.samples.items()
            if sample == name and labels.items() <= dict(found).items()
        ]

    def value(self, name: str, **labels: str) -> float:
        """The value of one series; 0 if there is none."""
        found = self.values(name, **labels)
        assert len(found) <= 1, (name, labels)
        return found[0] if found else 0.0

    def labels(self, name: str) -> set[frozenset[str]]:
        """The sets of label names that the series of a name have."""
        return {
            frozenset(key for key, _ in labels) for sample, labels in self.samples if sample == name
        }


async def scrape(broker: Broker) -> Metrics:
    """The metrics as they are now."""
    answer = await ask(address_of(broker), "/metrics")
    assert answer.status == 200, answer
    return Metrics(answer.body.decode())
