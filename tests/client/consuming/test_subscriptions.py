"""What a consumer wants: filters, versions, handlers, and the topics messages come back under."""

from __future__ import annotations

import itertools

import pytest

from penstock.client.consuming.subscriptions import Subscriptions, passes
from penstock.errors import IllegalName, InvalidArgument, SubscriptionIllegal
from penstock.model import MessageQueue, StoredMessage
from penstock.protocol.filters.tags import subscription, tag_code

GROUP = "billing"
RETRY = "%RETRY%billing"


def handler(message: StoredMessage) -> None:
    """Any handler."""


def subscriptions(
    *, with_retry: bool = True, namespace: str | None = None, start: int = 1000
) -> Subscriptions:
    ticks = itertools.count(start)
    return Subscriptions(
        GROUP, with_retry=with_retry, now_ms=lambda: next(ticks), namespace=namespace
    )


def message(topic: str, properties: dict[str, str] | None = None) -> StoredMessage:
    return StoredMessage(topic, b"x", properties or {}, MessageQueue(topic, "b", 0), 0)


@pytest.mark.spec("S6")
def test_the_retry_topic_is_wanted_from_the_start_in_clustering_only() -> None:
    assert subscriptions().topics == (RETRY,)
    assert subscriptions(with_retry=False).topics == ()
    assert not subscriptions().has_handlers


@pytest.mark.spec("S4")
def test_a_subscription_has_tags_codes_and_a_version() -> None:
    wanted = subscriptions()
    made = wanted.add("T", handler, tags="created || paid ", takes_batch=False)
    assert made.tags == {"created", "paid"}
    assert made.tag_codes == {tag_code("created"), tag_code("paid")}
    assert made.version > 0
    assert wanted.has_handlers
    assert [s.topic for s in wanted.all] == [RETRY, "T"]


def test_a_sql_subscription_keeps_its_expression() -> None:
    made = subscriptions().add("T", handler, sql="a > 5", takes_batch=False)
    assert (made.expression_type, made.expression, made.tags) == ("SQL92", "a > 5", frozenset())


@pytest.mark.parametrize(
    ("topic", "options", "error"),
    [
        ("has blank", {}, IllegalName),
        ("", {}, IllegalName),
        (RETRY, {}, InvalidArgument),
        ("T", {"sql": "a >"}, SubscriptionIllegal),
        ("T", {"sql": "a > 5", "tags": "a"}, SubscriptionIllegal),
        ("T", {"tags": " || "}, SubscriptionIllegal),
    ],
)
def test_what_cannot_be_wanted_is_refused_and_leaves_no_trace(
    topic: str, options: dict[str, str], error: type[Exception]
) -> None:
    wanted = subscriptions()
    with pytest.raises(error):
        wanted.add(topic, handler, takes_batch=False, **options)
    assert wanted.topics == (RETRY,)
    assert not wanted.has_handlers


def test_one_topic_has_one_handler() -> None:
    wanted = subscriptions()
    wanted.add("T", handler, takes_batch=False)
    with pytest.raises(InvalidArgument, match="two handlers"):
        wanted.add("T", handler, takes_batch=False)
    wanted.remove("T")
    wanted.add("T", handler, takes_batch=False)
    wanted.remove("UNKNOWN")


def test_the_same_topic_wanted_again_replaces_the_filter() -> None:
    wanted = subscriptions(with_retry=False)
    first = wanted.want("T", tags="a")
    second = wanted.want("T", tags="b")
    assert second.version > first.version
    assert [s.expression for s in wanted.all] == ["b"]


def test_pulls_name_a_new_version_only_after_brokers_have_it() -> None:
    wanted = subscriptions()
    first = wanted.add("T", handler, takes_batch=False)
    assert wanted["T"] == first
    wanted.renew("T")
    renewed = next(s for s in wanted.all if s.topic == "T")
    assert renewed.version > first.version
    pulled = wanted["T"]
    assert pulled is not None
    assert pulled.version == first.version
    wanted.accept("T")
    assert wanted["T"] == renewed
    assert wanted["UNKNOWN"] is None
    wanted.renew("UNKNOWN")
    wanted.accept("UNKNOWN")


def test_a_version_grows_even_when_the_clock_stands_or_jumps_back() -> None:
    wanted = Subscriptions(GROUP, with_retry=False, now_ms=lambda: 5)
    versions = [wanted.want("T").version]
    for _ in range(3):
        wanted.renew("T")
        versions.append(wanted.all[0].version)
    assert versions == [5, 6, 7, 8]


@pytest.mark.spec("S70")
def test_a_retried_message_gets_its_original_topic() -> None:
    wanted = subscriptions()
    retried = message(RETRY, {"RETRY_TOPIC": "T"})
    wanted.restore_topic(retried)
    assert retried.topic == "T"
    assert retried.queue.topic == RETRY
    lost = message(RETRY)
    wanted.restore_topic(lost)
    assert lost.topic == RETRY
    popped = message(f"{RETRY}_T")
    wanted.restore_topic(popped)
    assert popped.topic == "T"


def test_a_namespace_is_taken_off_and_handlers_are_found_either_way() -> None:
    wanted = subscriptions(namespace="eu")
    wanted.add("eu%T", handler, takes_batch=False)
    plain = message("eu%T")
    wanted.restore_topic(plain)
    assert plain.topic == "T"
    assert wanted.listener("T") is wanted.listener("eu%T") is not None
    assert not wanted.is_as_handled("eu%T")
    assert subscriptions().is_as_handled("T")
    assert not subscriptions().is_as_handled(RETRY)


@pytest.mark.spec("S55")
def test_a_tag_with_the_same_hash_does_not_pass() -> None:
    assert tag_code("Aa") == tag_code("BB")
    wanted = subscription("T", "Aa")
    messages = [message("T", {"TAGS": "Aa"}), message("T", {"TAGS": "BB"}), message("T")]
    assert passes(wanted, messages) == messages[:1]


@pytest.mark.parametrize("expression", ["*", "", None])
def test_everything_passes_without_a_tag(expression: str | None) -> None:
    messages = [message("T", {"TAGS": "Aa"}), message("T")]
    assert passes(subscription("T", expression), messages) == messages


def test_sql_is_left_to_the_broker() -> None:
    messages = [message("T", {"a": "1"})]
    assert passes(subscription("T", "a > 5", "SQL92"), messages) == messages
