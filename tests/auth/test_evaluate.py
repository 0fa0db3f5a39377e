"""The evaluation of rights, compared with a slow model that follows the rules one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.auth.evaluate import decide, needs_own_entry
from penstock.auth.model import (
    Action,
    Decision,
    Entry,
    Policy,
    Resource,
    ResourceType,
    parse_address,
    parse_network,
)
from penstock.errors import InvalidArgument

TOPIC = ResourceType.TOPIC
names = st.sampled_from(["a", "ab", "abc", "abd", "b", "%DLQ%a", "rmq_sys_x"])
resources = st.sampled_from(
    ["*", "Topic:*", "Topic:a*", "Topic:ab*", "Topic:ab", "Topic:a", "Topic:%DLQ%a", "Group:*"]
)
entries = st.builds(
    Entry.parse,
    resources,
    st.lists(st.sampled_from(["All", "Pub", "Sub", "Get"]), min_size=1, max_size=2),
    st.sampled_from(["Allow", "Deny"]),
    st.lists(st.sampled_from(["10.0.0.0/8", "::1"]), max_size=1),
    st.sampled_from(["Custom", "Default"]),
)
addresses = st.sampled_from(["10.1.2.3", "192.168.0.1", "::1", "::ffff:10.0.0.1"])


def model(rows: list[Entry], name: str, actions: set[Action], address: str) -> bool:
    """What the rules say: one ranking after the other, without any sorting."""
    peer = parse_address(address)
    for policy in (Policy.CUSTOM, Policy.DEFAULT):
        alive = []
        for row in rows:
            text = str(row.resource)
            covers = (
                text == "*"
                or text == f"Topic:{name}"
                or (
                    text.startswith("Topic:") and text.endswith("*") and name.startswith(text[6:-1])
                )
            )
            if needs_own_entry(name) and text != f"Topic:{name}":
                covers = False
            says = Action.ALL in row.actions or any(one in row.actions for one in actions)
            here = not row.sources or any(
                peer is not None and peer.version == net.version and peer in net
                for net in row.sources
            )
            if row.policy is policy and covers and says and here:
                alive.append(row)
        for group in (
            [row for row in alive if row.resource.is_literal],
            *(
                [row for row in alive if row.resource.is_prefix and len(row.resource.name) == size]
                for size in (3, 2, 1)
            ),
            [row for row in alive if str(row.resource) == "Topic:*"],
            [row for row in alive if str(row.resource) == "*"],
        ):
            if group:
                return all(row.decision is Decision.ALLOW for row in group)
    return False


@pytest.mark.spec("A50", "A51", "A52", "A53", "A54", "A55", "A56", "A87")
@given(
    st.lists(entries, max_size=6),
    names,
    st.sets(st.sampled_from([Action.PUB, Action.SUB, Action.GET]), min_size=1, max_size=2),
    addresses,
)
def test_evaluation_agrees_with_the_model(
    rows: list[Entry], name: str, actions: set[Action], address: str
) -> None:
    verdict = decide(rows, TOPIC, name, actions, parse_address(address))
    assert verdict.is_allowed is model(rows, name, actions, address)
    assert verdict.entry is None or verdict.entry in rows


@pytest.mark.parametrize(
    "text",
    ["", "orders", "Any:x", "Namespace:x", "Topic:", "Topic:a*b", "Tpoic:a", "Topic:" + "x" * 300],
)
@pytest.mark.spec("A57")
def test_a_resource_that_cannot_be_understood_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Resource.parse(text)


@pytest.mark.spec("A57")
def test_an_unknown_action_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidArgument, match=r"action 'Any'.*one of All, Pub, Sub"):
        Entry.parse("Topic:a", ["Any"])
    with pytest.raises(InvalidArgument, match="no action"):
        Entry.parse("Topic:a", [])


@pytest.mark.spec("A58")
def test_addresses_compare_as_numbers_within_their_family() -> None:
    entry = Entry.parse("*", ["All"], sources=["0:0:0:0:0:0:0:1", "10.0.0.0/8", "::ffff:1.2.3.4"])
    assert entry.covers_source(parse_address("::1"))
    assert entry.covers_source(parse_address("::ffff:10.2.3.4"))
    assert entry.covers_source(parse_address("1.2.3.4"))
    assert not entry.covers_source(parse_address("11.0.0.1"))
    assert not entry.covers_source(parse_address("nonsense"))
    with pytest.raises(InvalidArgument, match=r"source address '10\.0\.0'"):
        parse_network("10.0.0")


@pytest.mark.spec("A59")
def test_names_are_exact_and_words_are_not() -> None:
    rows = [Entry.parse("topic:ns%*", ["pub"], "ALLOW")]
    assert decide(rows, TOPIC, "ns%t", {Action.PUB}, None).is_allowed
    assert not decide(rows, TOPIC, "NS%t", {Action.PUB}, None).is_allowed
    assert not decide(rows, TOPIC, "other", {Action.PUB}, None).is_allowed
    assert not decide(rows, ResourceType.CLUSTER, "ns%t", {Action.PUB}, None).is_allowed


def may_read(name: str, *rows: tuple[str, str]) -> bool:
    entries = [
        Entry.parse(resource, ["Sub"], decision, [], "Custom") for resource, decision in rows
    ]
    return decide(entries, TOPIC, name, {Action.SUB}, None).is_allowed


def test_the_rules_one_by_one() -> None:
    """What few drawn examples meet: the property above needs two entries of the same topic."""
    assert may_read("abc", ("Topic:*", "Allow"))
    assert not may_read("%DLQ%a", ("Topic:*", "Allow"))
    assert may_read("%DLQ%a", ("Topic:%DLQ%a", "Allow"))
    assert not may_read("abc", ("Topic:a*", "Allow"), ("Topic:ab*", "Deny"))
    assert may_read("abc", ("Topic:a*", "Deny"), ("Topic:ab*", "Allow"))
    assert not may_read("abc", ("Topic:ab*", "Allow"), ("Topic:ab*", "Deny"))
    assert not may_read("abc", ("Topic:ab*", "Deny"), ("Topic:ab*", "Allow"))
