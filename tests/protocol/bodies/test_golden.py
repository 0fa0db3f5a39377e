"""Every structured body that Apache RocketMQ 4.9.7 and 5.5.0 sent, and their state files."""

from __future__ import annotations

import dataclasses
import gzip
import json
import tarfile
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.support.paths import VECTORS
from tests.support.registrations import encode_registration
from tests.support.request_types import REQUEST_BODIES, RESPONSE_BODIES

from penstock.protocol.bodies.clients import HeartbeatData
from penstock.protocol.bodies.codec import decode_body, encode_body, encode_state, from_json
from penstock.protocol.bodies.config_text import ConfigText
from penstock.protocol.bodies.groups import SubscriptionGroupTable
from penstock.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from penstock.protocol.bodies.registration import (
    RegisterBrokerBody,
    body_crc32,
    decode_registration,
)
from penstock.protocol.bodies.routes import TopicRouteData
from penstock.protocol.bodies.topics import TimerMetrics, TopicConfigTable
from penstock.protocol.codes import RequestCode
from penstock.protocol.fastjson.dialect import loads

RELEASES = ("4.9.7", "5.5.0")
# Codes whose bodies are messages: the record tests look at those.
MESSAGE_CODES = {
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.CHECK_TRANSACTION_STATE,
}


class Sample(NamedTuple):
    release: str
    line: int
    code: int
    is_response: bool
    version: int
    ext: dict[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.release}-{self.line}-{self.code}"


def samples() -> Iterator[Sample]:
    for release in RELEASES:
        with gzip.open(VECTORS / f"frames-{release}.jsonl.gz", "rt") as lines:
            for number, line in enumerate(lines):
                frame = json.loads(line)
                if not frame["body_length"]:
                    continue
                code = getattr(RequestCode, frame["request_code_name"])
                is_response = bool(frame["flag"] & 1)
                if code in MESSAGE_CODES or (
                    code == RequestCode.CONSUME_MESSAGE_DIRECTLY and not is_response
                ):
                    continue
                body = bytes.fromhex(frame["frame_hex"])[-frame["body_length"] :]
                ext = frame["ext_fields"] or {}
                yield Sample(release, number, code, is_response, frame["version"], ext, body)


ALL = list(samples())


def class_of(sample: Sample) -> type:
    return (RESPONSE_BODIES if sample.is_response else REQUEST_BODIES)[sample.code]


def unknown_members(value: object) -> list[dict[str, object]]:
    """What the ``extra`` fields of a body collected."""
    if isinstance(value, dict):
        return [found for item in value.values() for found in unknown_members(item)]
    if isinstance(value, tuple):
        return [found for item in value for found in unknown_members(item)]
    if not dataclasses.is_dataclass(value):
        return []
    found = [getattr(value, "extra", None) or {}]
    for field in dataclasses.fields(value):
        if field.name != "extra":
            found += unknown_members(getattr(value, field.name))
    return [members for members in found if members]


def test_every_family_is_among_the_samples() -> None:
    assert len(ALL) > 130
    assert {class_of(sample).__name__ for sample in ALL} >= {
        "BrokerConsumeStats",
        "BrokerMemberGroup",
        "ClusterInfo",
        "ConsumeQueueEntries",
        "ConsumerRunningInfo",
        "HeartbeatData",
        "QueueAssignments",
        "RegisterBrokerBody",
        "SubscriptionGroupTable",
        "TopicConfigTable",
        "TopicRouteData",
    }


@pytest.mark.parametrize("sample", [s for s in ALL if not s.body.startswith(b"\x78")], ids=str)
def test_a_body_survives_decoding_and_encoding(sample: Sample) -> None:
    cls = class_of(sample)
    body: object = decode_body(cls, sample.body)
    again = encode_body(body)
    assert decode_body(cls, again) == body
    assert unknown_members(body) == []
    if cls is ConfigText:
        assert again == sample.body
        return
    assert loads(again) == loads(sample.body)
    # Java writes members in the order of the alphabet, too; only the quotes of integer keys differ.
    assert sample.body in (again, encode_body(body, bare_integer_keys=True))


