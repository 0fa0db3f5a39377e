"""Names, bodies, user properties and permissions that RocketMQ takes."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import IllegalMessage, IllegalName, InvalidArgument
from penstock.protocol.permissions import (
    check_permission,
    permission_text,
)
from penstock.protocol.validation import (
    UNSENDABLE_TOPICS,
    check_body,
    check_group,
    check_sendable,
    check_topic,
    check_user_properties,
    is_system_group,
)

ALLOWED = string.ascii_letters + string.digits + "%|_-"


@given(st.text(ALLOWED, min_size=1, max_size=120))
def test_allowed_characters_make_names(name: str) -> None:
    assert check_topic(name) == name
    assert check_group(name) == name


@given(st.text(max_size=130))
def test_any_text_is_a_name_or_refused(name: str) -> None:
    fine = 0 < len(name) <= 120 and set(name) <= set(ALLOWED)
    if fine:
        assert check_group(name) == name
    else:
        with pytest.raises(IllegalName, match="group name"):
            check_group(name)


@pytest.mark.parametrize("bad", ["a b", "a.b", "a/b", "a+b", "ä", "a\n", "a\x00", "标签"])
def test_the_first_illegal_character_is_named(bad: str) -> None:
    offender = next(c for c in bad if c not in ALLOWED)
    with pytest.raises(IllegalName) as caught:
        check_topic(bad)
    assert f"contains {offender!r}" in str(caught.value)


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_blank_names_are_refused(blank: str) -> None:
    with pytest.raises(IllegalName, match="is blank"):
        check_topic(blank)


@pytest.mark.parametrize("name", [5, None, b"T", ["T"]])
def test_a_name_that_is_no_text_is_refused(name: object) -> None:
    with pytest.raises(IllegalName, match=r"is of type .*; expected text"):
        check_topic(name)  # type: ignore[arg-type]
    with pytest.raises(IllegalName, match=r"is of type .*; expected text"):
        check_group(name)  # type: ignore[arg-type]


def test_topics_have_127_characters_and_derived_ones_255() -> None:
    assert check_topic("t" * 127)
    for prefix in ("%RETRY%", "%DLQ%"):
        assert check_topic(prefix + "g" * (255 - len(prefix)))
        with pytest.raises(IllegalName, match="has 256 characters; expected at most 255"):
            check_topic(prefix + "g" * (256 - len(prefix)))
    with pytest.raises(IllegalName, match="has 128 characters; expected at most 127"):
        check_topic("t" * 128)
    assert check_topic("t" * 128, max_length=255)


def test_groups_have_at_most_120_characters() -> None:
    assert check_group("g" * 120)
    with pytest.raises(IllegalName, match="at most 120"):
        check_group("g" * 121)


def test_an_endless_name_is_not_repeated_in_full() -> None:
    with pytest.raises(IllegalName) as caught:
        check_topic("t" * 100_000)
    assert len(str(caught.value)) < 500


def test_topics_of_the_broker_take_no_messages_from_clients() -> None:
    assert len(UNSENDABLE_TOPICS) == 6
    for topic in UNSENDABLE_TOPICS:
        with pytest.raises(IllegalName, match="belongs to the broker"):
            check_sendable(topic)
    assert check_sendable("orders") == "orders"
    assert check_sendable("RMQ_SYS_TRACE_TOPIC")


@pytest.mark.parametrize("group", ["TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "DEFAULT_PRODUCER"])
def test_groups_of_rocketmq_are_known(group: str) -> None:
    assert is_system_group(group)
    assert not is_system_group("my-" + group)


def test_bodies_are_neither_empty_nor_too_big() -> None:
    assert check_body(b"x", max_bytes=1) == b"x"
    with pytest.raises(IllegalMessage, match="empty"):
        check_body(b"")
    with pytest.raises(IllegalMessage, match="has 2 bytes; expected at most 1"):
        check_body(b"xx", max_bytes=1)
    with pytest.raises(IllegalMessage, match="at most 4194304"):
        check_body(bytes(4194305))


def test_reserved_properties_are_not_for_users() -> None:
    check_user_properties(["colour", "TIMER_DELAY_SEC", "CHECK_IMMUNITY_TIME_IN_SECONDS"])
    for key in ("TAGS", "KEYS", "UNIQ_KEY", "DELAY", "__CRC32#", "REAL_TOPIC", "POP_CK"):
        with pytest.raises(IllegalMessage, match="is reserved"):
            check_user_properties(["colour", key])


@pytest.mark.parametrize(
    ("permission", "text"), [(0, "---"), (2, "-W-"), (4, "R--"), (6, "RW-"), (7, "RWX")]
)
def test_permissions_are_three_bits(permission: int, text: str) -> None:
    assert permission_text(permission) == text
    assert check_permission(permission) == permission


@pytest.mark.parametrize("permission", [-1, 8, 15])
def test_other_permissions_are_refused(permission: int) -> None:
    with pytest.raises(InvalidArgument, match=f"permission {permission}; expected 0 to 7"):
        check_permission(permission)
