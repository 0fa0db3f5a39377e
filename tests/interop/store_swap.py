"""Exchanges store directories between ``penstock.store`` and Apache's broker, in both directions.

Each direction is compared message by message: what one side wrote (or the official client reported)
against what the other side reads. A store is handed over after a clean stop and as a killed process
leaves it. Segments are small, so the log, the queues and the index all have several files.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.interop import pop_swap, timer_swap, transaction_swap
from tests.interop.results import FAIL, PASS, Cell
from tests.interop.servers import (
    BROKER_NAME,
    Cluster,
    apache_broker,
    apache_namesrv,
    penstock_up,
)
from tests.interop.toolchain import BUILD, Toolchain

from penstock.model.hosts import pack_host
from penstock.model.properties import encode_properties, parse_properties
from penstock.protocol.records.batches import BatchItem
from penstock.protocol.records.codec import Record, decode_record
from penstock.protocol.records.compression import Compression, compress, decompress
from penstock.protocol.records.message_ids import UniqueIds, offset_message_id
from penstock.protocol.records.sys_flags import SysFlag
from penstock.store import Draft, MessageStore, StoreConfig

SECTION = "store directories"
SIZES = {
    "mappedFileSizeCommitLog": "262144",
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
CONFIG = StoreConfig(
    mapped_file_size_commit_log=262144,
    mapped_file_size_consume_queue=6000,
    max_hash_slot_num=100,
    max_index_num=400,
)
TOPICS = {"swap-plain-swap": 4, "swap-batch-swap": 2, "swap-big-swap": 1}
PLAIN, BATCH, BIG = TOPICS
# One key per kind of message, one that many share, one that no message has.
KEYS = {
    PLAIN: ("key-0", "key-999", "shared-7", "no-such-key"),
    BATCH: ("batch-0", "batch-639"),
    BIG: ("noise-3", "text-19"),
}
HOST = pack_host("127.0.0.1", 10911)

Described = dict[str, Any]  # a message as one line of JSON


def write_store(root: Path) -> MessageStore:
    """One of our stores with every kind of record that a broker can write; still open."""
    store = MessageStore(root, CONFIG)
    store.open()
    now = int(time.time() * 1000)
    ids = UniqueIds(bytes((127, 0, 0, 1)), 4711, 0x12345678)

    def draft(topic: str, queue_id: int, body: bytes, keys: str, tag: str, **more: Any) -> Draft:
        properties = {"KEYS": keys, "TAGS": tag, "UNIQ_KEY": ids.next(now), "WAIT": "true"}
        properties |= {"colour": f"grün-{keys}"}
        return Draft(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=encode_properties(properties),
            born_timestamp=now,
            born_host=HOST,
            store_host=HOST,
            **more,
        )

    for number in range(1_000):
        keys = f"key-{number} shared-{number % 50}"
        body = f"plain body {number}".encode()
        store.append(draft(PLAIN, number % 4, body, keys, f"tag-{number % 3}", flag=number))
        if number % 100 == 0:
            store.write()
    for first in range(0, 640, 32):
        shared = draft(BATCH, first // 32 % 2, b"", "unused", "unused")
        items = [draft(BATCH, 0, b"in a batch", f"batch-{first + n}", "tag") for n in range(32)]
        store.append_batch(shared, [BatchItem(item.body, item.properties) for item in items])
        store.write()
    for number in range(20):
        noise = hashlib.shake_256(bytes([number])).digest(20_000 + 1_000 * number)
        text = compress(b"squeeze me " * (5_000 + number))
        store.append(draft(BIG, 0, noise, f"noise-{number}", "noise"))
        squeezed = draft(BIG, 0, text, f"text-{number}", "text", sys_flag=Compression.ZLIB.sys_flag)
        store.append(squeezed)
    store.write()
    store.flush()
    _write_topics(root)
    return store


def _write_topics(root: Path) -> None:
    # A broker without its topic table serves no topic, even if its queues are on disk.
    table = {
        topic: {
            "order": False,
            "perm": 6,
            "readQueueNums": queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": queues,
        }
        for topic, queues in TOPICS.items()
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": int(time.time() * 1000)}
    path = root / "config" / "topics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"dataVersion": version, "topicConfigTable": table}))


def read_store(store: MessageStore) -> list[Described]:
    """Every message of the exchanged topics, queue by queue, as our store reads them."""
    described: list[Described] = []
    for topic, queue_id in sorted(store.queues()):
        if topic not in TOPICS:
            continue
        offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        while offset < end:
            result = store.read(topic, queue_id, offset)
            described += [describe(record) for part in result.slices for record in _records(part)]
            if result.next_offset <= offset:
                raise AssertionError(f"{topic}/{queue_id} at {offset}: {result.status}")
            offset = result.next_offset
    return described


def _records(view: memoryview) -> Iterator[Record]:
    position = 0
    while position < len(view):
        record = decode_record(view, position, check_crc=True)
        yield record
        position += record.size


def describe(record: Record) -> Described:
    """A record with the same field names as ``StoreSwap.describe`` on the Java side."""
    body = decompress(record.body, record.sys_flag)
    properties = parse_properties(record.properties)
    offset_id = offset_message_id(record.store_host, record.log_position)
    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "log_position": record.log_position,
        "size": record.size,
        "flag": record.flag,
        "sys_flag": record.sys_flag & ~SysFlag.COMPRESSED,
        "born_timestamp": record.born_timestamp,
        "store_timestamp": record.store_timestamp,
        "reconsume_times": record.reconsume_times,
        "body_length": len(body),
        "body_sha256": hashlib.sha256(body).hexdigest(),
        "msg_id": properties.get("UNIQ_KEY", offset_id),
        "offset_msg_id": offset_id,
        "properties": dict(properties),
    }


def keys_of(store: MessageStore) -> dict[str, set[str]]:
    """The messages that our index finds by each key."""
    return {
        key: {
            describe(decode_record(view))["offset_msg_id"]
            for view in store.query(topic, key, max_count=64).slices
        }
        for topic, keys in KEYS.items()
        for key in keys
    }


class JavaView(NamedTuple):
    """A broker's store as the official client sees it."""

    messages: list[Described]
    keys: dict[str, set[str]]
    committed: dict[str, int]


