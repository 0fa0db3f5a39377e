"""What the broker adds to the properties of a message."""

from itertools import count

import pytest

from penstock.broker.broker_properties import BrokerProperties
from penstock.model.properties import parse_properties

ADDED = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}


@pytest.fixture
def stamp() -> BrokerProperties:
    numbers = count(1)
    return BrokerProperties(
        region="DefaultRegion",
        trace_on=True,
        cluster="DefaultCluster",
        new_unique_id=lambda: f"ID{next(numbers)}",
    )


def test_region_trace_and_cluster_are_added_behind_what_was_sent(stamp: BrokerProperties) -> None:
    text, unique_id, ruled = stamp.stamp("UNIQ_KEY\x01U\x02TAGS\x01a\x02WAIT\x01true\x02")
    assert text.startswith("UNIQ_KEY\x01U\x02TAGS\x01a\x02WAIT\x01true\x02")
    assert parse_properties(text) == {
        "UNIQ_KEY": "U", "TAGS": "a", "WAIT": "true", **ADDED,
    }  # fmt: skip
    assert unique_id == "U"
    assert ruled is None


def test_a_missing_last_separator_does_not_glue_properties_together(
    stamp: BrokerProperties,
) -> None:
    text, _unique_id, _ruled = stamp.stamp("UNIQ_KEY\x01U\x02TAGS\x01a")
    assert parse_properties(text)["TAGS"] == "a"


@pytest.mark.parametrize("sent", ["", "TAGS\x01a", "TAGS\x01a\x02"])
def test_a_message_without_a_unique_id_gets_one(stamp: BrokerProperties, sent: str) -> None:
    text, unique_id, _ruled = stamp.stamp(sent)
    assert unique_id == "ID1"
    assert parse_properties(text)["UNIQ_KEY"] == "ID1"


def test_a_longer_key_that_ends_like_the_unique_id_is_not_taken_for_it(
    stamp: BrokerProperties,
) -> None:
    text, unique_id, _ruled = stamp.stamp("MY_UNIQ_KEY\x01other\x02")
    properties = parse_properties(text)
    assert properties["MY_UNIQ_KEY"] == "other"
    assert properties["UNIQ_KEY"] == unique_id == "ID1"


def test_stamps_of_an_earlier_broker_are_replaced_and_not_piled_up(stamp: BrokerProperties) -> None:
    text, _unique_id, _ruled = stamp.stamp(
        "UNIQ_KEY\x01U\x02CLUSTER\x01other\x02MSG_REGION\x01eu\x02"
    )
    assert text.count("CLUSTER\x01") == 1
    assert parse_properties(text) == {"UNIQ_KEY": "U", **ADDED}


def test_a_receipt_of_an_earlier_delivery_is_dropped(stamp: BrokerProperties) -> None:
    assert "POP_CK" not in stamp.stamp("UNIQ_KEY\x01U\x02POP_CK\x011 2 3\x02")[0]


@pytest.mark.parametrize("key", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TRAN_MSG"])
def test_properties_with_a_rule_come_back_parsed(stamp: BrokerProperties, key: str) -> None:
    text, _unique_id, ruled = stamp.stamp(f"UNIQ_KEY\x01U\x02{key}\x013\x02")
    assert ruled is not None
    assert ruled[key] == "3"
    assert parse_properties(text) == ruled
