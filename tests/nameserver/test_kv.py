"""The texts a name server keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument, ProtocolError
from penstock.nameserver import kv
from penstock.nameserver.kv import KvConfig
from penstock.protocol.bodies.common import KvTable


def test_a_text_is_put_read_and_deleted() -> None:
    config = KvConfig()
    assert config.get("N", "k") is None
    assert config.put("N", "k", "v")
    assert config.get("N", "k") == "v"
    assert config.delete("N", "k")
    assert config.get("N", "k") is None
    assert not config.delete("N", "k")
    assert not config.delete("unknown", "k")


def test_only_a_change_needs_to_be_saved() -> None:
    config = KvConfig()
    assert config.put("N", "k", "v")
    assert not config.put("N", "k", "v")
    assert config.put("N", "k", "w")


def test_a_namespace_is_listed_while_it_has_texts() -> None:
    config = KvConfig()
    assert config.namespace("N") is None
    config.put("N", "k", "v")
    config.put("M", "k", "other")
    assert config.namespace("N") == KvTable({"k": "v"})
    config.delete("N", "k")
    assert config.namespace("N") is None


def test_a_listed_namespace_is_a_copy() -> None:
    config = KvConfig()
    config.put("N", "k", "v")
    listed = config.namespace("N")
    config.put("N", "k2", "v2")
    assert listed == KvTable({"k": "v"})


def test_the_queues_of_an_order_topic() -> None:
    config = KvConfig()
    config.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4;broker-b:4")
    assert config.order_conf("T") == "broker-a:4;broker-b:4"
    assert config.order_conf("U") is None


def test_the_file_is_apaches() -> None:
    config = KvConfig()
    config.put("ORDER_TOPIC_CONFIG", "T", "broker-a:1")
    assert config.dump() == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:1"}}}'
    assert KvConfig.load(config.dump()).order_conf("T") == "broker-a:1"
    assert KvConfig.load(b'{"configTable":{}}').dump() == KvConfig().dump()


@pytest.mark.parametrize("data", [b"", b"[]", b'{"configTable":[]}', b'{"configTable":{"N":1}}'])
def test_a_damaged_file_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        KvConfig.load(data)


def test_the_number_of_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "MAX_ENTRIES", 2)
    config = KvConfig()
    config.put("N", "a", "1")
    config.put("M", "b", "2")
    with pytest.raises(InvalidArgument, match="no room for key 'c'"):
        config.put("O", "c", "3")
    assert config.namespace("O") is None
    assert config.put("N", "a", "changed")
    config.delete("M", "b")
    assert config.put("O", "c", "3")


def test_the_length_of_all_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "MAX_CHARACTERS", 20)
    config = KvConfig()
    config.put("N", "a", "x" * 10)
    with pytest.raises(InvalidArgument, match="at most 20 characters in all"):
        config.put("N", "b", "x" * 7)
    with pytest.raises(InvalidArgument, match="at most 20 characters in all"):
        config.put("N", "a", "x" * 19)
    assert config.get("N", "a") == "x" * 10
    assert config.put("N", "b", "x" * 6)
    assert config.put("N", "a", "")
    assert config.put("N", "b", "x" * 16)
    config.delete("N", "b")
    assert config.put("M", "b", "x" * 16)
    # What is in the file was taken once; it is not forgotten for a limit that came later.
    monkeypatch.setattr(kv, "MAX_CHARACTERS", 5)
    again = KvConfig.load(config.dump())
    assert again.get("M", "b") == "x" * 16
    assert again.put("M", "b", "x")
    with pytest.raises(InvalidArgument, match="at most 5"):
        again.put("M", "c", "x" * 5)


names = st.text("abc", max_size=2)


@given(st.lists(st.tuples(st.booleans(), names, names, st.text(max_size=4)), max_size=30))
def test_it_behaves_like_a_dict_and_survives_its_file(
    steps: list[tuple[bool, str, str, str]],
) -> None:
    config = KvConfig()
    model: dict[tuple[str, str], str] = {}
    for puts, namespace, key, value in steps:
        if puts:
            value = value.encode("utf-8", "replace").decode()
            assert config.put(namespace, key, value) == (model.get((namespace, key)) != value)
            model[namespace, key] = value
        else:
            assert config.delete(namespace, key) == ((namespace, key) in model)
            model.pop((namespace, key), None)
        config = KvConfig.load(config.dump())
        assert all(config.get(*place) == text for place, text in model.items())
        assert {space for space, _ in model} == {
            space for space, _ in model if config.namespace(space) is not None
        }