def ask_java(toolchain: Toolchain, cluster: Cluster, *, fill: bool) -> JavaView:
    """The content of the broker: every message, the messages of each key, a group's offsets."""
    command = toolchain.command(
        "StoreSwap",
        cluster.namesrv,
        cluster.broker,
        "fill" if fill else "keep",
        *(f"{topic}={','.join(keys)}" for topic, keys in KEYS.items()),
        heap="256m",
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"StoreSwap ended with {done.returncode}: {done.stderr[-2000:]}")
    view = JavaView([], {}, {})
    for line in done.stdout.splitlines():
        described = json.loads(line) if line.startswith("{") else {}
        if "key" in described:
            view.keys[described["key"]] = set(filter(None, described["ids"].split(",")))
        elif "committed" in described:
            view.committed[described["queue"]] = described["committed"]
        elif described:
            view.messages.append(described)
    return view


def difference(wrote: Iterable[Described], read: Iterable[Described]) -> str | None:
    """The first missing, extra or different message; None if both are equal."""
    expected, found = _by_position(wrote), _by_position(read)
    if missing := sorted(expected.keys() - found.keys()):
        return f"{len(missing)} of {len(expected)} messages are missing, first {missing[0]}"
    if more := sorted(found.keys() - expected.keys()):
        return f"{len(more)} messages too many, first {more[0]}"
    for place, message in expected.items():
        other = found[place]
        for field, value in message.items():
            if other.get(field) != value:
                return f"{place}: {field} was {value!r}, is {other.get(field)!r}"
    return None


def _by_position(described: Iterable[Described]) -> dict[tuple[str, int, int], Described]:
    return {(one["topic"], one["queue_id"], one["queue_offset"]): one for one in described}


def _compared(
    wrote: Sequence[Described],
    read: Sequence[Described],
    keys_before: Mapping[str, set[str]],
    keys_after: Mapping[str, set[str]],
) -> tuple[str, str]:
    problem = difference(wrote, read)
    if problem is None and keys_before != keys_after:
        wrong = [key for key in keys_before if keys_before[key] != keys_after[key]]
        problem = f"keys find different messages: {wrong}"
    if problem is not None:
        return FAIL, problem
    found = sum(map(len, keys_after.values()))
    return PASS, f"{len(read)} messages equal, {found} found by {len(keys_after)} keys"


@contextmanager
def _apache_with_sizes(
    toolchain: Toolchain, directory: Path, *, kill: bool = False
) -> Iterator[Cluster]:
    with (
        apache_namesrv(toolchain, directory) as namesrv,
        apache_broker(toolchain, directory, namesrv, SIZES, kill=kill) as cluster,
    ):
        yield cluster


def ours_to_apache(toolchain: Toolchain, directory: Path, *, killed: bool) -> tuple[str, str]:
    """Apache's broker opens a store that we wrote."""
    root = directory / "store"
    written = directory / "written" if killed else root
    store = write_store(written)
    wrote, keys = read_store(store), keys_of(store)
    if killed:
        # The files of a live writer are the same as after its death.
        shutil.copytree(written, root)
    store.close()
    with _apache_with_sizes(toolchain, directory) as cluster:
        view = ask_java(toolchain, cluster, fill=False)
    return _compared(wrote, view.messages, keys, view.keys)


