"""The text of the topics' file is the same, whether made of pieces or as a whole."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.tables.topics_file_cache import TopicsFileCache
from penstock.protocol.bodies.codec import encode_state
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.topics import (
    QueueMappingItem,
    TopicConfig,
    TopicConfigTable,
    TopicQueueMapping,
)

NAMES = st.sampled_from(["T", "%RETRY%g", 'a"b\\c', "\u00fc\n", "}\n}", '"topicConfigTable":{}'])
CONFIGS = st.builds(
    TopicConfig,
    topic_name=NAMES,
    read_queue_nums=st.integers(0, 9),
    attributes=st.none() | st.dictionaries(NAMES, NAMES, max_size=2),
    mapping_detail=st.none()
    | st.just(TopicQueueMapping("T", hosted_queues={0: (QueueMappingItem(),)})),
    extra=st.just({}) | st.just({"x": [1, {"y": "}\n}"}]}),
)


@given(st.lists(st.dictionaries(NAMES, CONFIGS), max_size=5), st.integers(0, 1 << 40))
def test_pieces_make_the_same_file(tables: list[dict[str, TopicConfig]], stamp: int) -> None:
    texts = TopicsFileCache()
    for counter, topics in enumerate(tables):
        for version in (DataVersion(counter, stamp, 0), DataVersion(counter, stamp)):
            table = TopicConfigTable(topics, version)
            assert texts.text(table) == encode_state(table)


def test_a_topic_that_was_replaced_has_its_new_text() -> None:
    texts = TopicsFileCache()
    first = TopicConfig("T", 4, 4)
    texts.text(TopicConfigTable({"T": first, "U": first}))
    changed = {"U": dataclasses.replace(first, perm=4), "T": first}
    assert texts.text(TopicConfigTable(changed)) == encode_state(TopicConfigTable(changed))
