"""Single messages that are made visible together leave the same store as one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.model.hosts import pack_host
from penstock.model.properties import indexed_values
from penstock.protocol.records.sys_flags import SysFlag
from penstock.store import Draft, MessageStore, StoreConfig
from penstock.store.bulk.alike import shared_tag
from penstock.store.index_builder import ENOUGH

HOST = pack_host("127.0.0.1", 10911)
NOW = 1_700_000_000_000
ADDED = b"MSG_REGION\x01DefaultRegion\x02"
TEMPLATES = (
    b"UNIQ_KEY\x01%b\x02WAIT\x01true\x02TAGS\x01created\x02" + ADDED,
    b"TAGS\x01paid\x02UNIQ_KEY\x01%b\x02" + ADDED,
    b"UNIQ_KEY\x01%b\x02",
    b"UNIQ_KEY\x01%b",
    b"KEYS\x01k1 k2\x02UNIQ_KEY\x01%b\x02",
    b"TAGS\x01t\x02TAGS\x01\x02UNIQ_KEY\x01%b\x02",
    b"UNIQ_KEY\x01other\x02UNIQ_KEY\x01%b\x02",
    b"XUNIQ_KEY\x01other\x02UNIQ_KEY\x01%b\x02TAGS\x01t\x02",
    b"aUNIQ_KEY\x01%b\x02UNIQ_KEY\x01%b\x02TAGS\x01t\x02",
    b"TAGS\x01%b\x02UNIQ_KEY\x01%b\x02",
)
IDS = (
    b"7F0000013A2218B4AAC2%012X",
    b"FD000000000000000000000000000002535353FFD2B00000%08X",
    b"%d",
    b"\xc3\xa9%08X",
    b"id %090d",
)
SHARED = st.tuples(st.sampled_from(TEMPLATES), st.sampled_from(IDS))
OTHERS = st.lists(
    st.tuples(
        st.integers(0, ENOUGH + 9),
        st.sampled_from(
            ["topic", "tag", "keys", "prepared", "commit", "no id", "schedule", "empty"]
        ),
    ),
    max_size=2,
)


def opened(path: Path, arrivals: list[tuple[object, ...]] | None, clock: list[int]) -> MessageStore:
    config = StoreConfig(
        mapped_file_size_commit_log=64 << 10,
        mapped_file_size_consume_queue=2000,
        max_index_num=100,
        max_hash_slot_num=32,
    )
    store = MessageStore(path, config, time_ms=lambda: clock[0])
    store.open()
    if arrivals is not None:
        store.on_arrival(lambda *heard_of: arrivals.append(heard_of))
    return store


def draft(template: bytes, id_form: bytes, number: int, queue_id: int) -> Draft:
    unique_id = id_form % number
    properties = template.replace(b"%b", unique_id)
    return Draft(
        *("orders", queue_id, b"body %d" % number, properties, 0, 0, 77, HOST, HOST),
        unique_id=unique_id,
    )


def odd(usual: Draft, how: str) -> Draft:
    """A message that is not like the others."""
    changes: dict[str, dict[str, object]] = {
        "topic": {"topic": "other"},
        "tag": {"properties": usual.properties.rstrip(b"\x02") + b"\x02TAGS\x01odd\x02"},
        "keys": {"properties": b"KEYS\x01odd words\x02" + usual.properties},
        "prepared": {"sys_flag": SysFlag.TRANSACTION_PREPARED},
        "commit": {"sys_flag": SysFlag.TRANSACTION_COMMIT},
        "no id": {"unique_id": b""},
        "schedule": {"topic": "SCHEDULE_TOPIC_XXXX"},
        "empty": {"properties": b"", "unique_id": b""},
    }
    return usual._replace(**changes[how])  # type: ignore[arg-type]


def files(path: Path) -> dict[str, bytes]:
    """The log, the queues and the index, whose files are named after the time."""
    found = [file for file in sorted(path.rglob("*")) if file.is_file()]
    kept = {"commitlog", "consumequeue", "index"}
    return {
        str(number) + file.parent.name: file.read_bytes()
        for number, file in enumerate(found)
        if kept & set(file.relative_to(path).parts)
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example((TEMPLATES[0], IDS[0]), [], ENOUGH, 4, True, False)
@example((TEMPLATES[0], IDS[0]), [], 3 * ENOUGH, 1, False, False)
@example((TEMPLATES[0], IDS[0]), [], ENOUGH, 2, False, True)
@given(
    SHARED,
    OTHERS,
    st.integers(ENOUGH, ENOUGH + 10),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
def test_records_of_one_write_leave_the_same_store_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    shared: tuple[bytes, bytes],
    others: list[tuple[int, str]],
    count: int,
    queues: int,
    is_listening: bool,
    is_published_late: bool,
) -> None:
    path = tmp_path_factory.mktemp("alike")
    clock = [NOW]
    heard_of: tuple[list[tuple[object, ...]], ...] = ([], [])
    together, single = (
        opened(path / name, heard if is_listening else None, clock)
        for name, heard in zip(("together", "single"), heard_of, strict=True)
    )
    for turn in range(3):
        clock[0] += turn
        drafts = [draft(*shared, turn * 100 + n, n % queues) for n in range(count)]
        for at, how in others:
            drafts[at % count] = odd(drafts[at % count], how)
        for store in (together, single):
            for one in drafts:
                store.append(one)
                if store is single:
                    store.write()
            if is_published_late:
                store.write_log()
            else:
                store.write()
    together.publish()
    single.publish()
    assert heard_of[0] == heard_of[1]
    for key in ("k1", "odd", (shared[1] % 101).decode(), (shared[1] % 7).decode()):
        found = [
            [*map(bytes, store.query("orders", key, begin_ms=0, end_ms=2 * NOW).slices)]
            for store in (together, single)
        ]
        assert found[0] == found[1]
    for store in (together, single):
        store.close()
    assert files(path / "together") == files(path / "single")


def test_what_one_producer_sends_in_a_row_is_read_once() -> None:
    for template in TEMPLATES[:3]:
        for id_form in IDS:
            ids = [id_form % (100 + n) for n in range(30)]
            alike = [template.replace(b"%b", one) for one in ids]
            assert shared_tag(alike, ids) == indexed_values(alike[0])[2]


@pytest.mark.parametrize("change", [b"TAGS\x01odd\x02", b"KEYS\x01k\x02", b"x\x01y\x02"])
@pytest.mark.parametrize("at", [0, 1, 29])
def test_one_that_differs_is_not_overlooked(change: bytes, at: int) -> None:
    ids = [b"id-%03d" % n for n in range(30)]
    properties = [b"UNIQ_KEY\x01%b\x02TAGS\x01t\x02" % one for one in ids]
    assert shared_tag(properties, ids) == b"t"
    properties[at] += change
    assert shared_tag(properties, ids) is None


def test_messages_with_keys_are_read_one_by_one() -> None:
    ids = [b"id-%03d" % n for n in range(30)]
    properties = [b"KEYS\x01k\x02UNIQ_KEY\x01%b\x02" % one for one in ids]
    assert shared_tag(properties, ids) is None


def test_ids_of_several_lengths_do_not_hide_the_tag_of_another_message() -> None:
    # Put together they are what three messages with the tag t would be.
    properties = [
        b"a\x01x\x02UNIQ_KEY\x01id-1\x02TAGS\x01t",
        b"a\x01x\x02UNIQ_KEY\x01id2\x02TAGS\x01ta",
        b"\x01x\x02UNIQ_KEY\x01id--3\x02TAGS\x01t",
    ]
    assert shared_tag(properties, [b"id-1", b"id2", b"id--3"]) is None


def test_a_later_id_is_taken_for_nothing_else() -> None:
    ids = [b"012345678901", b"a\x02TAGS\x01other"]
    properties = [b"TAGS\x01t\x02UNIQ_KEY\x01%b\x02" % one for one in ids]
    assert shared_tag(properties, ids) is None


def test_an_id_is_taken_for_nothing_else() -> None:
    for odd_id in (b"", b"a\x02TAGS\x01x"):
        properties = [b"UNIQ_KEY\x01%b\x02" % odd_id] * 30
        assert shared_tag(properties, [odd_id] * 30) is None