def apache_to_ours(toolchain: Toolchain, directory: Path, *, killed: bool) -> tuple[str, str]:
    """Our store opens a store that Apache wrote: first read-only, then to continue writing."""
    with _apache_with_sizes(toolchain, directory, kill=killed) as cluster:
        wrote, keys, _ = ask_java(toolchain, cluster, fill=True)
    reader = MessageStore.open_readonly(directory / "store", CONFIG)
    status, evidence = _compared(wrote, read_store(reader), keys, keys_of(reader))
    reader.close()
    if status == FAIL:
        return status, f"read-only: {evidence}"
    with MessageStore(directory / "store", CONFIG) as store:
        status, evidence = _compared(wrote, read_store(store), keys, keys_of(store))
        if status == FAIL:
            return status, evidence
        at = store.append(Draft(topic=PLAIN, queue_id=0, body=b"one more"))
        store.write()
        if at.queue_offset != sum(one["topic"] == PLAIN and one["queue_id"] == 0 for one in wrote):
            return FAIL, f"the next message got offset {at.queue_offset}"
    return status, evidence


def up_to_apache(toolchain: Toolchain, directory: Path) -> tuple[str, str]:
    """Apache's broker continues with the directory of a stopped ``penstock up``."""
    with penstock_up(directory, SIZES) as cluster:
        wrote = ask_java(toolchain, cluster, fill=True)
    shutil.copytree(directory / "data" / BROKER_NAME, directory / "store")
    with _apache_with_sizes(toolchain, directory) as cluster:
        return _same_view(wrote, ask_java(toolchain, cluster, fill=False))


def apache_to_up(toolchain: Toolchain, directory: Path) -> tuple[str, str]:
    """``penstock up`` continues with the directory of a stopped Apache broker."""
    with _apache_with_sizes(toolchain, directory) as cluster:
        wrote = ask_java(toolchain, cluster, fill=True)
    shutil.copytree(directory / "store", directory / "data" / BROKER_NAME)
    with penstock_up(directory) as cluster:
        return _same_view(wrote, ask_java(toolchain, cluster, fill=False))


def _same_view(wrote: JavaView, read: JavaView) -> tuple[str, str]:
    if wrote.committed != read.committed:
        return FAIL, f"committed offsets were {wrote.committed}, are {read.committed}"
    status, evidence = _compared(wrote.messages, read.messages, wrote.keys, read.keys)
    return status, f"{evidence}, {len(read.committed)} committed offsets"


SWAPS: dict[str, Callable[[Toolchain, Path], tuple[str, str]]] = {
    "swap_ours_to_apache": lambda tools, path: ours_to_apache(tools, path, killed=False),
    "swap_ours_killed_to_apache": lambda tools, path: ours_to_apache(tools, path, killed=True),
    "swap_apache_to_ours": lambda tools, path: apache_to_ours(tools, path, killed=False),
    "swap_apache_killed_to_ours": lambda tools, path: apache_to_ours(tools, path, killed=True),
    "swap_penstock_up_to_apache": up_to_apache,
    "swap_apache_to_penstock_up": apache_to_up,
    **{
        f"swap_{what}{'_killed' if killed else ''}_{way}": functools.partial(swap, killed=killed)
        for what, way, swap in (
            ("transactions", "to_apache", transaction_swap.to_apache),
            ("transactions", "from_apache", transaction_swap.from_apache),
            ("timers", "to_apache", timer_swap.to_apache),
            ("timers", "from_apache", timer_swap.from_apache),
            ("pop", "to_apache", pop_swap.to_apache),
            ("pop", "from_apache", pop_swap.from_apache),
        )
        for killed in (False, True)
    },
}


def run_swaps(
    toolchain: Toolchain, directory: Path, names: Sequence[str], column: str
) -> Iterator[Cell]:
    """Run the exchanges with one Apache version; yield a cell for each."""
    for name in names:
        began = time.monotonic()
        place = directory / f"{name}-{toolchain.version}"
        try:
            status, evidence = SWAPS[name](toolchain, place)
        except Exception as error:  # the matrix shows the failure; the other cells continue
            status, evidence = FAIL, f"{type(error).__name__}: {error}"
            kept = BUILD / "failed" / f"{name}-{toolchain.version}"
            shutil.rmtree(kept, ignore_errors=True)
            if place.exists():
                shutil.copytree(place, kept)
        spent = int((time.monotonic() - began) * 1000)
        yield Cell(SECTION, name, column, status, evidence, spent)
