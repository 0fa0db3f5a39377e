"""Namespaces: a prefix on the wire that users never see."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.session.namespaces import unwrap, wrap

names = st.text("abcXYZ019_-", min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("orders", "eu%orders"),
        ("%RETRY%billing", "%RETRY%eu%billing"),
        ("%DLQ%billing", "%DLQ%eu%billing"),
        ("eu%orders", "eu%orders"),
        ("%RETRY%eu%billing", "%RETRY%eu%billing"),
        ("TBW102", "TBW102"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("", ""),
    ],
)
def test_a_name_is_wrapped_once_and_system_names_never(name: str, wrapped: str) -> None:
    assert wrap("eu", name) == wrapped


@given(namespace=names, name=names, prefix=st.sampled_from(["", "%RETRY%", "%DLQ%"]))
def test_unwrapping_undoes_wrapping(namespace: str, name: str, prefix: str) -> None:
    whole = prefix + name
    assert unwrap(namespace, wrap(namespace, whole)) == whole
    assert wrap(namespace, wrap(namespace, whole)) == wrap(namespace, whole)


@given(name=names)
def test_without_a_namespace_names_stay_as_they_are(name: str) -> None:
    for nothing in (None, ""):
        assert wrap(nothing, name) == name
        assert unwrap(nothing, name) == name


def test_a_name_of_another_namespace_is_left_alone() -> None:
    assert unwrap("eu", "us%orders") == "us%orders"
