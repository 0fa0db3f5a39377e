"""Bodies as Java, Go, C++ and Node clients send them, and the vectors that concern bodies."""

from __future__ import annotations

import dataclasses
import tracemalloc
import zlib

import pytest
from tests.support.registrations import encode_registration

from penstock.errors import InvalidArgument, ProtocolError
from penstock.model import BrokerRoute, MessageQueue, QueueRoute, Subscription, TopicRoute
from penstock.protocol.bodies.clients import (
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockBatch,
    ProducerData,
)
from penstock.protocol.bodies.codec import decode_body, encode_body
from penstock.protocol.bodies.common import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    RequestMode,
    SubscriptionData,
)
from penstock.protocol.bodies.config_text import ConfigText
from penstock.protocol.bodies.offsets import ResetOffsets
from penstock.protocol.bodies.pop import BatchAck, BatchAckEntry, QueueAssignments, bits_of
from penstock.protocol.bodies.registration import (
    MAX_INFLATED,
    RegisterBrokerBody,
    body_crc32,
    decode_registration,
)
from penstock.protocol.bodies.routes import BrokerData, TopicRouteData
from penstock.protocol.bodies.stats import ConsumeStats
from penstock.protocol.bodies.topics import TopicConfig, TopicConfigTable

# Vector V15.
HEARTBEAT = (
    b'{"clientID":"10.0.0.1@123#456","consumerDataSet":[{"consumeFromWhere":'
    b'"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"cg",'
    b'"messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,'
    b'"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB",'
    b'"subVersion":1700000000000,"tagsSet":["TagA","TagB"],"topic":"TopicTest"}],'
    b'"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"pg"}],'
    b'"withoutSub":false}'
)
# Vector V14: the stream, and the stream deflated.
STREAM = bytes.fromhex(
    "000000387b22636f756e746572223a352c22737461746556657273696f6e223a302c2274696d657374616d70223a31"
    "3730303030303030303030307d0000000100000034546f706963546573742034203420362053494e474c455f544147"
    "207b226d6573736167652e74797065223a224e4f524d414c227d000000025b5d00000000"
)
DEFLATED = bytes.fromhex(
    "78da636060b0a8564ace2fcd2b492d52b232d5512a2e492c490d4b2d2acecccf53b232d0512ac9cc4d050ae6162859"
    "199a1b20402d03030323109b84e41764268700d5289800a19942b0a79fbb8f6b7c88a3bb42b512506f71627aaa5e49"
    "6541aa9295929f7f90afa38f12482f53742c9064000064ad22dc"
)


