"""Registrations captured from Apache's brokers, sent to our name server: the answers agree."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from tests.support.paths import VECTORS

from penstock.model import TopicRoute
from penstock.nameserver.broker_registration import BrokerRegistration, RegisterOutcome
from penstock.nameserver.routes import RouteTable
from penstock.protocol.bodies.codec import decode_body
from penstock.protocol.bodies.common import DataVersion, TopicList
from penstock.protocol.bodies.registration import decode_registration
from penstock.protocol.bodies.routes import BrokerMemberGroup, ClusterInfo, TopicRouteData


def frames(release: str, run: str) -> list[dict[str, Any]]:
    with gzip.open(VECTORS / f"frames-{release}.jsonl.gz", "rt") as lines:
        found = [json.loads(line) for line in lines]
    return [f for f in found if f["run"] == run and "namesrv" in f["direction"]]


def body_of(frame: dict[str, Any]) -> bytes:
    length = frame["body_length"]
    return bytes.fromhex(frame["frame_hex"])[-length:] if length else b""


def registration_of(frame: dict[str, Any]) -> BrokerRegistration:
    ext = frame["ext_fields"]
    body = decode_registration(
        body_of(frame), compressed=ext["compressed"] == "true", version=frame["version"]
    )
    acting, timeout = ext.get("enableActingMaster"), ext.get("heartbeatTimeoutMillis")
    return BrokerRegistration(
        ext["clusterName"],
        ext["brokerName"],
        int(ext["brokerId"]),
        ext["brokerAddr"],
        ext["haServerAddr"],
        body.topics,
        body.filter_server_list,
        None if timeout is None else int(timeout),
        None if acting is None else acting == "true",
    )


def answers(release: str, run: str, name: str) -> list[dict[str, Any]]:
    return [f for f in frames(release, run) if f["request_code_name"] == name and f["flag"] & 1]


@pytest.fixture(params=["4.9.7", "5.5.0"])
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def registered(release: str, run: str) -> RouteTable:
    table = RouteTable(refuse_single_topic_first=release != "4.9.7")
    for frame in frames(release, run):
        if frame["request_code_name"] == "REGISTER_BROKER" and not frame["flag"] & 1:
            table.register(registration_of(frame), frame["seq"])
    return table


def test_the_cluster_looks_the_same(release: str) -> None:
    table = registered(release, "full")
    (answer,) = answers(release, "full", "GET_BROKER_CLUSTER_INFO")
    theirs, ours = decode_body(ClusterInfo, body_of(answer)), table.cluster_info()
    assert ours.cluster_addr_table == theirs.cluster_addr_table
    assert {name: data.broker() for name, data in ours.broker_addr_table.items()} == {
        name: data.broker() for name, data in theirs.broker_addr_table.items()
    }
    (answer,) = answers(release, "full", "GET_SYSTEM_TOPIC_LIST_FROM_NS")
    theirs_list, ours_list = decode_body(TopicList, body_of(answer)), table.system_topics()
    assert set(ours_list.topic_list) == set(theirs_list.topic_list)
    assert ours_list.broker_addr == theirs_list.broker_addr


def test_the_routes_look_the_same(release: str) -> None:
    table = RouteTable()
    asked: dict[tuple[str, int], str] = {}
    compared = 0
    for frame in frames(release, "full"):
        kind = frame["request_code_name"], frame["flag"] & 1
        key = frame["connection"], frame["opaque"]
        if frame["step"] == "send.error_no_permission":
            # Permissions change here, and the registration that restores them is not recorded.
            continue
        if kind == ("REGISTER_BROKER", 0):
            table.register(registration_of(frame), frame["seq"])
        elif kind == ("GET_ROUTEINFO_BY_TOPIC", 0):
            asked[key] = frame["ext_fields"]["topic"]
        elif kind == ("GET_ROUTEINFO_BY_TOPIC", 1) and frame["code"] == 0:
            ours = table.route(asked[key])
            if ours is None:
                # The samples leave out most increments, so not every topic is known here.
                continue
            theirs = decode_body(TopicRouteData, body_of(frame)).route()
            assert ours == TopicRoute(theirs.queues, theirs.brokers)
            compared += 1
    assert compared


def test_5_5_refuses_the_first_increment_and_so_do_we() -> None:
    first, *_ = [
        f
        for f in frames("5.5.0", "register")
        if f["request_code_name"] == "REGISTER_BROKER" and not f["flag"] & 1
    ]
    answer = answers("5.5.0", "register", "REGISTER_BROKER")[0]
    assert (answer["code"], answer["remark"]) == (1, "register broker failed")
    result = RouteTable().register(registration_of(first), 0)
    assert result.outcome is RegisterOutcome.REFUSED


def test_a_data_version_is_answered_the_same() -> None:
    # The full registration between the two questions is not among the samples, so the increment
    # after it must be let through here.
    table = RouteTable(refuse_single_topic_first=False)
    first, second = (
        f
        for f in frames("5.5.0", "register")
        if f["request_code_name"] == "REGISTER_BROKER" and not f["flag"] & 1
    )
    questions = [
        f
        for f in frames("5.5.0", "register")
        if f["request_code_name"] == "QUERY_DATA_VERSION" and not f["flag"] & 1
    ]
    theirs = answers("5.5.0", "register", "QUERY_DATA_VERSION")
    assert registration_of(first).address == registration_of(second).address
    for question, answer in zip(questions, theirs, strict=True):
        ext = question["ext_fields"]
        version = decode_body(DataVersion, body_of(question))
        ours = table.query_data_version(ext["clusterName"], ext["brokerAddr"], version, 0)
        stored = decode_body(DataVersion, body_of(answer)) if answer["body_length"] else None
        assert str(ours.changed).lower() == answer["ext_fields"]["changed"]
        assert ours.stored == stored
        table.register(registration_of(second), 0)


def test_an_unknown_broker_name_has_no_members() -> None:
    (answer,) = answers("5.5.0", "acting", "GET_BROKER_MEMBER_GROUP")
    theirs = decode_body(BrokerMemberGroup, body_of(answer))
    assert RouteTable().member_group("DefaultCluster", "broker-a") == theirs


def test_a_broker_that_may_act_as_master_brings_its_own_timeout() -> None:
    table = registered("5.5.0", "acting")
    (live,) = table.live_brokers()
    assert live.timeout_ms == 10_000
    assert table.cluster_info().broker_addr_table["broker-a"].enable_acting_master
