"""JSON as RocketMQ's peers write it: what is read, what is refused, what is written."""

from __future__ import annotations

import contextlib
import json
import timeit
import tracemalloc

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.protocol.fastjson.dialect import (
    MAX_DEPTH,
    MAX_ITEMS,
    FrozenObject,
    Json,
    dumps,
    dumps_pretty,
    loads,
)
from penstock.protocol.fastjson.reader import MAX_ESCAPES, read
from penstock.protocol.fastjson.references import MAX_FOLLOWED

QUEUE_KEY = FrozenObject.freeze({"brokerName": "b", "queueId": 3, "topic": "T"})

# Vector V17: what a Java name server answers to peers before and after V4_9_4.
ROUTE_BARE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.1:10921"},'
    b'"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}],'
    b'"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,'
    b'"topicSysFlag":0,"writeQueueNums":4}]}'
)
ROUTE_QUOTED = ROUTE_BARE.replace(b'{0:"', b'{"0":"').replace(b',1:"', b',"1":"')
CONSUME_STATS = (
    b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"TopicTest"}:'
    b'{"brokerOffset":5,"consumerOffset":3,"lastTimestamp":1700000000000,"pullOffset":0}}}'
)


class TestReading:
    def test_bare_and_quoted_integer_keys_give_the_same_value(self) -> None:
        assert loads(ROUTE_BARE) == loads(ROUTE_QUOTED) == json.loads(ROUTE_QUOTED)

    def test_an_object_key_becomes_a_frozen_object(self) -> None:
        value = loads(CONSUME_STATS)
        assert isinstance(value, dict)
        table = value["offsetTable"]
        assert isinstance(table, dict)
        ((key, entry),) = table.items()
        assert isinstance(key, FrozenObject)
        assert key.members() == {"brokerName": "broker-a", "queueId": 3, "topic": "TopicTest"}
        assert isinstance(entry, dict)
        assert entry["brokerOffset"] == 5

    def test_an_object_key_is_frozen_all_the_way_down(self) -> None:
        value = loads(b'{{"a":[1,{"b":[2]}]}:0}')
        assert isinstance(value, dict)
        (key,) = value
        assert key == FrozenObject((("a", (1, FrozenObject((("b", (2,)),)))),))
        assert dumps(value) == b'{{"a":[1,{"b":[2]}]}:0}'

    def test_the_order_and_blanks_of_an_object_key_do_not_matter(self) -> None:
        a = loads(b'{{"topic":"T","queueId":3,"brokerName":"b"}:1}')
        b = loads(b'{ { "brokerName" : "b" , "queueId" : 3 , "topic" : "T" } : 1 }')
        assert a == b == {QUEUE_KEY: 1}

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            (b"{'a':'b\"c'}", {"a": 'b"c'}),
            (b"{a:1,_b:2,$c:3,-4:5}", {"a": 1, "_b": 2, "$c": 3, "-4": 5}),
            (b'{"a":1}\n', {"a": 1}),
            (b"\t{a :\r\n1 }\n\n", {"a": 1}),
            (b"{a:[]}", {"a": []}),
            (b"{a:[1,-2.5,3e2,true,false,null]}", {"a": [1, -2.5, 300.0, True, False, None]}),
            (b"{null:1,true:2}", {"null": 1, "true": 2}),
            (b"{a:1,a:2}", {"a": 2}),
            (b"[{1:{2:{3:{}}}}]", [{"1": {"2": {"3": {}}}}]),
            (b"{a:'\\u0041\\n\\t\\'\\\\\\/\\b\\f\\r\\v'}", {"a": "A\n\t'\\/\b\f\r\v"}),
            (b"{a:'\\ud83d\\ude00'}", {"a": "\U0001f600"}),
            (b"{a:'raw\nline\ttab'}", {"a": "raw\nline\ttab"}),
            ("{a:'标签 \U0001f600'}".encode(), {"a": "标签 \U0001f600"}),
            (b"{a:9223372036854775807,b:-9223372036854775808}", {"a": 2**63 - 1, "b": -(2**63)}),
            (b"{a:''}", {"a": ""}),
        ],
    )
    def test_dialects_are_read(self, text: bytes, value: Json) -> None:
        assert loads(text) == value

    def test_strict_json_reads_the_same_both_ways(self) -> None:
        # A trailing bare key forces the tolerant reader over the same members.
        strict = b'{"a":[1,2.5,"x\\u0001",null,{"b":[true,false]}],"c":{"d":18446744073709551615}}'
        assert loads(strict[:-1] + b",z:0}") == {**orjson.loads(strict), "z": 0}

    def test_a_number_too_big_for_64_bits_becomes_a_float_both_ways(self) -> None:
        assert loads(b"[18446744073709551616]") == loads(b"[ 18446744073709551616 ]\n") == [2.0**64]
        assert loads(b"{a:18446744073709551616}") == {"a": 2.0**64}

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b" ",
            b"\n",
            b"{",
            b"[",
            b"{a",
            b"{a:",
            b"{a:1",
            b"{a:1,",
            b"{a:1,}",
            b"{a}",
            b"{a b}",
            b"{:1}",
            b"{,}",
            b"{[1]:2}",
            b"[1,]",
            b"[1 2]",
            b"[,]",
            b"{a:1}}",
            b"{a:1} x",
            b"[1]]",
            b"tru",
            b"nullx",
            b"NaN",
            b"{a:Infinity}",
            b"{a:1e999}",
            b"{a:-}",
            b"{a:1.}",
            b"{a:0x10}",
            b'"abc',
            b"'abc",
            b"{a:'\\q'}",
            b"{a:'\\u12'}",
            b"{a:'\\",
            b"{a:'\\ud800'}",
            b"{a:'\\udc00\\ud800'}",
            b'{"a":"\\ud800"}',
            b"{a:'\xff'}",
            b"\xff\xfe",
            b"\x00",
            b"{{{a:1}:2}:3}",
            b"x\x9c",
        ],
    )
    def test_what_is_no_json_is_refused(self, text: bytes) -> None:
        with pytest.raises(ProtocolError):
            loads(text)

    def test_a_refusal_says_where(self) -> None:
        with pytest.raises(ProtocolError, match=r"character 6.*':oops"):
            loads(b"{a:1, :oops}")

    def test_more_digits_than_python_turns_into_an_integer_are_no_problem(self) -> None:
        assert loads(b"{a:0." + b"0" * 10_000 + b"}") == {"a": 0.0}
        with pytest.raises(ProtocolError):
            loads(b"{a:" + b"9" * 10_000 + b"}")