@pytest.mark.parametrize("sample", [s for s in ALL if s.code == 103 and not s.is_response], ids=str)
def test_a_registration_is_read_plain_or_compressed_with_any_header(
    sample: Sample,
) -> None:
    compressed = sample.ext["compressed"] == "true"
    body = decode_registration(sample.body, compressed=compressed, version=sample.version)
    assert body_crc32(sample.body) == int(sample.ext["bodyCrc32"])
    assert all(name == topic.topic_name for name, topic in body.topics.topic_config_table.items())
    if not sample.body.startswith(b"\x78"):
        assert encode_registration(body) == sample.body
        return
    # Another zlib may make other bytes of it; the stream inside is the same.
    again = encode_registration(body, compressed=True, version=sample.version)
    assert zlib.decompress(again) == zlib.decompress(sample.body)


def test_compressed_registrations_of_both_releases_are_among_the_samples() -> None:
    compressed = {
        (s.release, s.ext["compressed"]) for s in ALL if s.code == 103 and s.body[:1] == b"\x78"
    }
    assert compressed == {("4.9.7", "true"), ("5.5.0", "false")}


@pytest.mark.parametrize("sample", [s for s in ALL if class_of(s) is TopicRouteData], ids=str)
def test_a_route_becomes_a_model_and_back(sample: Sample) -> None:
    data = decode_body(TopicRouteData, sample.body)
    route = data.route()
    again = TopicRouteData.from_model(route)
    assert again.route() == route
    assert again.queue_datas == data.queue_datas
    assert route.publish_queues("T") or not any(q.perm & 2 for q in data.queue_datas)


@pytest.mark.parametrize("sample", [s for s in ALL if class_of(s) is HeartbeatData], ids=str)
def test_subscriptions_become_models_and_back(sample: Sample) -> None:
    for consumer in decode_body(HeartbeatData, sample.body).consumer_data_set:
        for data in consumer.subscription_data_set:
            model = data.subscription()
            assert type(data).from_model(model).subscription() == model
            assert model.tags == set(data.tags_set)


STATE_FILES: dict[str, type] = {
    "topics.json": TopicConfigTable,
    "subscriptionGroup.json": SubscriptionGroupTable,
    "consumerOffset.json": ConsumerOffsetTable,
    "delayOffset.json": DelayOffsetTable,
}


def state_file(release: str, name: str) -> bytes:
    with tarfile.open(VECTORS / f"store-{release}.tar.gz") as archive:
        file = archive.extractfile(f"store/config/{name}")
        assert file is not None
        return file.read()


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", STATE_FILES)
def test_a_state_file_of_apache_survives(release: str, name: str) -> None:
    text = state_file(release, name)
    table: object = decode_body(STATE_FILES[name], text)
    again = encode_state(table)
    assert decode_body(STATE_FILES[name], again) == table
    assert loads(again) == loads(text)
    assert unknown_members(table) == []
    if release == "5.5.0":
        assert again == text


def test_a_state_file_with_quoted_integer_keys_reads_the_same() -> None:
    table = decode_body(ConsumerOffsetTable, state_file("5.5.0", "consumerOffset.json"))
    assert decode_body(ConsumerOffsetTable, encode_body(table)) == table
    assert table.offset_table["golden-four@golden-cg"] == {0: 32, 1: 33, 2: 32, 3: 30}


def test_timer_metrics_of_5_5_survive() -> None:
    text = state_file("5.5.0", "timermetrics")
    metrics = decode_body(TimerMetrics, text)
    assert metrics.timing_count["golden-one"].count == 1
    assert encode_body(metrics) == text


def test_the_tables_name_classes_that_can_be_compiled() -> None:
    for table in (REQUEST_BODIES, RESPONSE_BODIES):
        for cls in table.values():
            assert dataclasses.is_dataclass(cls)
    assert from_json(RegisterBrokerBody, {}) == RegisterBrokerBody()
