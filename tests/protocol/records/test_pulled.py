"""Pull answers as messages: invisible laziness, compressed bodies, inner batches."""

from __future__ import annotations

import copy
import pickle
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BodyDamaged, ProtocolError, RecordDamaged
from penstock.model import MessageQueue, StoredMessage
from penstock.model.hosts import pack_host
from penstock.protocol.records.batches import BatchItem, encode_batch
from penstock.protocol.records.codec import decode_records, encode_record
from penstock.protocol.records.compression import Compression, compress
from penstock.protocol.records.pulled import (
    alike_records,
    message_from_record,
    messages_from_pull,
)
from penstock.protocol.records.sys_flags import SysFlag

BORN = pack_host("127.0.0.1", 54321)
STORE = pack_host("10.0.0.5", 10911)
UNIQUE = "7F0000010001000000000000000A0000"
PROPERTIES = f"TAGS\x01TagA\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01{UNIQUE}\x02".encode()
UNWRAP = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH


def record(
    body: bytes = b"Hello",
    *,
    topic: str = "TopicTest",
    properties: bytes = PROPERTIES,
    queue_id: int = 1,
    queue_offset: int = 42,
    born_host: bytes = BORN,
    sys_flag: int = 0,
) -> bytes:
    return encode_record(
        topic.encode(), body, properties, queue_id, queue_offset, 1024, 1700000000123,
        1700000000000, born_host, STORE, 7, sys_flag, 3, 9,
    )  # fmt: skip


def only(body: bytes, **options: Any) -> StoredMessage:
    (message,) = messages_from_pull(body, "broker-a", **options)
    return message


def test_a_record_becomes_a_message_with_every_field() -> None:
    message = only(record())
    assert message.topic == "TopicTest"
    assert message.body == b"Hello"
    assert message.tag == "TagA"
    assert message.keys == ("k1", "k2")
    assert message.properties == {"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": UNIQUE}
    assert message.msg_id == UNIQUE
    assert message.offset_msg_id == "0A00000500002A9F0000000000000400"
    assert message.queue == MessageQueue("TopicTest", "broker-a", 1)
    assert (message.queue_offset, message.log_position) == (42, 1024)
    assert (message.born_timestamp, message.store_timestamp) == (1700000000000, 1700000000123)
    assert (message.born_host, message.store_host) == ("127.0.0.1:54321", "10.0.0.5:10911")
    assert (message.reconsume_times, message.sys_flag, message.flag) == (3, 0, 7)
    assert message.prepared_transaction_offset == 9


def test_without_a_unique_key_the_offset_id_is_the_message_id() -> None:
    message = only(record(properties=b""))
    assert message.msg_id == message.offset_msg_id == "0A00000500002A9F0000000000000400"
    assert (message.tag, message.keys, message.properties) == (None, (), {})


def test_an_empty_answer_has_no_messages() -> None:
    assert messages_from_pull(b"", "broker-a") == []


def test_messages_of_several_queues_and_topics_keep_their_own() -> None:
    body = b"".join(
        record(topic=topic, queue_id=queue_id, born_host=host)
        for topic in ("a", "a", "b", "%RETRY%" + "g" * 130)
        for queue_id in (0, 1)
        for host in (BORN, pack_host("::1", 1))
    )
    messages = messages_from_pull(body, "broker-a")
    expected = [
        MessageQueue(item.topic, "broker-a", item.queue_id) for item in decode_records(body)
    ]
    assert [message.queue for message in messages] == expected
    assert [message.topic for message in messages] == [queue.topic for queue in expected]


def test_a_lazy_and_a_handmade_message_are_equal() -> None:
    handmade = StoredMessage(
        topic="TopicTest",
        body=b"Hello",
        properties={"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": UNIQUE},
        queue=MessageQueue("TopicTest", "broker-a", 1),
        queue_offset=42,
        log_position=1024,
        born_timestamp=1700000000000,
        store_timestamp=1700000000123,
        born_host="127.0.0.1:54321",
        store_host="10.0.0.5:10911",
        reconsume_times=3,
        flag=7,
        prepared_transaction_offset=9,
    )
    assert only(record()) == handmade
    assert only(record(queue_offset=43)) != handmade
    assert handmade != "a message"