class TestBombs:
    @pytest.mark.parametrize(
        "text",
        [
            b"[" * 100_000,
            b"[" * 100_000 + b"]" * 100_000,
            b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
            b"{a:" * 100_000 + b"1" + b"}" * 100_000,
            b"{" * 100_000,
            b"{a:" + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}",
            b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
            b"[" * 1000 + b"]" * 1000,
        ],
    )
    def test_deep_nesting_is_refused(self, text: bytes) -> None:
        with pytest.raises(ProtocolError, match=r"nested|depth|JSON|key|items"):
            loads(text)

    def test_the_deepest_nesting_allowed_is_read_both_ways(self) -> None:
        nested = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
        assert dumps(loads(nested)) == nested
        inner = b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)
        assert loads(b"{a:" + inner + b"}") == loads(b'{"a":' + inner + b"}")

    def test_many_brackets_side_by_side_are_not_deep(self) -> None:
        assert loads(b"[" + b",".join([b"[]"] * 1000) + b"]") == [[]] * 1000

    def test_too_many_items_are_refused_before_anything_is_built(self) -> None:
        bomb = b"[" + b"[]," * (MAX_ITEMS // 2 + 1) + b"[]]"
        tracemalloc.start()
        with pytest.raises(ProtocolError, match="items"):
            loads(bomb)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < len(bomb)


class TestReferences:
    def test_a_reference_becomes_what_it_names(self) -> None:
        value = loads(
            b'{"messageQueueAssignments":[{"attachments":{"k":"v"},"mode":"POP"},'
            b'{"attachments":{"$ref":"$.messageQueueAssignments[0].attachments"},"mode":"POP"}]}'
        )
        assert isinstance(value, dict)
        assert value["messageQueueAssignments"] == [{"attachments": {"k": "v"}, "mode": "POP"}] * 2

    def test_references_forward_through_bare_keys_and_chains_are_followed(self) -> None:
        value = loads(b'{a:{"$ref":"$.b"},b:{"$ref":"$.c.0"},c:{0:{"x":1}}}')
        assert value == {"a": {"x": 1}, "b": {"x": 1}, "c": {"0": {"x": 1}}}

    def test_a_reference_as_a_map_key_is_resolved(self) -> None:
        value = loads(
            b'{"queue":{"brokerName":"b","queueId":3,"topic":"T"},'
            b'"table":{{"$ref":"$.queue"}:5,{"brokerName":"b","queueId":4,"topic":"T"}:6}}'
        )
        assert isinstance(value, dict)
        table = value["table"]
        assert isinstance(table, dict)
        assert list(table.values()) == [5, 6]
        assert QUEUE_KEY in table

    def test_a_key_that_names_the_only_key_of_another_map_is_resolved(self) -> None:
        # fastjson has no name for an object key and writes "null" in its path.
        text = (
            b'{"a":{{"brokerName":"b","queueId":3,"topic":"T"}:1},'
            b'"b":{{"$ref":"$.a.null"}:2},"c":{"$ref":"$.a"}}'
        )
        assert loads(text) == {"a": {QUEUE_KEY: 1}, "b": {QUEUE_KEY: 2}, "c": {QUEUE_KEY: 1}}

    @pytest.mark.parametrize("path", ["$.a\\\\.b", "$['a.b']", '$[\\"a.b\\"]', "$.list[0]"])
    def test_escaped_and_bracketed_paths_are_understood(self, path: str) -> None:
        text = f'{{"a.b":{{"x":1}},"list":[{{"x":1}}],"r":{{"$ref":"{path}"}}}}'
        value = loads(text.encode())
        assert isinstance(value, dict)
        assert value["r"] == {"x": 1}

    @pytest.mark.parametrize(
        "path",
        [
            "$.nothing",
            "$.a[7]",
            "$.a.b.c",
            "nonsense",
            "",
            "$.s",
            "$..a",
            "$[",
            "$.a[x]",
            "$.list.a",
        ],
    )
    def test_a_reference_to_nothing_is_null(self, path: str) -> None:
        text = f'{{"a":{{"b":1}},"s":"text","list":[1],"r":{{"$ref":"{path}"}}}}'
        value = loads(text.encode())
        assert isinstance(value, dict)
        assert value["r"] is None

    def test_a_path_through_a_reference_that_is_not_settled_leads_nowhere(self) -> None:
        assert loads(b'{"a":{"$ref":"$.b.x"},"b":{"$ref":"$.c"},"c":{"x":{}}}') == {
            "a": None,
            "b": {"x": {}},
            "c": {"x": {}},
        }

    def test_an_entry_whose_key_is_a_reference_to_nothing_is_dropped(self) -> None:
        assert loads(b'{{"$ref":"$.x"}:1,"a":2}') == {"a": 2}

    @pytest.mark.parametrize(
        "text",
        [
            b'{"a":{"$ref":"$"}}',
            b'{"a":{"$ref":"@"}}',
            b'{"a":{"b":{"$ref":".."}}}',
            b'{"a":{"$ref":"$.a"}}',
            b'{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
            b'{"a":{"x":{"$ref":"$.b"}},"b":{"x":{"$ref":"$.a"}}}',
            b'{"a":[{"$ref":"$.a"}]}',
            b'{"$ref":"$"}',
        ],
    )
    def test_loops_are_refused(self, text: bytes) -> None:
        with pytest.raises(ProtocolError, match="reference"):
            loads(text)

    def test_references_that_multiply_are_refused(self) -> None:
        levels = [b'"l0":["ha","ha","ha","ha","ha","ha","ha","ha","ha","ha"]']
        for level in range(1, 20):
            previous = b'{"$ref":"$.l%d"}' % (level - 1)
            levels.append(b'"l%d":[' % level + b",".join([previous] * 10) + b"]")
        with pytest.raises(ProtocolError, match="multiply"):
            loads(b"{" + b",".join(levels) + b"}")

    def test_references_that_nest_too_deeply_are_refused(self) -> None:
        levels = [b'"l0":[]']
        levels += [b'"l%d":[{"$ref":"$.l%d"}]' % (n, n - 1) for n in range(1, MAX_DEPTH + 5)]
        for order in (levels, levels[::-1]):
            with pytest.raises(ProtocolError, match=r"nested|chain"):
                loads(b"{" + b",".join(order) + b"}")

    def test_the_words_in_a_string_are_no_reference(self) -> None:
        assert loads(b'{"a":"$ref","$ref":1,"b":{"$ref":"$.a","c":1}}') == {
            "a": "$ref",
            "$ref": 1,
            "b": {"$ref": "$.a", "c": 1},
        }


class TestWriting:
    def test_text_is_compact_and_integer_keys_are_quoted(self) -> None:
        value: Json = {"brokerAddrs": {0: "a:1", 1: "b:2"}, "list": [1, 2.0, "x", None, True]}
        assert dumps(value) == b'{"brokerAddrs":{"0":"a:1","1":"b:2"},"list":[1,2.0,"x",null,true]}'

    def test_integer_keys_can_be_left_bare(self) -> None:
        assert dumps({"t": {0: 5, -1: 6, "x": 7}}, bare_integer_keys=True) == (
            b'{"t":{0:5,-1:6,"x":7}}'
        )

    def test_object_keys_are_written_as_fastjson_writes_them(self) -> None:
        assert dumps({"t": {QUEUE_KEY: {0: [1]}}}) == (
            b'{"t":{{"brokerName":"b","queueId":3,"topic":"T"}:{"0":[1]}}}'
        )

    def test_control_characters_are_escaped_and_the_rest_is_utf_8(self) -> None:
        assert dumps({QUEUE_KEY: "\x01标"}).endswith('"\\u0001标"}'.encode())

    def test_state_files_look_like_apaches(self) -> None:
        value: Json = {"offsetTable": {"T@g": {0: 5, 1: 6}}, "e": {}, "l": ["a", "b"], "n": []}
        assert dumps_pretty(value).decode() == (
            '{\n\t"offsetTable":{\n\t\t"T@g":{\n\t\t\t0:5,\n\t\t\t1:6\n\t\t}\n\t},\n'
            '\t"e":{},\n\t"l":[\n\t\t"a",\n\t\t"b"\n\t],\n\t"n":[]\n}'
        )

    def test_what_cannot_be_written_is_refused_with_its_value(self) -> None:
        with pytest.raises(ProtocolError, match="surrogate"):
            dumps("\ud800")
        with pytest.raises(ProtocolError, match="64-bit"):
            dumps({"a": 2**70})
        nested: Json = []
        for _ in range(MAX_DEPTH):
            nested = [nested]
        with pytest.raises(ProtocolError, match="nested"):
            dumps_pretty(nested)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)
