"""The table of rules for properties on sends: every row applies on every path."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.asking import put_topic
from tests.support.stage import Stage

from penstock.broker import Broker
from penstock.broker.handlers.send import Sending
from penstock.broker.send_rules import DROPPED, REPLACED, RULES, effects_of, find_ruled
from penstock.errors import PenstockError
from penstock.model.names import Property
from penstock.model.properties import encode_properties, parse_properties
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.commands import RESPONSE, Command, decode_command
from penstock.protocol.frames import JSON, FrameDecoder
from penstock.protocol.headers.send import SendMessage, encode_send_v2
from penstock.protocol.records.batches import BatchItem, encode_batch
from penstock.protocol.records.codec import decode_record
from penstock.remoting import Peer, Promise

EFFECTIVE_VALUES = {
    Property.TRANSACTION_PREPARED: "true",
    Property.TIMER_DELIVER_MS: str(1 << 50),  # too far away
    Property.TIMER_DELAY_SECONDS: "1000000",
    Property.TIMER_DELAY_MS: "1000000000",
    Property.WAIT: "false",
}
"""A value of each property that has an effect; "3" for all others."""

REFUSED = {
    Property.TIMER_DELAY_SECONDS,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
}

KEYS = [rule.key for rule in RULES]
LOOKALIKES = [name for key in KEYS for name in (f"NO{key}", f"{key}S", f"MY_{key}_2", key.lower())]
VALUES = ["true", "false", "falsehood", "3", "0", "-1", "soon", str(1 << 50), *KEYS, "x"]
PAIRS = st.tuples(
    st.sampled_from([*KEYS, *LOOKALIKES, "UNIQ_KEY", "MY_UNIQ_KEY", "TAGS"]),
    st.sampled_from(VALUES),
)
PROPERTY_STRINGS = st.one_of(
    st.builds(
        lambda pairs, end: "\x02".join(f"{key}\x01{value}" for key, value in pairs) + end,
        st.lists(PAIRS, max_size=5),
        st.sampled_from(["", "\x02"]),
    ),
    # Not well-formed: missing values, missing keys, doubled separators.
    st.lists(st.sampled_from([*KEYS, "NOWAIT", "UNIQ_KEY", "false", "3", "\x01", "\x02"])).map(
        "".join
    ),
)


class FakePeer:
    """What handlers of sends use of a connection."""

    remote = "127.0.0.1:50123"

    def __init__(self) -> None:
        self.data: dict[str, object] = {}


PEER = cast(Peer, FakePeer())


def request(text: str, *, body: bytes = b"body", is_batch: bool = False) -> tuple[bytes, Command]:
    """The JSON header of a send, and the same as the plain path gets it."""
    code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
    header = SendMessage("p", "T", "TBW102", 8, 0, 0, 1_700_000_000_000, 0, text, batch=is_batch)
    head = {
        "code": code,
        "extFields": encode_send_v2(header),
        "flag": 0,
        "language": "JAVA",
        "opaque": 7,
        "version": 479,
    }
    encoded = orjson.dumps(head)
    return encoded, decode_command((JSON, encoded, body))


def batch_of(*properties: bytes) -> bytes:
    return encode_batch([BatchItem(b"body", one) for one in properties])


class Paths:
    """Both paths of a running broker, called without a connection."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sending = Sending(broker.state)

    def plain(self, text: str, body: bytes = b"body", *, is_batch: bool = False) -> Command:
        """The answer of the plain path."""
        _, command = request(text, body=body, is_batch=is_batch)
        answer = self._sending.send_v2(PEER, command)
        if isinstance(answer, Promise):
            # A half message is answered when it is written.
            self._broker.state.storage.write()
            written = answer.attach(PEER, command)
            assert written is not None
            answer = written
        answer.request_id, answer.flag = command.request_id, RESPONSE
        return answer

    def fast(self, text: str, body: bytes = b"body", *, is_batch: bool = False) -> Command | None:
        """The answer of the fast path; None if it leaves the request to the plain path."""
        header, _ = request(text, body=body, is_batch=is_batch)
        answer = self._sending.fast.serve(PEER, header, body)
        if answer is None:
            return None
        [frame] = FrameDecoder().feed(answer)
        return decode_command(frame)

    def records(self, answer: Command) -> list[object]:
        """The stored messages that an answer names, without what differs between two sends."""
        self._broker.state.storage.write()
        found: list[object] = []
        for msg_id in (answer.ext or {})["msgId"].split(","):
            view = self._broker.state.storage.record_at(int(msg_id[16:], 16))
            assert view is not None
            record = decode_record(view)
            properties = parse_properties(record.properties)
            found.append((record.topic, record.queue_id, record.body, properties))
        return found