@pytest.mark.parametrize("read_first", [False, True])
def test_a_message_survives_pickling_and_copying(read_first: bool) -> None:
    message = only(record())
    if read_first:
        _ = message.properties, message.born_host, message.store_host, message.msg_id
    assert pickle.loads(pickle.dumps(message)) == message
    assert copy.copy(message) == message
    assert copy.deepcopy(message) == message


def test_a_message_shows_where_it_is_and_what_it_says() -> None:
    text = repr(only(record(b"x" * 100)))
    assert "TopicTest@broker-a:1" in text
    assert "queue_offset=42" in text
    assert UNIQUE in text
    assert "tag='TagA'" in text
    assert "(100 bytes)" in text
    assert len(text) < 400


def test_a_consumer_can_restore_the_topic_and_add_properties() -> None:
    message = only(record())
    message.topic = "orders"
    message.properties["CONSUME_START_TIME"] = "5"
    assert message.properties["CONSUME_START_TIME"] == "5"
    assert message.tag == "TagA"
    assert message.queue.topic == "TopicTest"
    message.properties = {"TAGS": "other"}
    assert message.tag == "other"


def test_properties_that_are_not_utf8_do_not_fail_in_a_handler() -> None:
    message = only(record(properties=b"TAGS\x01\xff\xfe\x02"))
    assert message.tag == "\ufffd\ufffd"


def test_a_message_is_not_hashable_since_it_can_change() -> None:
    with pytest.raises(TypeError):
        hash(only(record()))


@pytest.mark.parametrize("kind", list(Compression))
def test_compressed_bodies_are_inflated_and_the_bit_cleared(kind: Compression) -> None:
    original = b"some text " * 500
    message = only(record(compress(original, kind), sys_flag=kind.sys_flag))
    assert message.body == original
    assert message.sys_flag == kind.value


def test_a_body_compressed_before_types_existed_is_zlib() -> None:
    message = only(record(zlib.compress(b"old"), sys_flag=SysFlag.COMPRESSED))
    assert (message.body, message.sys_flag) == (b"old", 0)


def test_a_body_that_does_not_inflate_names_its_place() -> None:
    with pytest.raises(ProtocolError, match="in TopicTest@broker-a:1 at offset 42"):
        messages_from_pull(record(b"garbage", sys_flag=0x301), "broker-a")


def test_a_body_that_does_not_inflate_can_be_delivered_as_stored() -> None:
    body = record(b"garbage", sys_flag=0x301) + record(queue_offset=43)
    first, second = messages_from_pull(body, "broker-a", keep_unreadable=True)
    assert (first.body, first.sys_flag) == (b"garbage", 0x301)
    assert second.body == b"Hello"


def test_a_body_that_is_delivered_as_stored_is_reported_of() -> None:
    body = record(b"garbage", sys_flag=0x301) + record(queue_offset=43)
    reported: list[tuple[MessageQueue, int, str]] = []
    messages_from_pull(
        body,
        "broker-a",
        keep_unreadable=True,
        tell_unreadable=lambda queue, offset, error: reported.append((queue, offset, str(error))),
    )
    ((queue, offset, error),) = reported
    assert (queue, offset) == (MessageQueue("TopicTest", "broker-a", 1), 42)
    assert "no zlib stream" in error


def test_a_body_that_inflates_beyond_the_limit_is_refused() -> None:
    bomb = compress(bytes(10_000_000))
    with pytest.raises(ProtocolError, match="inflates to more than 1000"):
        messages_from_pull(record(bomb, sys_flag=0x301), "broker-a", max_body_bytes=1000)


def test_an_inner_batch_is_split_into_its_messages() -> None:
    items = [BatchItem(b"a", b"TAGS\x01T1\x02", 1), BatchItem(b"bb", b"UNIQ_KEY\x01u\x02", 2)]
    body = record(encode_batch(items), sys_flag=UNWRAP)
    first, second = messages_from_pull(body, "broker-a")
    assert (first.body, first.tag, first.flag, first.queue_offset) == (b"a", "T1", 1, 42)
    assert (second.body, second.msg_id, second.flag, second.queue_offset) == (b"bb", "u", 2, 43)
    assert first.queue == second.queue == MessageQueue("TopicTest", "broker-a", 1)
    assert first.log_position == second.log_position == 1024
    assert first.reconsume_times == 3
    whole = message_from_record(decode_records(body)[0], "broker-a")
    assert whole.body == encode_batch(items)