frozen = st.dictionaries(texts, scalars, max_size=3).map(FrozenObject.freeze)
keys = st.one_of(texts.filter(lambda key: key != "$ref"), st.integers(-99, 99).map(str), frozen)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_everything_written_is_read_back(value: Json) -> None:
    assert loads(dumps(value)) == value
    assert loads(dumps_pretty(value)) == value


strict_keys = texts.filter(lambda key: key != "$ref")
strict_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strict_keys, inner, max_size=4),
    max_leaves=20,
)


@given(strict_values)
def test_strict_json_is_read_alike_on_the_fast_path_and_the_plain_path(value: Json) -> None:
    data = orjson.dumps(value)
    assert loads(data) == read(data.decode()) == value


tricky = st.text(alphabet="{},:0123456789-\"\\ \n'ax", max_size=12)


@given(st.dictionaries(tricky, st.dictionaries(st.integers(), tricky | st.integers(-9, 9))))
def test_bare_integer_keys_are_distinguished_from_strings_that_look_like_them(
    table: dict[str, dict[int, Json]],
) -> None:
    value: Json = {name: {key: item for key, item in row.items()} for name, row in table.items()}
    expected = {name: {str(key): item for key, item in row.items()} for name, row in table.items()}
    assert loads(dumps(value, bare_integer_keys=True)) == expected
    assert loads(dumps_pretty(value)) == expected