async def paths_of(stage: Stage, **store: Any) -> Paths:
    broker = await stage.broker(store=store)
    wire = await stage.connect(broker)
    await put_topic(wire, "T", 1)
    paths = Paths(broker)
    # A request on the plain path enables the fast path for its kind.
    assert paths.plain("").code == ResponseCode.SUCCESS
    assert paths.plain("", batch_of(b""), is_batch=True).code == ResponseCode.SUCCESS
    assert paths.fast("") is not None
    assert paths.fast("", batch_of(b""), is_batch=True) is not None
    return paths


def without_new_id(outcome: Any, text: str) -> Any:
    """Without the unique id, where the broker makes a new one each time."""
    if parse_properties(text).get("UNIQ_KEY"):
        return outcome
    answer, records = outcome
    answer = {key: value for key, value in answer.items() if key != "transactionId"}
    return answer, [(*rest, {**said, "UNIQ_KEY": ""}) for *rest, said in records]


def outcome_of(paths: Paths, answer: Command, text: str) -> Any:
    if answer.code != ResponseCode.SUCCESS:
        return answer.code, answer.remark, answer.ext
    ext = {k: v for k, v in (answer.ext or {}).items() if k not in ("msgId", "queueOffset")}
    return without_new_id((ext, paths.records(answer)), text)


# Single messages


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.key)
@pytest.mark.parametrize("before", ["", "TAGS\x01a\x02", "UNIQ_KEY\x01U\x02"])
@pytest.mark.parametrize("end", ["", "\x02"])
async def test_a_rule_applies_on_the_plain_path_and_never_misses_on_the_fast_path(
    tmp_path: Path, rule: Any, before: str, end: str
) -> None:
    value = EFFECTIVE_VALUES.get(rule.key, "3")
    text = f"{before}{rule.key}\x01{value}{end}"
    async with Stage(tmp_path) as stage:
        paths = await paths_of(stage)
        assert paths.fast(f"{before}TAGS\x01b{end}") is not None
        assert paths.fast(text) is None
        answer = paths.plain(text)
        assert (answer.code == ResponseCode.SUCCESS) == (rule.key not in REFUSED)
        if rule.key in REFUSED:
            return
        [(topic, _, _, properties)] = cast(Any, paths.records(answer))
        assert (topic == "SCHEDULE_TOPIC_XXXX") == (rule.key == Property.DELAY)
        assert (rule.key not in properties) == (rule.key in DROPPED)
        assert (properties.get(rule.key) not in (value, None)) == (rule.key in REPLACED)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.key)
async def test_a_name_or_a_value_that_only_contains_a_key_has_no_effect(
    tmp_path: Path, rule: Any
) -> None:
    value = EFFECTIVE_VALUES.get(rule.key, "3")
    alike = {
        f"NO{rule.key}": value,
        f"{rule.key}S": value,
        f"X_{rule.key}_X": value,
        "note": rule.key,
        "note2": f"{rule.key}={value}",
    }
    text = encode_properties({"UNIQ_KEY": "U", **alike}).decode()
    async with Stage(tmp_path) as stage:
        paths = await paths_of(stage)
        for answer in (paths.plain(text), paths.fast(text), paths.fast(text[:-1])):
            assert answer is not None
            assert answer.code == ResponseCode.SUCCESS
            [(topic, _, _, properties)] = cast(Any, paths.records(answer))
            assert topic == "T"
            assert alike.items() <= properties.items()


