"""Tag hashes, tag expressions and subscriptions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SubscriptionIllegal
from penstock.model import Subscription
from penstock.model.java_hash import java_hash
from penstock.protocol.filters.tags import (
    MAX_TAG_CHARACTERS,
    compile_sql,
    parse_tags,
    subscription,
    tag_code,
)


@pytest.mark.parametrize(
    ("tag", "code"),
    [
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("*", 42),
        ("order-created", -392709271),
        ("polygenelubricants", -2147483648),
        ("标签", 857175),
        ("\U0001f600", 1772899),
        ("", 0),
        (None, 0),
    ],
)
def test_the_published_tags_have_their_codes(tag: str | None, code: int) -> None:
    assert tag_code(tag) == code


def test_a_negative_code_is_sign_extended_in_a_queue_entry() -> None:
    entry = tag_code("order-created").to_bytes(8, "big", signed=True)
    assert entry.hex().upper() == "FFFFFFFFE897BB69"


def test_the_heartbeat_fingerprint_vector_is_a_java_hash() -> None:
    text = (
        '{"clientID":"","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","groupName":"cg","messageModel":"CLUSTERING",'
        '"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919,2598920],'
        '"expressionType":"TAG","subString":"TagA || TagB","subVersion":0,'
        '"tagsSet":["TagA","TagB"],"topic":"TopicTest"}],"unitMode":false}],'
        '"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"pg"}],"withoutSub":false}'
    )
    assert java_hash(text) == -317488710


@given(st.text(max_size=300))
def test_the_hash_follows_its_definition(text: str) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = value * 31 + int.from_bytes(units[index : index + 2], "big")
    value &= 0xFFFF_FFFF
    expected = value - (1 << 32) if value >> 31 else value
    assert java_hash(text) == expected
    assert tag_code(text) == expected
    assert tag_code(text) == expected  # now from the cache


@pytest.mark.parametrize("expression", ["*", "", "  ", " * ", None])
def test_everything_passes_without_tags(expression: str | None) -> None:
    assert parse_tags(expression) == (frozenset(), frozenset())


@pytest.mark.parametrize(
    "expression", ["TagA || TagB", "TagA||TagB", " TagB ||TagA|| ", "|| TagA||TagB"]
)
def test_tags_are_split_and_trimmed(expression: str) -> None:
    tags, codes = parse_tags(expression)
    assert tags == {"TagA", "TagB"}
    assert codes == {2598919, 2598920}


def test_a_single_bar_is_part_of_a_tag() -> None:
    assert parse_tags("a|b").tags == {"a|b"}


@pytest.mark.parametrize("expression", ["||", " || || "])
def test_an_expression_of_separators_only_is_refused(expression: str) -> None:
    with pytest.raises(SubscriptionIllegal, match="names no tag"):
        parse_tags(expression)


def test_a_tag_subscription_carries_tags_and_codes() -> None:
    assert subscription("orders", "TagA || TagB", version=7) == Subscription(
        "orders",
        "TagA || TagB",
        version=7,
        tags=frozenset({"TagA", "TagB"}),
        tag_codes=frozenset({2598919, 2598920}),
    )


@pytest.mark.parametrize("kind", [None, "", "TAG"])
def test_no_expression_and_no_type_mean_everything_by_tag(kind: str | None) -> None:
    assert subscription("orders", None, kind) == Subscription("orders")


def test_a_sql_subscription_is_checked() -> None:
    assert subscription("t", "a > 1", "SQL92", 3) == Subscription("t", "a > 1", 3, "SQL92")
    with pytest.raises(SubscriptionIllegal, match="character 5"):
        subscription("t", "a > = 1", "SQL92")


def test_an_unknown_expression_type_is_refused() -> None:
    with pytest.raises(SubscriptionIllegal, match="'XPATH' of topic 't'; expected TAG or SQL92"):
        subscription("t", "a", "XPATH")


def test_compiled_expressions_are_kept_up_to_a_hundred() -> None:
    compile_sql.cache_clear()
    assert compile_sql("a = 1") is compile_sql("a = 1")
    for number in range(150):
        compile_sql(f"a = {number}")
    assert compile_sql.cache_info().currsize == 100


def test_a_tag_expression_has_a_longest_length() -> None:
    fits = "||".join(["tag"] * (MAX_TAG_CHARACTERS // 5))
    assert parse_tags(fits).tags == {"tag"}
    with pytest.raises(SubscriptionIllegal, match=f"at most {MAX_TAG_CHARACTERS}"):
        parse_tags("t" * (MAX_TAG_CHARACTERS + 1))
