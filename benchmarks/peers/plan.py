"""The plan of a run: which client on which server, which rows, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from benchmarks.peers.adapter import LINGER_SECONDS

WINDOW: Final = 4096
_Thing = TypeVar("_Thing")


class Pair(NamedTuple):
    """A client on a server."""

    client: str
    """The name of its package; ours has two interfaces."""
    server: str
    module: str
    """The module under ``clients``."""

    def __str__(self) -> str:
        return f"{self.client} on {self.server}"

    @property
    def is_ours(self) -> bool:
        return self.client.startswith("penstock")


PAIRS: Final = (
    Pair("penstock", "penstock", "penstock_client"),
    Pair("penstock-blocking", "penstock", "penstock_blocking_client"),
    Pair("penstock", "apache", "penstock_client"),
    Pair("rocketmq-python-client", "apache", "rocketmq_client"),
    Pair("rocketmq", "apache", "rocketmq_cpp_client"),
    Pair("aiokafka", "kafka", "aiokafka_client"),
    Pair("kafka-python", "kafka", "kafka_python_client"),
    Pair("confluent-kafka", "kafka", "confluent_client"),
    Pair("nats-py", "nats", "nats_client"),
    Pair("redis", "redis", "redis_client"),
    Pair("aio-pika", "rabbitmq", "aio_pika_client"),
)


class SendRow(NamedTuple):
    """A row that sends as fast as possible."""

    name: str
    body_bytes: int
    window: int
    linger: float


SINGLE: Final = SendRow("send_single_128", 128, 1, 0.0)
SEND: Final = SendRow("send_128", 128, WINDOW, LINGER_SECONDS)
SEND_LARGE: Final = SendRow("send_1024", 1024, WINDOW, LINGER_SECONDS)
WARM_UP: Final = SEND._replace(name="warm_up")
CONSUME: Final = "consume_128"
DISK: Final = "disk_128"


def latency_row(rate: int) -> str:
    """The name of the latency row for a rate."""
    return f"latency_{rate}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run."""

    rounds: int = 3
    seconds: float = 3.0
    """Duration of each sending row; the drain of its messages takes at most twice as long."""
    rates: tuple[int, ...] = (1000,)
    """Messages per second of the latency rows."""
    synced_rounds: int = 1
    """Rounds in which every message is on the disk before it is acknowledged."""
    pairs: tuple[Pair, ...] = PAIRS

    def servers(self) -> list[str]:
        """The servers in the order in which they are first needed."""
        return list(dict.fromkeys(pair.server for pair in self.pairs))

    def on(self, server: str, number: int) -> list[Pair]:
        """The clients of one server, in the order of one round."""
        return rotated([pair for pair in self.pairs if pair.server == server], number)


def rotated(things: Sequence[_Thing], number: int) -> list[_Thing]:
    """Start with a different one in each round, so that none always runs on a warmer machine."""
    start = number % len(things) if things else 0
    return [*things[start:], *things[:start]]


def chosen(words: Sequence[str]) -> tuple[Pair, ...]:
    """The pairs selected by a client, by a server, or by ``client@server``."""
    found = tuple(
        pair
        for pair in PAIRS
        if any(word in (pair.client, pair.server, f"{pair.client}@{pair.server}") for word in words)
    )
    known = {name for pair in PAIRS for name in (*pair[:2], f"{pair.client}@{pair.server}")}
    unknown = sorted(set(words) - known)
    if unknown:
        raise ValueError(f"no client or server {', '.join(unknown)}; known are {sorted(known)}")
    return found
