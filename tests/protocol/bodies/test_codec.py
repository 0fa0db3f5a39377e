"""The generic codec: what is tolerated, what is refused, and how a refusal names its place."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson
import pytest

from penstock.errors import ProtocolError
from penstock.model import MessageQueue
from penstock.protocol.bodies.auth import UserList
from penstock.protocol.bodies.clients import ConsumerList, LockBatch, LockBatchReply
from penstock.protocol.bodies.codec import (
    MAX_EXTRA_LEVELS,
    decode_body,
    encode_body,
    from_json,
    to_json,
    wire,
)
from penstock.protocol.bodies.common import DataVersion, KvTable, ProducerTable, TopicList
from penstock.protocol.bodies.groups import (
    GroupRetryPolicy,
    RetryPolicyType,
    SubscriptionGroupConfig,
)
from penstock.protocol.bodies.routes import (
    MAX_ROUTE_QUEUES,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from penstock.protocol.bodies.running import ConsumerRunningInfo
from penstock.protocol.bodies.stats import ConsumeStats, TopicStats
from penstock.protocol.bodies.topics import MAX_QUEUES, TopicConfig
from penstock.protocol.bodies.values import Int32, WireEnum
from penstock.protocol.fastjson.dialect import MAX_DEPTH, Json

QUEUE = MessageQueue("T", "b", 3)


class Colour(WireEnum):
    RED = "RED"
    GREEN = "GREEN"


@dataclass(frozen=True, slots=True)
class Sample:
    """One field of each kind."""

    name: str
    number: Int32 = 0
    big: int = 0
    flag: bool = False
    rate: float = 0.0
    colour: Colour = Colour.RED
    maybe: str | None = None
    names: tuple[str, ...] = ()
    by_number: dict[int, str] = field(default_factory=dict)
    raw: bytes = field(default=b"", metadata=wire("b", "rawBytes"))


class TestTolerance:
    @pytest.mark.parametrize(
        ("text", "sample"),
        [
            (b'{"name":"n"}', Sample("n")),
            (b'{"name":"n","unknown":{"deep":[1]}}', Sample("n")),
            (b'{"name":"n","number":null,"names":null,"byNumber":null,"flag":null}', Sample("n")),
            (b'{"name":"n","number":"7","big":"-9223372036854775808"}', Sample("n", 7, -(2**63))),
            (b'{"name":"n","number":7.0}', Sample("n", 7)),
            (b'{"name":7,"maybe":true}', Sample("7", maybe="true")),
            (b'{"name":"n","flag":"TRUE"}', Sample("n", flag=True)),
            (b'{"name":"n","flag":1}', Sample("n", flag=True)),
            (b'{"name":"n","flag":"0"}', Sample("n")),
            (b'{"name":"n","rate":3}', Sample("n", rate=3.0)),
            (b'{"name":"n","rate":"1.5"}', Sample("n", rate=1.5)),
            (b'{"name":"n","colour":"GREEN"}', Sample("n", colour=Colour.GREEN)),
            (b'{"name":"n","colour":1}', Sample("n", colour=Colour.GREEN)),
            (b'{"name":"n","colour":"1"}', Sample("n", colour=Colour.GREEN)),
            (b'{"name":"n","byNumber":{0:"a","1":"b"}}', Sample("n", by_number={0: "a", 1: "b"})),
            (b'{"name":"n","b":"CQI="}', Sample("n", raw=b"\x09\x02")),
            (b'{"name":"n","rawBytes":"CQI="}', Sample("n", raw=b"\x09\x02")),
            (b"{'name':'n','names':['a']}\n", Sample("n", names=("a",))),
        ],
    )
    def test_every_form_of_a_value_is_read(self, text: bytes, sample: Sample) -> None:
        assert decode_body(Sample, text) == sample

    def test_lists_and_maps_are_always_written_and_nulls_never(self) -> None:
        assert encode_body(Sample("n")) == (
            b'{"b":"","big":0,"byNumber":{},"colour":"RED","flag":false,"name":"n","names":[],'
            b'"number":0,"rate":0.0}'
        )
        assert encode_body(TopicList()) == b'{"topicList":[]}'
        assert encode_body(LockBatchReply()) == b'{"lockOKMQSet":[]}'
        assert encode_body(ConsumerList()) == b'{"consumerIdList":[]}'

    def test_a_queue_may_be_an_object_a_text_or_a_key(self) -> None:
        entry = b'{"brokerOffset":5,"consumerOffset":3,"lastTimestamp":9}'
        objects = b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"T"}:' + entry + b"}}"
        quoted = (
            b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":3,\\"topic\\":\\"T\\"}":'
            + entry
            + b"}}"
        )
        assert decode_body(ConsumeStats, objects) == decode_body(ConsumeStats, quoted)
        assert decode_body(ConsumeStats, objects).offset_table[QUEUE].broker_offset == 5

    def test_a_referenced_queue_is_a_key_like_any_other(self) -> None:
        info = decode_body(
            ConsumerRunningInfo,
            b'{"mqTable":{{"brokerName":"b","queueId":3,"topic":"T"}:{"droped":true}},'
            b'"mqPopTable":{{"$ref":"$.mqTable.null"}:{"waitAckCount":2}}}',
        )
        assert info.mq_table[QUEUE].dropped
        assert info.mq_pop_table is not None
        assert info.mq_pop_table[QUEUE].wait_ack_count == 2

    def test_unknown_members_of_a_config_are_kept(self) -> None:
        text = b'{"topicName":"T","zebra":[1,{"a":2}],"alpha":"x","perm":6}'
        topic = decode_body(TopicConfig, text)
        assert topic.extra == {"zebra": [1, {"a": 2}], "alpha": "x"}
        written = orjson.loads(encode_body(topic))
        assert written["zebra"] == [1, {"a": 2}]
        assert list(written) == sorted(written)

    @pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
    def test_unknown_members_of_a_config_are_dropped_where_they_are_nested_deeply(
        self, opening: bytes, closing: bytes
    ) -> None:
        def topic(levels: int) -> TopicConfig:
            value = opening * levels + b"1" + closing * levels
            return decode_body(TopicConfig, b'{"perm":6,"zebra":%b}' % value)

        assert topic(MAX_EXTRA_LEVELS).extra
        assert not topic(MAX_EXTRA_LEVELS + 1).extra
        assert not topic(MAX_DEPTH - 1).extra

    def test_unknown_members_with_objects_as_keys_are_dropped(self) -> None:
        assert not decode_body(TopicConfig, b'{"zebra":{{"a":1}:2}}').extra

    def test_a_body_that_is_a_bare_list(self) -> None:
        users = decode_body(UserList, b'[{"username":"a","userType":"Super"},{"username":"b"}]')
        assert [user.username for user in users.users] == ["a", "b"]
        assert encode_body(users) == b'[{"userType":"Super","username":"a"},{"username":"b"}]'


class TestRefusal:
    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            (b"[]", r"Sample: the body is a list; expected an object"),
            (b"7", r"Sample: the body is a number '7'"),
            (b"null", r"Sample: the body is missing"),
            (b"{}", r"Sample: name is missing"),
            (b'{"name":null}', r"name is missing"),
            (b'{"name":{}}', r"name is an object; expected text"),
            (b'{"name":[]}', r"name is a list"),
            (b'{"name":1.5}', r"name is a number '1.5'"),
            (b'{"name":"n","number":"x"}', r"number is text 'x'; expected a 64-bit integer"),
            (b'{"name":"n","number":1.5}', r"number is a number '1.5'"),
            (b'{"name":"n","number":true}', r"number is a boolean 'True'"),
            (b'{"name":"n","number":2147483648}', r"number .*expected -2147483648 to 2147483647"),
            (b'{"name":"n","big":9223372036854775808}', r"big .*64-bit"),
            (b'{"name":"n","big":1e300}', r"big .*64-bit"),
            (b'{"name":"n","big":"99999999999999999999"}', r"big"),
            (b'{"name":"n","flag":"yes"}', r"flag is text 'yes'; expected true or false"),
            (b'{"name":"n","flag":2}', r"flag"),
            (b'{"name":"n","rate":"NaN"}', r"rate"),
            (b'{"name":"n","rate":"fast"}', r"rate is text 'fast'; expected a number"),
            (b'{"name":"n","rate":true}', r"rate"),
            (b'{"name":"n","colour":"BLUE"}', r"colour .*expected RED, GREEN, or an ordinal"),
            (b'{"name":"n","colour":2}', r"colour"),
            (b'{"name":"n","colour":-1}', r"colour"),
            (b'{"name":"n","colour":true}', r"colour"),
            (b'{"name":"n","names":"a"}', r"names is text 'a'; expected a list"),
            (b'{"name":"n","names":["a",null]}', r"names\[1\] is missing"),
            (b'{"name":"n","names":["a",{}]}', r"names\[1\] is an object"),
            (b'{"name":"n","byNumber":[]}', r"byNumber is a list; expected an object"),
            (b'{"name":"n","byNumber":{"x":"a"}}', r"byNumber\['x'\] is text 'x'"),
            (b'{"name":"n","byNumber":{0:{}}}', r"byNumber\['0'\] is an object; expected text"),
            (b'{"name":"n","byNumber":{{"a":1}:"b"}}', r"byNumber\[\{…\}\] is an object"),
            (b'{"name":"n","b":"?"}', r"b is text '\?'; expected base64"),
            (b'{"name":"n","b":7}', r"b is a number '7'; expected base64"),
        ],
    )
    def test_a_complaint_names_the_place_and_the_expectation(
        self, text: bytes, complaint: str
    ) -> None:
        with pytest.raises(ProtocolError, match=complaint):
            decode_body(Sample, text)

    def test_a_path_leads_through_lists_and_maps(self) -> None:
        with pytest.raises(ProtocolError, match=r"brokerDatas\[0\]\.brokerAddrs\['1'\] is a list"):
            decode_body(
                TopicRouteData,
                b'{"brokerDatas":[{"cluster":"c","brokerName":"b","brokerAddrs":{0:"a",1:[]}}]}',
            )
        with pytest.raises(
            ProtocolError, match=r"TopicRouteData: queueDatas\[1\]\.perm is missing"
        ):
            decode_body(
                TopicRouteData,
                b'{"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":1,"writeQueueNums":1},'
                b'{"brokerName":"b","readQueueNums":1,"writeQueueNums":1}]}',
            )
        with pytest.raises(ProtocolError, match=r"data\['g'\]\[0\]\.clientId is missing"):
            decode_body(ProducerTable, b'{"data":{"g":[{}]}}')
        with pytest.raises(ProtocolError, match=r"brokerAddrTable\['b'\]\.cluster is missing"):
            decode_body(ClusterInfo, b'{"brokerAddrTable":{"b":{}}}')

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            (
                b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"T"}]}',
                r"mqSet\[0\]\.brokerN",
            ),
            (b'{"consumerGroup":"g","clientId":"c","mqSet":["T"]}', r"mqSet\[0\] .*message queue"),
            (
                b'{"consumerGroup":"g","clientId":"c",'
                b'"mqSet":[{"topic":"T","brokerName":"b","queueId":99999999999}]}',
                r"mqSet\[0\]\.queueId",
            ),
            (b'{"clientId":"c","mqSet":[]}', r"consumerGroup is missing"),
        ],
    )
    def test_a_bad_queue_is_named(self, text: bytes, complaint: str) -> None:
        with pytest.raises(ProtocolError, match=complaint):
            decode_body(LockBatch, text)

    @pytest.mark.parametrize(
        "key", [b'"{oops"', b'"plain"', b"7", b'{"topic":"T"}', b'"{\\"topic\\":\\"T\\"}"']
    )
    def test_a_key_that_is_no_queue_is_refused(self, key: bytes) -> None:
        with pytest.raises(ProtocolError, match="offsetTable"):
            decode_body(TopicStats, b'{"offsetTable":{' + key + b":{}}}")

    def test_a_long_value_is_not_repeated_whole(self) -> None:
        with pytest.raises(ProtocolError) as caught:
            from_json(Sample, {"name": "n", "number": "x" * 100_000})
        assert len(str(caught.value)) < 200

    @pytest.mark.parametrize("count", [-1, 65_537, 2**31, 2**62])
    def test_an_excessive_queue_count_is_refused(self, count: int) -> None:
        data: Json = {
            "queueDatas": [
                {"brokerName": "b", "perm": 6, "readQueueNums": 1, "writeQueueNums": count}
            ]
        }
        with pytest.raises(ProtocolError, match=r"queueDatas\[0\]\.writeQueueNums"):
            from_json(TopicRouteData, data)

    @pytest.mark.parametrize(
        "conf", ["b:x", "b", ":4", "b:-1", "b:99999999", "b:0000000000009", "b:4;c", "b:4:5", "b:٣"]
    )
    def test_an_order_conf_that_no_producer_could_use_is_refused(self, conf: str) -> None:
        with pytest.raises(ProtocolError, match="orderTopicConf"):
            TopicRouteData(order_topic_conf=conf).route()

    def test_a_route_with_more_queues_than_a_client_can_keep_is_refused(self) -> None:
        brokers = MAX_ROUTE_QUEUES // MAX_QUEUES
        queues = [QueueData(f"b{n}", MAX_QUEUES, MAX_QUEUES, 6) for n in range(brokers)]
        assert len(TopicRouteData(tuple(queues)).route().queues) == brokers
        many = (*queues, *queues)
        with pytest.raises(ProtocolError, match=f"in queueDatas; .* at most {MAX_ROUTE_QUEUES}"):
            TopicRouteData(many).route()
        conf = ";".join(f"{q.broker_name}:{MAX_QUEUES}" for q in many)
        with pytest.raises(ProtocolError, match="in orderTopicConf"):
            TopicRouteData(order_topic_conf=conf).route()

    def test_an_order_conf_is_kept(self) -> None:
        route = TopicRouteData(order_topic_conf="broker-a:2;broker-b:1").route()
        assert route.publish_queues("T") == [
            MessageQueue("T", "broker-a", 0),
            MessageQueue("T", "broker-a", 1),
            MessageQueue("T", "broker-b", 0),
        ]


class TestDefaults:
    def test_a_group_config_has_the_reference_defaults(self) -> None:
        group = decode_body(SubscriptionGroupConfig, b'{"groupName":"g"}')
        assert group == SubscriptionGroupConfig("g")
        assert (group.consume_enable, group.retry_queue_nums, group.retry_max_times) == (
            True,
            1,
            16,
        )
        assert (group.broker_id, group.which_broker_when_consume_slowly) == (0, 1)

    def test_what_4_9_leaves_out_is_filled_in(self) -> None:
        group = SubscriptionGroupConfig("g").with_defaults()
        assert group.consume_timeout_minute == 15
        assert group.consume_message_orderly is False
        assert group.group_retry_policy == GroupRetryPolicy(RetryPolicyType.CUSTOMIZED)
        assert (group.group_sys_flag, group.attributes) == (0, {})
        kept = SubscriptionGroupConfig("g", consume_timeout_minute=3, attributes={"a": "b"})
        assert kept.with_defaults().consume_timeout_minute == 3
        assert kept.with_defaults().attributes == {"a": "b"}

    def test_a_topic_config_has_the_reference_defaults(self) -> None:
        topic = decode_body(TopicConfig, b"{}")
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (16, 16, 6)
        assert topic.topic_filter_type == "SINGLE_TAG"

    def test_data_versions_of_both_releases_compare(self) -> None:
        old, new = DataVersion(3, 9), DataVersion(3, 9, 0)
        assert old.same_as(new)
        assert not old.same_as(None)
        assert not old.same_as(DataVersion(4, 9))
        assert not new.same_as(DataVersion(3, 9, 1))
        assert old.following(12) == DataVersion(4, 12, 0)

    def test_a_kv_table_is_text_to_text(self) -> None:
        assert to_json(KvTable({"a": "1"})) == {"table": {"a": "1"}}
        assert decode_body(KvTable, b'{"table":{"a":1,"b":true}}').table == {"a": "1", "b": "true"}


def test_decoding_costs_a_small_multiple_of_doing_it_by_hand() -> None:
    body = encode_body(LockBatch("group", "client", tuple(QUEUE for _ in range(32))))

    def by_hand() -> LockBatch:
        value = orjson.loads(body)
        queues = (MessageQueue(q["topic"], q["brokerName"], q["queueId"]) for q in value["mqSet"])
        return LockBatch(value["consumerGroup"], value["clientId"], tuple(queues))

    def best(call: Callable[[], LockBatch]) -> float:
        return min(timeit.repeat(call, number=50, repeat=5))

    assert by_hand() == decode_body(LockBatch, body)
    assert best(lambda: decode_body(LockBatch, body)) < 20 * best(by_hand)