async def test_both_paths_have_the_same_outcome_for_any_properties(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        paths = await paths_of(stage)

        @given(PROPERTY_STRINGS)
        def compare(text: str) -> None:
            fast = paths.fast(text)
            if fast is not None:
                plain = paths.plain(text)
                assert outcome_of(paths, fast, text) == outcome_of(paths, plain, text)

        compare()


# Batches


@pytest.mark.parametrize("rule", [r for r in RULES if r.batch], ids=lambda rule: rule.key)
@pytest.mark.parametrize("end", ["", "\x02"])
@pytest.mark.parametrize("before", ["", "TAGS\x01a\x02"])
async def test_a_rule_for_batches_applies_to_the_envelope_and_to_every_message(
    tmp_path: Path, rule: Any, before: str, end: str
) -> None:
    text = f"{before}{rule.key}\x01{EFFECTIVE_VALUES.get(rule.key, '3')}{end}"
    usual = batch_of(b"", b"TAGS\x01a\x02")
    unusual = batch_of(b"", text.encode(), b"")
    async with Stage(tmp_path) as stage:
        paths = await paths_of(stage)
        for properties, body in ((text, usual), ("", unusual)):
            assert paths.fast(properties, body, is_batch=True) is None
            answer = paths.plain(properties, body, is_batch=True)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL


async def test_both_paths_have_the_same_outcome_for_any_batch(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        paths = await paths_of(stage)

        @given(PROPERTY_STRINGS, st.lists(PROPERTY_STRINGS, min_size=1, max_size=4))
        def compare(envelope: str, items: list[str]) -> None:
            body = batch_of(*(item.encode() for item in items))
            fast = paths.fast(envelope, body, is_batch=True)
            if fast is not None:
                plain = paths.plain(envelope, body, is_batch=True)
                ours, theirs = outcome_of(paths, fast, ""), outcome_of(paths, plain, "")
                assert ours == theirs

        compare()


# Waiting for the disk


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("end", ["", "\x02"])
@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("WAIT\x01false", False),
        ("TAGS\x01a\x02WAIT\x01false", False),
        ("WAIT\x01true", True),
        ("WAIT\x01falsehood", True),
        ("NOWAIT\x01false", True),
        ("AWAIT\x01false\x02WAIT\x01true", True),
        ("note\x01WAIT=false", True),
        ("WAITS\x01false", True),
    ],
)
async def test_only_the_property_wait_itself_answers_before_the_disk(
    tmp_path: Path, text: str, waits: bool, is_batch: bool, end: str
) -> None:
    async with Stage(tmp_path) as stage:
        broker = await stage.broker(store={"flush_disk_type": "SYNC_FLUSH"})
        await put_topic(await stage.connect(broker), "T", 1)
        body = batch_of(b"") if is_batch else b"body"
        _, command = request(text + end, body=body, is_batch=is_batch)
        answer = Sending(broker.state).send_v2(PEER, command)
        assert isinstance(answer, Promise) == waits


# The table


@given(PROPERTY_STRINGS)
def test_the_search_finds_every_property_string_that_a_rule_applies_to(text: str) -> None:
    properties = parse_properties(text)
    nothing = effects_of({}, is_batch=False, now_ms=1)
    try:
        effects = effects_of(properties, is_batch=False, now_ms=1)
        is_ruled = effects != nothing or any(key in properties for key in (*DROPPED, *REPLACED))
    except PenstockError:
        is_ruled = True
    if is_ruled:
        assert find_ruled(f"\x02{text}\x02") is not None
    if find_ruled(f"\x02{text}\x02") is not None:
        assert any(f"{key}\x01" in text for key in KEYS)


def test_a_property_has_one_row() -> None:
    assert len(set(KEYS)) == len(KEYS)
