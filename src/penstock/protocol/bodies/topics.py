"""Topics as a broker keeps them: the topic table, its file, the mapping of static topics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from penstock.errors import ProtocolError
from penstock.protocol.bodies.codec import extra, from_json, wire
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.values import Between, Int32, Misfit, WireEnum, decode_int
from penstock.protocol.fastjson.dialect import Json, Key

# A reader allocates one object per queue, so their number is bounded.
MAX_QUEUES = 65_536

QueueCount = Annotated[int, Between(0, MAX_QUEUES)]

MESSAGE_TYPE = "message.type"
"""The attribute that says which messages a topic is for."""

TellOdd: TypeAlias = Callable[[str, str], object]
"""Called with the name of a topic that was corrected or dropped, and what is wrong with it."""


class TopicFilterType(WireEnum):
    """How many tags a message of the topic may have; every topic in use has the first."""

    SINGLE_TAG = "SINGLE_TAG"
    MULTI_TAG = "MULTI_TAG"


@dataclass(frozen=True, slots=True)
class QueueMappingItem:
    """A stretch of a static topic's queue on one broker."""

    gen: Int32 = 0
    queue_id: Int32 = 0
    bname: str | None = None
    logic_offset: int = 0
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1


@dataclass(frozen=True, slots=True)
class TopicQueueMapping:
    """Where the queues of a static topic are; kept for the peers that know static topics."""

    topic: str | None = None
    scope: str | None = None
    total_queues: Int32 = 0
    bname: str | None = None
    epoch: int = 0
    dirty: bool = False
    curr_id_map: dict[int, int] | None = None
    hosted_queues: dict[int, tuple[QueueMappingItem, ...]] | None = None
    extra: dict[str, object] = field(default_factory=dict, metadata=extra())


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic of a broker."""

    topic_name: str | None = None
    read_queue_nums: QueueCount = 16
    write_queue_nums: QueueCount = 16
    perm: Int32 = 6
    topic_filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] | None = None
    """None: written by 4.9, which has none."""
    mapping_detail: TopicQueueMapping | None = None
    extra: dict[str, object] = field(default_factory=dict, metadata=extra())

    @property
    def message_type(self) -> str:
        """Which messages it is for: NORMAL unless its attributes say something else."""
        return (self.attributes or {}).get(MESSAGE_TYPE) or "NORMAL"


@dataclass(frozen=True, slots=True)
class TopicConfigList:
    """Topics to be created or changed."""

    topic_config_list: tuple[TopicConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicConfigTable:
    """All topics of a broker: ``config/topics.json`` and the answer to GET_ALL_TOPIC_CONFIG.

    The mapping members are 5.x's; None is left out, as 4.9 and the file do.
    """

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_detail_map: dict[str, TopicQueueMapping] | None = None
    topic_queue_mapping_info_map: dict[str, TopicQueueMapping] | None = None


def read_topics(value: Json, tell: TellOdd) -> TopicConfigTable:
    """A table of topics from a JSON value, also where some of them cannot be taken as they are.

    Another program may have written it, and one odd topic must not cost all the others: a number
    of queues that is out of bounds is brought into them, what is wrong beyond that is left out.
    """
    try:
        return from_json(TopicConfigTable, value)
    except ProtocolError:
        topics = value.get("topicConfigTable") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(topics, dict):
            raise
    sound: dict[Key, Json] = {}
    for name, topic in topics.items():
        try:
            from_json(TopicConfig, topic)
        except ProtocolError as error:
            tell(str(name), str(error))
            topic = _with_queues_in_bounds(topic)
            if topic is None:
                continue
        sound[name] = topic
    return from_json(TopicConfigTable, {**value, "topicConfigTable": sound})


def _with_queues_in_bounds(topic: Json) -> Json:
    """The same topic with as many queues as there may be; None if that does not help."""
    if not isinstance(topic, dict):
        return None
    bounded = dict(topic)
    try:
        for key in {"readQueueNums", "writeQueueNums"} & topic.keys():
            bounded[key] = min(max(decode_int(topic[key]), 0), MAX_QUEUES)
        from_json(TopicConfig, bounded)
    except (Misfit, ProtocolError):
        return None
    return bounded


@dataclass(frozen=True, slots=True)
class MessageCount:
    """How many messages of a topic wait, and when that last changed."""

    count: int = 0
    timestamp: int = field(default=0, metadata=wire("timeStamp"))


@dataclass(frozen=True, slots=True)
class TimerMetrics:
    """How many timer messages wait per topic."""

    timing_count: dict[str, MessageCount] = field(default_factory=dict)
    data_version: DataVersion | None = None
