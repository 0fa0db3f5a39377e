"""Headers that are recognised have the same outcome as headers that are decoded.

`FastSend.serve` recognises a header that repeats an earlier one of its connection;
`FastSend._serve_unknown` decodes each, so it is the specification.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import orjson
import pytest
from tests.broker.handlers.test_fast_send import (
    BATCH,
    CHANGES,
    PROPERTIES,
    UNIQUE_ID,
    USUAL_BATCH,
    ask,
    enable_fast_path,
    header,
    kept,
    on_plain_path,
    said,
)
from tests.support.asking import all_records
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.broker.handlers import known_headers
from penstock.broker.handlers.fast_send import _KNOWN, FastSend
from penstock.broker.handlers.known_headers import KnownHeaders
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import Command, decode_command
from penstock.protocol.frames import FrameDecoder
from penstock.remoting import Peer
from penstock.remoting.peer import fast_path_key

OTHER_ID = "7F0000013A2218B4AAC20000000000FE"


def raw(**changes: object) -> bytes:
    return orjson.dumps(header(**changes))


def usual(number: int = 0, **changes: object) -> bytes:
    """A header like others in all but time, id and number."""
    born, unique_id = str(1_700_000_000_000 + number), f"{UNIQUE_ID[:-4]}{number:04X}"
    properties = PROPERTIES.replace(UNIQUE_ID, unique_id)
    return raw(**{"g": born, "i": properties, "opaque": 1000 + number, **changes})


def parts(broker: Broker) -> tuple[FastSend, Peer]:
    """The fast path of a broker and the newest of its connections."""
    serve = broker._dispatcher.fast_paths[fast_path_key(RequestCode.SEND_MESSAGE_V2)]
    fast = serve.__self__  # type: ignore[attr-defined]  # a bound method
    assert isinstance(fast, FastSend)
    assert broker._server is not None
    return fast, list(broker._server.peers)[-1]


def never(data: bytes) -> object:
    raise AssertionError(f"decoded: {data!r}")


def read(answer: bytes | None) -> Command | None:
    return None if answer is None else decode_command(FrameDecoder().feed(answer)[0])


def outcome(
    broker: Broker, serve: Callable[[Peer, bytes, bytes], bytes | None], peer: Peer, *request: bytes
) -> tuple[object, bool]:
    before = broker.state.storage.store.max_position
    answer = said(read(serve(peer, *request)))
    return answer, broker.state.storage.store.max_position > before


async def known(broker: Broker, wire: Wire, *, is_batch: bool) -> tuple[FastSend, Peer, bytes]:
    """A fast path that knows the usual header of a connection, and a body for it."""
    await enable_fast_path(broker, wire)
    body = USUAL_BATCH if is_batch else b"body"
    changes = BATCH if is_batch else {}
    if is_batch:
        answer = await ask(broker, on_plain_path(header(**BATCH)), body)
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
    fast, peer = parts(broker)
    for number in range(3):
        assert fast.serve(peer, usual(number, **changes), body)
    headers = peer.data[_KNOWN]
    assert isinstance(headers, KnownHeaders)
    [layout] = headers.layouts.values()
    assert layout is not None
    assert len(layout.known) == 1
    return fast, peer, body


@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_header_like_an_earlier_one_is_not_decoded(
    broker: Broker, wire: Wire, is_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, peer, body = await known(broker, wire, is_batch=is_batch)
    monkeypatch.setattr(fast, "_decode", never)
    for number in range(10):
        answer = read(fast.serve(peer, usual(number, **(BATCH if is_batch else {})), body))
        assert answer is not None
        assert answer.request_id == 1000 + number
        assert (answer.ext or {})["transactionId"].endswith(f"{number:04X}")


@pytest.mark.parametrize("is_batch", [False, True])
async def test_changed_headers_have_the_same_outcome(
    broker: Broker, wire: Wire, is_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.state.broker_properties, "_new_unique_id", lambda: "made")
    fast, peer, body = await known(broker, wire, is_batch=is_batch)
    changes = [{**BATCH, **change} if is_batch else change for change in CHANGES]
    for change in changes:
        head = raw(**change)
        for one in (body, b"", b"x" * 5_000_000):
            spec = outcome(broker, fast._serve_unknown, peer, head, one)
            for _ in range(2):  # The first may be learned.
                found = outcome(broker, fast.serve, peer, head, one)
                assert found == spec, change


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("is_batch", [False, True])
async def test_changed_bytes_have_the_same_outcome(
    broker: Broker, wire: Wire, is_batch: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The broker makes an id where there is none.
    monkeypatch.setattr(broker.state.broker_properties, "_new_unique_id", lambda: "made")
    fast, peer, body = await known(broker, wire, is_batch=is_batch)
    chance = random.Random(seed)
    usual_head = usual(4, **(BATCH if is_batch else {}))
    headers = peer.data[_KNOWN]
    assert isinstance(headers, KnownHeaders)
    layout = headers.get(len(usual_head))
    assert layout is not None
    alphabets = [b"0123456789", b"09AZaz", b'0 1.eE+-"\\', b"u0123\\", bytes(range(256))]
    served = 0
    for _ in range(300):
        head = bytearray(usual_head)
        places = [slice(start := chance.randrange(len(head)), start + 1), *layout.places[:3]]
        for place in chance.sample(places, chance.randint(1, 2)):
            for at in range(place.start, place.stop):
                if chance.random() < 0.3:
                    head[at] = chance.choice(chance.choice(alphabets))
        spec = outcome(broker, fast._serve_unknown, peer, bytes(head), body)
        found = outcome(broker, fast.serve, peer, bytes(head), body)
        assert found == spec, head
        served += spec[0] is not None
        # As at first: what it knows of other headers is tested elsewhere.
        layout.misses, layout.left = 0, 50
    assert served


async def test_the_same_record_is_stored(broker: Broker, wire: Wire) -> None:
    fast, peer, body = await known(broker, wire, is_batch=False)
    for serve in (fast._serve_unknown, fast.serve):
        assert serve(peer, usual(77), body)
    # Without the last separator, as some clients write it.
    short = PROPERTIES.removesuffix("\x02")
    for serve in (fast._serve_unknown, fast.serve, fast.serve):
        assert serve(peer, raw(i=short), body)
    broker.state.storage.write()
    first, second, *others = (await all_records(wire, "T", 0))[-5:]
    assert kept(first) == kept(second)
    assert len({kept(other) for other in others}) == 1
    assert broker.state.stats.puts_of("T").count == 1 + 3 + 5


async def test_headers_of_one_length_with_other_places_take_over(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, peer, body = await known(broker, wire, is_batch=False)

    def moved(number: int) -> bytes:
        properties = (
            f"TAGS\x01created\x02UNIQ_KEY\x01{UNIQUE_ID[:-4]}{number:04X}\x02WAIT\x01true\x02"
        )
        return usual(number, i=properties)

    assert len(moved(1)) == len(usual(1))
    for number in range(20):
        assert fast.serve(peer, moved(number), body)
    monkeypatch.setattr(fast, "_decode", never)
    answer = read(fast.serve(peer, moved(77), body))
    assert answer is not None
    assert (answer.ext or {})["transactionId"].endswith(f"{77:04X}")


async def test_a_change_of_a_topic_makes_headers_unknown(broker: Broker, wire: Wire) -> None:
    fast, peer, body = await known(broker, wire, is_batch=False)
    broker.state.topics.remove("T")
    assert fast.serve(peer, usual(5), body) is None


@pytest.mark.parametrize(
    "head",
    [
        # The id, the time or the request id also elsewhere: which of them counts is not guessed.
        usual(1, i=f"{PROPERTIES}ORIGIN\x01{UNIQUE_ID[:-4]}0001\x02UNIQ_KEY\x01{OTHER_ID}\x02A\x01"
              f"{OTHER_ID}\x02"),
        usual(1, a="1700000000001"),
        usual(1, i="UNIQ_KEY\x01not-a-word\x02"),
        usual(1, i="UNIQ_KEY\x01\u0661\u0662\u0663\x02"),
        usual(1, i="TAGS\x01a\x02"),
        usual(1, opaque=0),
        usual(1, opaque=1_000_000_000),
        usual(1, a="g" * 1200),
        usual(1).replace(b'"flag":0,"lang', b'"x":{"opaque":1001},"flag":0,"lang'),
        # The last character of an escape is no character of its own.
        usual(1).replace(b"\\u00017", b"\\u0001\\u0037"),
    ],
)  # fmt: skip
async def test_odd_headers_are_decoded_each_time(broker: Broker, wire: Wire, head: bytes) -> None:
    await enable_fast_path(broker, wire)
    fast, peer = parts(broker)
    for _ in range(3):
        answers = [
            said(read(serve(peer, head, b"x"))) for serve in (fast._serve_unknown, fast.serve)
        ]
        if b"UNIQ_KEY" in head:
            assert answers[0] == answers[1]
        assert answers[0] is not None
    headers = peer.data[_KNOWN]
    assert isinstance(headers, KnownHeaders)
    assert not any(layout and layout.known for layout in headers.layouts.values())


async def test_what_is_kept_is_bounded(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enable_fast_path(broker, wire)
    fast, peer = parts(broker)
    fast.serve(peer, usual(), b"x")
    headers = peer.data[_KNOWN]
    assert isinstance(headers, KnownHeaders)
    for number in range(200):  # Keys that differ each time, so no header is like another one.
        assert fast.serve(peer, usual(i=f"{PROPERTIES}KEYS\x01k{number:04}\x02"), b"x")
    length = len(usual(i=f"{PROPERTIES}KEYS\x01k0000\x02"))
    assert headers.layouts[length] is None
    for size in range(200):
        assert fast.serve(peer, usual(i=f"{PROPERTIES}A\x01{'a' * (size + 1)}\x02"), b"x")
    assert len(headers.layouts) == known_headers._MAX_LENGTHS
    monkeypatch.setattr("penstock.broker.handlers.fast_send.MAX_KNOWN", 5)
    del peer.data[_KNOWN]
    for _ in range(3):
        assert fast.serve(peer, usual(2), b"x")
    assert fast._known_count == 1
