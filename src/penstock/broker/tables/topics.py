"""The topics of a broker: the table that is saved in ``config/topics.json``.

Changes are made in memory, and the owner of the table is notified: it saves the table and registers
the change with the name servers. Nothing here waits or touches a file.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from penstock.broker.tables.topics_file_cache import TopicsFileCache
from penstock.errors import InvalidArgument, RequestRefused, TopicNotFound
from penstock.model.names import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    INHERIT,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    READ,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    TIMER_TOPIC,
    TRACE_TOPIC,
    TRANSACTION_GIVEN_UP_TOPIC,
    WRITE,
    reply_topic,
    revive_topic,
)
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.topics import MAX_QUEUES, TopicConfig, TopicConfigTable, read_topics
from penstock.protocol.fastjson.dialect import loads
from penstock.protocol.validation import MAX_RETRY_TOPIC_LENGTH

log = logging.getLogger(__name__)

TOPICS_FILE = "topics.json"
READ_WRITE = READ | WRITE
UNIT_SUB_FLAG = 2
SCHEDULE_QUEUES = 18
MAX_TOPICS = 32_768
"""All topics, with names of the largest length, must fit into the one frame of a registration; else
the broker could not register. Clients create topics by sending."""
MAX_OTHER_TOPICS = MAX_TOPICS * 3 // 4
"""The last quarter is reserved for retries and dead letters, which groups need to continue."""

_REVIVE_PREFIX = revive_topic("")
# Only the broker itself writes to these.
SEND_FORBIDDEN = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANSACTION_GIVEN_UP_TOPIC,
        TIMER_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)


def is_send_forbidden(topic: str) -> bool:
    """Whether only the broker itself writes to a topic."""
    # A forged record of the revive topic would hand out or finish messages of others.
    return topic in SEND_FORBIDDEN or topic.startswith(_REVIVE_PREFIX)


def topic_config(
    name: str, read: int, write: int, perm: int = READ_WRITE, **more: object
) -> TopicConfig:
    """A topic with the attributes that 5.x writes."""
    return TopicConfig(name, read, write, perm, attributes={}, **more)  # type: ignore[arg-type]


def template_topic(queues: int) -> TopicConfig:
    """The template of topics that sends create."""
    return topic_config(DEFAULT_TOPIC, queues, queues, READ_WRITE | INHERIT)


def system_topics(
    cluster: str, broker_name: str, *, auto_create: bool, template_queues: int, trace_topic: bool
) -> list[TopicConfig]:
    """The topics that every broker has."""
    all_permissions = READ_WRITE | INHERIT
    topics = [
        topic_config(SELF_TEST_TOPIC, 1, 1),
        topic_config(BENCHMARK_TOPIC, 1024, 1024),
        topic_config(cluster, 16, 16, all_permissions),
        topic_config(broker_name, 1, 1, all_permissions),
        topic_config(OFFSET_MOVED_TOPIC, 1, 1),
        topic_config(SCHEDULE_TOPIC, SCHEDULE_QUEUES, SCHEDULE_QUEUES),
        topic_config(reply_topic(cluster), 1, 1),
        topic_config(HALF_TOPIC, 1, 1),
        topic_config(OP_HALF_TOPIC, 1, 1),
        topic_config(TIMER_TOPIC, 1, 1),
        topic_config(revive_topic(cluster), 8, 8),
    ]
    if auto_create:
        topics.append(template_topic(template_queues))
    if trace_topic:
        topics.append(topic_config(TRACE_TOPIC, 1, 1))
    return topics


class Topics:
    """All topics of one broker."""

    def __init__(
        self,
        *,
        system: Iterable[TopicConfig],
        now_ms: Callable[[], int],
        changed: Callable[[str], None] = lambda topic: None,
        auto_create: Callable[[], bool] = lambda: True,
    ) -> None:
        """``auto_create`` tells whether the default topic may be used as a template."""
        self._auto_create = auto_create
        self._now_ms = now_ms
        self._changed = changed
        self._table: dict[str, TopicConfig] = {}
        self._version = DataVersion(0, now_ms(), 0)
        self._watchers: list[Callable[[], None]] = []
        self._file_cache = TopicsFileCache()
        self._system = {config.topic_name: config for config in system}
        self._add_system_topics()

    # Reading

    def get(self, topic: str) -> TopicConfig | None:
        """A topic, if there is one of that name."""
        return self._table.get(topic)

    def require(self, topic: str) -> TopicConfig:
        """A topic; `TopicNotFound` if there is none."""
        config = self._table.get(topic)
        if config is None:
            raise TopicNotFound(
                f"topic[{topic}] not exist, apply first please!",
                hint=f"penstock topic create {topic}",
            )
        return config

    def __contains__(self, topic: str) -> bool:
        return topic in self._table

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(self._table.values())

    def __len__(self) -> int:
        return len(self._table)

    def is_system(self, topic: str) -> bool:
        """Whether the broker itself depends on the topic."""
        return topic in self._system or topic.startswith(SYSTEM_TOPIC_PREFIX)

    def system_names(self) -> list[str]:
        """The topics that come with the broker."""
        return [topic for topic in self._table if self.is_system(topic)]

    @property
    def version(self) -> DataVersion:
        """Changes with every change of the table; name servers compare it."""
        return self._version

    def table(self) -> TopicConfigTable:
        """The table for registrations, answers and the file."""
        return TopicConfigTable(dict(self._table), self._version)

    def on_change(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` after every change; for caches of values derived from topics."""
        self._watchers.append(watcher)

    # Changing

    def put(self, config: TopicConfig) -> None:
        """Create or replace a topic; `RequestRefused` if there is no room for another one."""
        assert config.topic_name is not None, "a topic of the table has a name"
        if config.topic_name not in self._table:
            self._need_room(config.topic_name)
        self._put(config.topic_name, config)

    def _put(self, topic: str, config: TopicConfig) -> None:
        if self._table.get(topic) != config:
            self._table[topic] = config
            self._note_change(topic)

    def _need_room(self, topic: str) -> None:
        is_of_group = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        limit = MAX_TOPICS if is_of_group else MAX_OTHER_TOPICS
        if len(self._table) >= limit and topic not in self._system:
            raise RequestRefused(
                f"no room for topic {topic}, the broker has {len(self._table)} topics",
                expected=f"at most {limit}",
                hint="delete unused topics, or add a broker",
            )

    def remove(self, topic: str) -> bool:
        """Delete a topic; False if there was none."""
        if self._table.pop(topic, None) is None:
            return False
        self._note_change(topic)
        return True

    def create_for_send(self, topic: str, template: str, queues: int) -> TopicConfig:
        """Create the topic of a send to an unknown name from a template topic.

        A missing retry topic is created even without a template.
        """
        model = self._table.get(template)
        if template == DEFAULT_TOPIC and not self._auto_create():
            # The table may still contain it from an earlier start.
            model = None
        if model is not None and model.perm & INHERIT and queues > 0:
            count = min(queues, model.write_queue_nums)
            config = topic_config(topic, count, count, model.perm & ~INHERIT)
        elif topic.startswith(RETRY_PREFIX):
            config = topic_config(topic, 1, 1)
        else:
            return self.require(topic)
        self.put(config)
        return config

    def ensure(
        self, topic: str, queues: int, perm: int = READ_WRITE, sys_flag: int = 0
    ) -> TopicConfig:
        """A retry or dead-letter topic, created if need be."""
        config = self._table.get(topic)
        if config is None:
            # The group table of another broker may have more queues than a topic can have.
            queues = min(queues, MAX_QUEUES)
            config = topic_config(topic, queues, queues, perm, topic_sys_flag=sys_flag)
            self.put(config)
        elif sys_flag & ~config.topic_sys_flag:
            config = dataclasses.replace(config, topic_sys_flag=config.topic_sys_flag | sys_flag)
            self.put(config)
        return config

    def touch(self) -> None:
        """Register the table again: permissions of the broker have changed."""
        self._note_change("")

    def set_order(self, topics: Mapping[str, str]) -> None:
        """Mark the topics that a name server lists as ordered."""
        for topic in topics:
            config = self._table.get(topic)
            if config is not None and not config.order:
                self.put(dataclasses.replace(config, order=True))

    def adopt(self, topic: str, queues: int) -> bool:
        """Add a topic that has messages in the store but is missing in the table.

        False if the name is illegal: with a name that cannot be encoded the table could not be
        saved, nor the broker registered.
        """
        if not topic or not topic.isprintable() or len(topic) > MAX_RETRY_TOPIC_LENGTH:
            return False
        if topic not in self._table:
            self._put(topic, topic_config(topic, queues, queues))
        return True

    # Saving

    def dump(self) -> bytes:
        """The content of ``topics.json``."""
        return self._file_cache.text(self.table())

    def load(self, data: bytes) -> None:
        """Load the content of a file that ``dump`` or Apache RocketMQ wrote."""
        table = read_topics(loads(data), _log_odd)
        self._table = {
            name: dataclasses.replace(config, topic_name=name, attributes=config.attributes or {})
            for name, config in table.topic_config_table.items()
        }
        self._version = table.data_version
        self._call_watchers()
        self._add_system_topics()

    def _add_system_topics(self) -> None:
        for name, config in self._system.items():
            if name not in self._table and name is not None:
                self._put(name, config)

    def _note_change(self, topic: str) -> None:
        self._version = self._version.following(self._now_ms())
        self._call_watchers()
        self._changed(topic)

    def _call_watchers(self) -> None:
        for watcher in self._watchers:
            watcher()


def _log_odd(topic: str, trouble: str) -> None:
    log.error("topic bounded or left out file=%s topic=%s error=%s", TOPICS_FILE, topic, trouble)


def check_queue_count(read: int, write: int) -> None:
    """Refuse a topic without read or write queues."""
    if read <= 0 or write <= 0:
        raise InvalidArgument(
            f"a topic with {read} read and {write} write queues", expected="1 or more of each"
        )
