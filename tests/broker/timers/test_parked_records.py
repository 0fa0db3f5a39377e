"""Reading parked records: the fast path gives what the plain one gives, or leaves it to that."""

from __future__ import annotations

from random import Random

from penstock.broker.timers.parked_records import Parked, read_parked, read_unusual_parked
from penstock.errors import ProtocolError
from penstock.protocol.records.codec import decode_record, encode_record

KEYS = ("TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", "TIMER_DEL_UNIQKEY", "UNIQ_KEY", "XTIMER_OUT_MS")
VALUES = ("", "1", "7", "0", "1793999999000", "9" * 19, "orders", "größe", "a=b", "-1", "1\n")
USUAL = b"TIMER_OUT_MS\x011793999999000\x02REAL_TOPIC\x01orders\x02REAL_QID\x013"
TOPICS = (b"rmq_sys_wheel_timer", b"orders")


def record(topic: bytes, properties: bytes) -> memoryview:
    return memoryview(
        encode_record(topic, b"body", properties, 0, 5, 100, 1, 1, bytes(8), bytes(8))
    )


def outcome(view: memoryview, *, plain: bool) -> Parked | str:
    try:
        return read_unusual_parked(decode_record(view)) if plain else read_parked(view)
    except ProtocolError as error:
        return str(error)


def properties(random: Random) -> bytes:
    """Property strings as brokers write them, and strings that only look like them."""
    pairs = [
        f"{random.choice(KEYS)}\x01{random.choice(VALUES)}".encode()
        for _ in range(random.randrange(5))
    ]
    if random.random() < 0.6:
        pairs.insert(random.choice((0, len(pairs), len(pairs))), USUAL)
    text = b"\x02".join(pairs) + random.choice((b"", b"\x02", b"\x02\x02", b"\n"))
    return text if random.random() < 0.9 else text.replace(b"\x02", b"\x01", 1)


def test_both_paths_read_the_same_of_any_properties() -> None:
    random, usual = Random(5), 0
    for _ in range(4000):
        view = record(random.choice(TOPICS), properties(random))
        found = outcome(view, plain=False)
        assert found == outcome(view, plain=True), bytes(view)
        usual += isinstance(found, Parked)
    assert usual > 500