class TestHeartbeats:
    def test_javas_heartbeat_and_its_fingerprint(self) -> None:
        heartbeat = decode_body(HeartbeatData, HEARTBEAT)
        assert encode_body(heartbeat) == HEARTBEAT
        assert heartbeat.fingerprint() == -317488710

    def test_the_fingerprint_changes_with_subscriptions_only(self) -> None:
        heartbeat = decode_body(HeartbeatData, HEARTBEAT)
        (consumer,) = heartbeat.consumer_data_set
        (data,) = consumer.subscription_data_set
        later = dataclasses.replace(data, sub_version=data.sub_version + 1)
        other = dataclasses.replace(data, sub_string="*")

        def with_data(data: SubscriptionData) -> HeartbeatData:
            changed = dataclasses.replace(consumer, subscription_data_set=(data,))
            return dataclasses.replace(heartbeat, consumer_data_set=(changed,))

        same = dataclasses.replace(
            with_data(later), client_id="other", heartbeat_fingerprint=7, without_sub=True
        )
        assert same.fingerprint() == heartbeat.fingerprint()
        assert with_data(other).fingerprint() != heartbeat.fingerprint()

    def test_gos_heartbeat_has_codes_as_text_and_versions_in_nanoseconds(self) -> None:
        heartbeat = decode_body(
            HeartbeatData,
            b'{"clientID":"172.17.0.2@1#1","producerDataSet":[],"consumerDataSet":[{'
            b'"groupName":"g","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
            b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[{'
            b'"classFilterMode":false,"topic":"T","subString":"TagA","tagsSet":["TagA"],'
            b'"codeSet":["2598919"],"subVersion":1700000000000000000,"expressionType":"TAG"}],'
            b'"unitMode":false}]}',
        )
        (data,) = heartbeat.consumer_data_set[0].subscription_data_set
        assert data.code_set == (2598919,)
        assert data.sub_version == 1_700_000_000_000_000_000
        assert heartbeat.heartbeat_fingerprint is None

    def test_cpps_heartbeat_has_ordinals_versions_as_text_and_lists_left_out(self) -> None:
        heartbeat = decode_body(
            HeartbeatData,
            b'{"clientID":"127.0.0.1@1","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
            b'"groupName":"g","messageModel":1,"subscriptionDataSet":[{"subString":"*",'
            b'"subVersion":"1700000000000","topic":"T"}]}]}\n',
        )
        (consumer,) = heartbeat.consumer_data_set
        assert consumer.consume_type is ConsumeType.CONSUME_PASSIVELY
        assert consumer.message_model is MessageModel.CLUSTERING
        assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        assert heartbeat.producer_data_set == ()
        (data,) = consumer.subscription_data_set
        assert data == SubscriptionData("T", "*", 1_700_000_000_000)

    def test_nodes_heartbeat_has_no_expression_type(self) -> None:
        heartbeat = decode_body(
            HeartbeatData,
            b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
            b'"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"BROADCASTING",'
            b'"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[],"subString":"*",'
            b'"subVersion":1,"tagsSet":[],"topic":"T"}],"unitMode":false}],'
            b'"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}]}',
        )
        (consumer,) = heartbeat.consumer_data_set
        assert consumer.subscription_data_set[0].expression_type == "TAG"
        assert consumer.message_model is MessageModel.BROADCASTING
        assert heartbeat.producer_data_set == (ProducerData("CLIENT_INNER_PRODUCER"),)

    def test_a_heartbeat_without_subscriptions_says_so(self) -> None:
        heartbeat = decode_body(
            HeartbeatData, b'{"clientID":"c","heartbeatFingerprint":5,"withoutSub":true}'
        )
        assert heartbeat.without_sub
        assert heartbeat.heartbeat_fingerprint == 5

    def test_nets_heartbeat_has_its_names_in_pascal_case_and_no_more_than_it_must(self) -> None:
        heartbeat = decode_body(
            HeartbeatData,
            b'{"ClientID":"10.0.0.1@7","ConsumerDataSet":[{"GroupName":"g",'
            b'"MessageModel":"Broadcasting","ConsumeType":"ConsumeActively",'
            b'"SubscriptionDataSet":[{"Topic":"T","ExpressionType":"TAG","SubString":"a",'
            b'"SubVersion":638000000000}]}],"ProducerDataSet":[{"GroupName":"p"}]}',
        )
        assert heartbeat.client_id == "10.0.0.1@7"
        assert heartbeat.producer_data_set == (ProducerData("p"),)
        (consumer,) = heartbeat.consumer_data_set
        assert consumer == ConsumerData(
            "g",
            ConsumeType.CONSUME_ACTIVELY,
            MessageModel.BROADCASTING,
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            (SubscriptionData("T", "a", 638_000_000_000),),
        )

    def test_the_right_spelling_wins_over_another_one(self) -> None:
        text = b'{"clientId":"wrong","clientID":"right","ClientID":"wrong"}'
        assert decode_body(HeartbeatData, text).client_id == "right"
        with pytest.raises(ProtocolError, match="clientID is missing"):
            decode_body(HeartbeatData, b'{"client":"c","ClientID":null}')

    def test_the_queues_of_a_lock_may_be_spelt_otherwise_too(self) -> None:
        lock = decode_body(
            LockBatch,
            b'{"consumer_group":"g","ClientId":"c",'
            b'"MqSet":[{"Topic":"T","broker-name":"b","QueueId":3}]}',
        )
        assert lock == LockBatch("g", "c", (MessageQueue("T", "b", 3),))

    def test_a_subscription_becomes_its_model_and_back(self) -> None:
        model = Subscription(
            "T", "a || b", 7, "TAG", frozenset({"b", "a"}), frozenset({97, 98}), False
        )
        data = SubscriptionData.from_model(model)
        assert data.tags_set == ("a", "b")
        assert data.subscription() == model


class TestRoutes:
    ROUTE = TopicRoute(
        (QueueRoute("broker-a", 4, 4, 6, 0),),
        (BrokerRoute("broker-a", "DefaultCluster", {1: "10.0.0.6:10911", 0: "10.0.0.5:10911"}),),
    )

    def test_a_written_route_can_be_split_as_text_by_the_go_client(self) -> None:
        text = encode_body(TopicRouteData.from_model(self.ROUTE))
        assert b'"brokerAddrs":{"0":"10.0.0.5:10911","1":"10.0.0.6:10911"}' in text
        assert b" " not in text
        assert b'"filterServerTable":{}' in text
        assert b"null" not in text

    def test_a_route_can_be_written_as_older_java_servers_write_it(self) -> None:
        text = encode_body(TopicRouteData.from_model(self.ROUTE), bare_integer_keys=True)
        assert b'{0:"10.0.0.5:10911",1:"10.0.0.6:10911"}' in text
        assert decode_body(TopicRouteData, text).route() == self.ROUTE

    def test_what_5_x_adds_to_a_broker_is_kept(self) -> None:
        text = (
            b'{"brokerAddrs":{"0":"a:1"},"brokerName":"b","cluster":"c",'
            b'"enableActingMaster":true,"zoneName":"z"}'
        )
        broker = decode_body(BrokerData, text)
        assert broker.broker() == BrokerRoute("b", "c", {0: "a:1"}, True, "z")
        assert encode_body(BrokerData.from_model(broker.broker())) == text

    def test_consume_stats_of_vector_17(self) -> None:
        text = (
            b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":'
            b'"TopicTest"}:{"brokerOffset":5,"consumerOffset":3,"lastTimestamp":1700000000000,'
            b'"pullOffset":0}}}'
        )
        stats = decode_body(ConsumeStats, text)
        offset = stats.offset_table[MessageQueue("TopicTest", "broker-a", 3)]
        assert (offset.broker_offset, offset.consumer_offset, offset.pull_offset) == (5, 3, 0)
        assert encode_body(stats) == text


class TestRegistration:
    def test_vector_14_is_read(self) -> None:
        body = decode_registration(DEFLATED, compressed=True, version=513)
        assert body.topics.data_version.counter == 5
        assert body.topics.data_version.timestamp == 1_700_000_000_000
        assert body.topics.topic_config_table == {
            "TopicTest": TopicConfig("TopicTest", 4, 4, 6, attributes={"message.type": "NORMAL"})
        }
        assert body.filter_server_list == ()
        assert body_crc32(DEFLATED) == 818576124

    def test_vector_14_is_written(self) -> None:
        body = decode_registration(DEFLATED, compressed=True, version=513)
        stream = zlib.decompress(encode_registration(body, compressed=True, version=513))
        assert stream == STREAM

    def test_a_stream_is_known_by_its_first_byte(self) -> None:
        plain = decode_registration(DEFLATED, compressed=True, version=513)
        assert decode_registration(DEFLATED, compressed=False, version=513) == plain

    def test_4_9_writes_five_items_a_topic_and_no_mappings(self) -> None:
        body = RegisterBrokerBody(TopicConfigTable({"T": TopicConfig("T", 2, 3, 6)}), ("f:1",))
        data = encode_registration(body, compressed=True, version=407)
        stream = zlib.decompress(data)
        assert b"\x00\x00\x00\x12T 2 3 6 SINGLE_TAG\x00\x00\x00\x07" in stream
        assert stream.endswith(b'["f:1"]')
        assert decode_registration(data, compressed=True, version=407) == body

    def test_an_ancient_broker_sends_the_bare_table(self) -> None:
        table = TopicConfigTable({"T": TopicConfig("T", 2, 3, 6)})
        assert decode_registration(encode_body(table), version=36) == RegisterBrokerBody(table)

    def test_no_body_means_no_topics(self) -> None:
        assert decode_registration(b"") == RegisterBrokerBody()

    def test_the_mappings_may_be_missing(self) -> None:
        body = decode_registration(zlib.compress(STREAM[:-4]), compressed=True, version=513)
        assert body.topics.topic_queue_mapping_info_map is None

    @pytest.mark.parametrize("cut", [*range(0, len(STREAM) - 4, 7), len(STREAM) - 1])
    def test_a_stream_cut_anywhere_is_refused(self, cut: int) -> None:
        with pytest.raises(ProtocolError):
            decode_registration(zlib.compress(STREAM[:cut]), compressed=True, version=513)

    @pytest.mark.parametrize("cut", range(1, len(DEFLATED), 11))
    def test_a_deflated_stream_cut_anywhere_is_refused(self, cut: int) -> None:
        with pytest.raises(ProtocolError):
            decode_registration(DEFLATED[:cut], compressed=True, version=513)

    @pytest.mark.parametrize(
        "stream",
        [
            STREAM + b"x",
            b"\x7f\xff\xff\xff" + STREAM[4:],
            b"\xff\xff\xff\xff" + STREAM[4:],
            STREAM.replace(
                b"\x00\x00\x00\x01\x00\x00\x00\x34", b"\x00\x00\xff\xff\x00\x00\x00\x34"
            ),
            STREAM.replace(b"TopicTest 4 4 6", b" opicTest 4 4 6"),
            STREAM.replace(b"TopicTest", b"\xff\xffpicTest"),
            STREAM.replace(b"[]", b"{}"),
            STREAM.replace(b'{"message', b'["message'),
            zlib.compress(b"")[:3],
        ],
    )
    def test_a_stream_that_makes_no_sense_is_refused(self, stream: bytes) -> None:
        with pytest.raises(ProtocolError):
            decode_registration(zlib.compress(stream), compressed=True, version=513)

    @pytest.mark.parametrize(
        ("before", "after"), [(b"Test 4 4 6", b"Test 4 x 6"), (b"SINGLE_TAG", b"DOUBLE_TAG")]
    )
    def test_a_topic_of_a_stream_that_makes_no_sense_is_left_out(
        self, before: bytes, after: bytes
    ) -> None:
        odd: dict[str, str] = {}
        data = zlib.compress(STREAM.replace(before, after))
        body = decode_registration(data, compressed=True, version=513, tell_odd=odd.__setitem__)
        assert body.topics.topic_config_table == {}
        assert list(odd) == ["TopicTest"]

    def test_a_compressed_flag_over_json_is_refused_with_a_word(self) -> None:
        with pytest.raises(ProtocolError, match="compressed=true"):
            decode_registration(b"{}", compressed=True)

    def test_a_zlib_bomb_is_refused_in_bounded_memory(self) -> None:
        compressor = zlib.compressobj(9)
        block = b"\x00" * (1 << 20)
        count = MAX_INFLATED // len(block) + 8
        bomb = b"".join(compressor.compress(block) for _ in range(count)) + compressor.flush()
        tracemalloc.start()
        with pytest.raises(ProtocolError, match="inflates without end"):
            decode_registration(bomb)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 3 * MAX_INFLATED


class TestOffsets:
    TABLE = ResetOffsets({MessageQueue("T", "b", 0): 5, MessageQueue("T", "b", 1): 6})

    def test_the_form_for_java_and_go_has_object_keys(self) -> None:
        assert encode_body(self.TABLE) == (
            b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5,'
            b'{"brokerName":"b","queueId":1,"topic":"T"}:6}}'
        )

    def test_the_form_for_cpp_is_a_list_and_is_read_too(self) -> None:
        text = encode_body(self.TABLE.for_cpp())
        assert text == (
            b'{"offsetTable":[{"brokerName":"b","offset":5,"queueId":0,"topic":"T"},'
            b'{"brokerName":"b","offset":6,"queueId":1,"topic":"T"}]}'
        )
        assert decode_body(ResetOffsets, text) == self.TABLE

    def test_pairs_are_read(self) -> None:
        text = (
            b'{"offsetTable":[[{"brokerName":"b","queueId":0,"topic":"T"},5],'
            b'[{"brokerName":"b","queueId":1,"topic":"T"},6]]}'
        )
        assert decode_body(ResetOffsets, text) == self.TABLE

    @pytest.mark.parametrize("item", [b"1", b"[]", b"[1,2]", b'{"topic":"T"}', b'[{"a":1}]'])
    def test_other_lists_are_refused(self, item: bytes) -> None:
        with pytest.raises(ProtocolError, match="offsetTable"):
            decode_body(ResetOffsets, b'{"offsetTable":[' + item + b"]}")


class TestPop:
    def test_vector_16_bits(self) -> None:
        assert bits_of(100, [100, 103, 109]) == b"\x09\x02"
        text = (
            b'{"acks":[{"b":"CQI=","c":"g","it":60000,"pt":1700000000000,"q":3,"r":"0","rq":2,'
            b'"so":100,"t":"T"}],"brokerName":"broker-a"}'
        )
        batch = decode_body(BatchAck, text)
        assert batch.acks[0].offsets() == [100, 103, 109]
        assert encode_body(batch) == text

    def test_long_names_are_read(self) -> None:
        text = (
            b'{"brokerName":"b","acks":[{"consumerGroup":"g","topic":"T","retry":"1",'
            b'"startOffset":7,"queueId":3,"reviveQueueId":2,"popTime":1,"invisibleTime":2,'
            b'"bitSet":"AQ=="}]}'
        )
        (entry,) = decode_body(BatchAck, text).acks
        assert entry == BatchAckEntry("g", "T", "1", 7, 3, 2, 1, 2, b"\x01")
        assert entry.offsets() == [7]

    def test_bits_without_bound_are_refused(self) -> None:
        with pytest.raises(ProtocolError, match="at most"):
            BatchAckEntry("g", "T", "0", 0, 0, 0, 0, 0, bytes(10_000)).offsets()
        with pytest.raises(InvalidArgument, match="offset 10"):
            bits_of(0, [10**9])
        with pytest.raises(InvalidArgument, match="starts at 5"):
            bits_of(5, [4])
        assert bits_of(5, []) == b""

    def test_no_assignments_and_empty_assignments_differ(self) -> None:
        assert decode_body(QueueAssignments, b"{}").message_queue_assignments is None
        empty = decode_body(QueueAssignments, b'{"messageQueueAssignments":[]}')
        assert empty.message_queue_assignments == ()
        assert encode_body(empty) == b'{"messageQueueAssignments":[]}'
        assert encode_body(QueueAssignments()) == b"{}"

    def test_shared_attachments_come_as_references(self) -> None:
        assignments = decode_body(
            QueueAssignments,
            b'{"messageQueueAssignments":[{"attachments":{"k":"v"},"messageQueue":{"brokerName":"b",'
            b'"queueId":-1,"topic":"T"},"mode":"POP"},{"attachments":{"$ref":'
            b'"$.messageQueueAssignments[0].attachments"},"messageQueue":{"brokerName":"c",'
            b'"queueId":-1,"topic":"T"},"mode":"POP"}]}',
        ).message_queue_assignments
        assert assignments is not None
        assert [a.attachments for a in assignments] == [{"k": "v"}] * 2
        assert [a.mode for a in assignments] == [RequestMode.POP] * 2


class TestSettings:
    def test_lines_are_read_and_written(self) -> None:
        text = decode_body(ConfigText, b"# a comment\n\na = 1\r\nb=x=y\n! too\nc=\n")
        assert text.settings == {"a": "1", "b": "x=y", "c": ""}
        assert encode_body(ConfigText({"brokerPermission": "4"})) == b"brokerPermission=4\n"

    @pytest.mark.parametrize("text", [b"novalue\n", b"=x\n", b"\xff=1\n"])
    def test_what_is_no_setting_is_refused(self, text: bytes) -> None:
        with pytest.raises(ProtocolError):
            decode_body(ConfigText, text)

    def test_a_value_cannot_smuggle_in_another_line(self) -> None:
        with pytest.raises(InvalidArgument, match="line break"):
            encode_body(ConfigText({"a": "1\nb=2"}))


def test_a_consumer_list_may_be_null() -> None:
    assert decode_body(ConsumerList, b'{"consumerIdList":null}') == ConsumerList()