def test_a_compressed_inner_batch_is_inflated_first() -> None:
    batch = encode_batch([BatchItem(b"a"), BatchItem(b"b"), BatchItem(b"c")])
    flag = UNWRAP | Compression.ZLIB.sys_flag
    messages = messages_from_pull(record(compress(batch), sys_flag=flag), "broker-a")
    assert [message.body for message in messages] == [b"a", b"b", b"c"]
    assert [message.queue_offset for message in messages] == [42, 43, 44]
    kept = messages_from_pull(record(b"?", sys_flag=flag), "b", keep_unreadable=True)
    assert [message.body for message in kept] == [b"?"]


def test_one_of_the_two_batch_bits_is_not_enough_to_split() -> None:
    for bit in (SysFlag.NEED_UNWRAP, SysFlag.INNER_BATCH):
        assert only(record(sys_flag=bit)).body == b"Hello"


def test_a_damaged_inner_batch_is_refused() -> None:
    with pytest.raises(ProtocolError, match="of a batch"):
        messages_from_pull(record(b"no batch", sys_flag=UNWRAP), "broker-a")


def test_checksums_are_compared_when_asked_for() -> None:
    damaged = record().replace(b"Hello", b"Hullo")
    assert only(damaged).body == b"Hullo"
    with pytest.raises(ProtocolError, match="body checksum"):
        only(damaged, check_crc=True)
    assert only(record(), check_crc=True).body == b"Hello"


def test_a_topic_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        only(record().replace(b"TopicTest", b"Topic\xffest"))


@given(st.data())
def test_the_fast_path_and_the_plain_path_agree_on_any_bytes(data: st.DataObject) -> None:
    body = bytearray(
        b"".join(
            record(
                data.draw(st.binary(max_size=40)),
                properties=data.draw(st.just(b"A\x01b\x02") | st.binary(max_size=20)),
                sys_flag=data.draw(st.sampled_from([0, 0, 0x8, SysFlag.MULTI_TAGS])),
            )
            for _ in range(data.draw(st.integers(1, 4)))
        )
    )
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.sampled_from([len(body), len(body) - 1, 60]))])
    for check_crc in (False, True):
        assert _outcome_fast(cut, check_crc) == _outcome_careful(cut, check_crc)