@given(st.binary(max_size=60))
def test_random_bytes_raise_nothing_but_protocol_errors(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        loads(data)


@given(st.text(alphabet="{}[]:,\"'\\$refa.@0123456789-eE tn\n", max_size=60))
def test_random_dialect_raises_nothing_but_protocol_errors(text: str) -> None:
    with contextlib.suppress(ProtocolError):
        loads(text.encode())


@given(st.data())
def test_mutated_bodies_raise_nothing_but_protocol_errors(data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from([ROUTE_BARE, ROUTE_QUOTED, CONSUME_STATS])))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(body) - 1))
        body[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
        if not body:
            break
    with contextlib.suppress(ProtocolError):
        loads(bytes(body))


def test_strict_json_takes_the_fast_path() -> None:
    def best(data: bytes) -> float:
        return min(timeit.repeat(lambda: loads(data), number=100, repeat=5))

    # The same route; only the quotes of some keys differ.
    dialect = ROUTE_QUOTED.replace(b'"perm"', b"'perm'")
    assert loads(dialect) == loads(ROUTE_QUOTED)
    assert best(ROUTE_QUOTED) * 4 < best(dialect)


def test_references_are_followed_so_far_and_no_further() -> None:
    deep = b'{"a":' * 20 + b"{}" + b"}" * 20
    reference = b'{"$ref":"$.x' + b".a" * 20 + b'"}'
    document = b'{"x":%b,"y":[%b]}'
    found = loads(document % (deep, b",".join([reference] * 100)))
    assert isinstance(found, dict)
    assert found["y"] == [{}] * 100
    with pytest.raises(ProtocolError, match=f"at most {MAX_FOLLOWED} steps"):
        loads(document % (deep, b",".join([reference] * (MAX_FOLLOWED // 20))))


def test_a_reference_to_nothing_ends_where_nothing_is() -> None:
    reference = b'{"$ref":"$.no' + b".no" * 1000 + b'"}'
    # Followed to the end of their paths, these would be twice as many steps as there may be.
    found = loads(b'{"y":[%b]}' % b",".join([reference] * 1000))
    assert found == {"y": [None] * 1000}


def test_lenient_json_has_so_many_escapes_and_no_more() -> None:
    assert loads(b"{'a':'" + rb"\n" * 1000 + b"'}") == {"a": "\n" * 1000}
    with pytest.raises(ProtocolError, match=f"at most {MAX_ESCAPES}"):
        loads(b"{'a':'" + rb"\n" * (MAX_ESCAPES + 1) + b"'}")
    # Strict JSON goes another way, which does not mind.
    assert loads(b'{"a":"' + rb"\n" * (MAX_ESCAPES + 1) + b'"}') == {"a": "\n" * (MAX_ESCAPES + 1)}