@given(st.data())
def test_messages_that_are_alike_are_cut_as_others_are_on_any_bytes(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40) | st.integers(60, 70))
    length, first = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 300))
    records = [record(bytes([n]) * length, queue_offset=first + n) for n in range(count)]
    body = bytearray(b"".join(records))
    size = len(records[0])
    # Of the first, of one in the middle and of the last: heads, lengths, topics, properties.
    for _ in range(data.draw(st.integers(0, 3))):
        start = size * data.draw(st.sampled_from([0, count // 2, count - 1]))
        body[start + data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    whole = bytes(body)
    assert _outcome_fast(whole, False) == _outcome_careful(whole, False)


@pytest.mark.parametrize("count", [1, 15, 16, 100])
@pytest.mark.parametrize("sys_flag", [0, SysFlag.COMPRESSED])
def test_every_message_gets_what_is_added_to_all(count: int, sys_flag: int) -> None:
    body = zlib.compress(b"text") if sys_flag else b"text"
    pulled = record(body, sys_flag=sys_flag) * count
    messages = messages_from_pull(pulled, "broker-a", added=b"MIN_OFFSET\x017\x02")
    assert [message.peek("MIN_OFFSET") for message in messages] == ["7"] * count
    assert [message.properties["MIN_OFFSET"] for message in messages] == ["7"] * count
    assert {message.body for message in messages} == {b"text"}
    assert {message.tag for message in messages} == {"TagA"}


@pytest.mark.parametrize("size", range(0, 100))
def test_lengths_that_disagree_are_noticed_in_the_first_record(size: int) -> None:
    # Its queue is the one no record was seen of yet.
    first = bytearray(record(bytes(20), queue_id=-1) + record() * 30)
    first[:4] = struct.pack(">i", size)
    assert _outcome_fast(bytes(first), False) is None


def _outcome_fast(body: bytes, check_crc: bool) -> list[StoredMessage] | None:
    try:
        return messages_from_pull(body, "b", check_crc=check_crc, max_body_bytes=10_000)
    except ProtocolError:
        return None


def _outcome_careful(body: bytes, check_crc: bool) -> list[StoredMessage] | None:
    try:
        records = decode_records(body, check_crc=check_crc)
        if any(item.sys_flag & UNWRAP == UNWRAP for item in records):
            return _outcome_fast(body, check_crc)
        return [message_from_record(item, "b", max_body_bytes=10_000) for item in records]
    except ProtocolError:
        return None


@given(st.binary(max_size=300))
def test_random_bytes_raise_protocol_errors_and_nothing_else(data: bytes) -> None:
    for body in (data, struct.pack(">iI", len(data) + 8, 0xDAA320A7) + data, record() + data):
        try:
            assert len(messages_from_pull(body, "b")) <= len(body)
        except ProtocolError:
            continue


def test_a_message_made_without_hosts_has_no_offset_id() -> None:
    message = StoredMessage("t", b"", {}, MessageQueue("t", "b", 0), 0)
    assert (message.msg_id, message.offset_msg_id, message.born_host) == ("", "", "")


def test_given_ids_win_over_computed_ones() -> None:
    queue = MessageQueue("t", "b", 0)
    message = StoredMessage("t", b"", {}, queue, 0, msg_id="M", offset_msg_id="O")
    assert (message.msg_id, message.offset_msg_id) == ("M", "O")


@pytest.mark.parametrize("count", [1, 20, 100])
@pytest.mark.parametrize("which", ["first", "last", "middle"])
@pytest.mark.parametrize("flags", [0, 0x301, UNWRAP])
def test_one_damaged_body_is_reported_and_the_others_are_read(
    count: int, which: str, flags: int
) -> None:
    """Of few and of many records, alike or not, plain, compressed or a batch."""
    whole = [record(b"%09d" % number, queue_offset=number) for number in range(count)]
    victim = {"first": 0, "last": count - 1, "middle": count // 2}[which]
    content = {
        0: b"%09d" % victim,
        0x301: compress(b"x" * 99),
        UNWRAP: encode_batch([(b"x", b"", 0)]),
    }
    original = content[flags]
    changed = bytes([original[0] ^ 0x20]) + original[1:]
    stored = record(original, queue_offset=victim, sys_flag=flags)
    whole[victim] = stored.replace(original, changed)
    reported: list[tuple[int, ProtocolError]] = []
    messages = messages_from_pull(
        b"".join(whole),
        "broker-a",
        check_crc=True,
        keep_unreadable=True,
        tell_unreadable=lambda queue, offset, error: reported.append((offset, error)),
    )
    assert [message.queue_offset for message in messages] == list(range(count))
    assert messages[victim].body == changed
    assert messages[victim].sys_flag == flags
    ((offset, error),) = reported
    assert offset == victim
    assert isinstance(error, BodyDamaged)
    assert alike_records(b"".join(whole), "broker-a", check_crc=True) is None
    with pytest.raises(BodyDamaged, match=f"broker-a:1 at offset {victim}"):
        messages_from_pull(b"".join(whole), "broker-a", check_crc=True)


@pytest.mark.parametrize("count", [1, 20, 100])
def test_sound_checksums_change_nothing(count: int) -> None:
    body = b"".join(record(b"%09d" % number, queue_offset=number) for number in range(count))
    assert messages_from_pull(body, "b", check_crc=True) == messages_from_pull(body, "b")
    assert (alike_records(body, "b", check_crc=True) is None) == (count < 64)


def test_a_damaged_record_ends_the_pull_with_what_precedes_it() -> None:
    sound = [record(queue_offset=number) for number in range(20)]
    broken = record(queue_offset=20)
    broken = broken[:4] + b"\0\0\0\0" + broken[8:]
    with pytest.raises(RecordDamaged, match="magic 0x00000000") as caught:
        messages_from_pull(b"".join([*sound, broken, record(queue_offset=21)]), "broker-a")
    assert caught.value.intact == messages_from_pull(b"".join(sound), "broker-a")


def test_a_batch_that_cannot_be_split_can_be_delivered_as_stored() -> None:
    body = record(b"no batch", sys_flag=UNWRAP) + record(queue_offset=43)
    reported: list[int] = []
    first, second = messages_from_pull(
        body,
        "broker-a",
        keep_unreadable=True,
        tell_unreadable=lambda queue, offset, error: reported.append(offset),
    )
    assert (first.body, first.sys_flag, second.body) == (b"no batch", UNWRAP, b"Hello")
    assert reported == [42]
    with pytest.raises(ProtocolError, match="in TopicTest@broker-a:1 at offset 42"):
        messages_from_pull(body, "broker-a")
