"""Which names of topics and groups the API takes."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from penstock.model.names import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    TRACE_TOPIC,
)
from penstock.protocol.validation import MAX_GROUP_LENGTH, MAX_TOPIC_LENGTH, UNSENDABLE_TOPICS
from penstock.proxy.statuses import Refused
from penstock.proxy.wire.codes import Code

_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_SYSTEM_TOPICS: Final = frozenset(
    {*UNSENDABLE_TOPICS, DEFAULT_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC, "CHECKPOINT_TOPIC"}
)
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_MAX_LEGAL: Final = 1024
"""Names that were found legal and are not checked again; the longest has 255 characters."""
_EXPECTED: Final = "letters, digits, %, |, _ and -"


@lru_cache(_MAX_LEGAL)
def topic_name(name: str) -> str:
    """The name of a topic, if it is legal and not one of the system's."""
    if not name.strip():
        raise Refused(Code.ILLEGAL_TOPIC, "the topic has no name")
    if len(name) > MAX_TOPIC_LENGTH or not _LEGAL.fullmatch(name):
        raise Refused(
            Code.ILLEGAL_TOPIC,
            f"topic {name[:MAX_TOPIC_LENGTH]!r}",
            expected=f"at most {MAX_TOPIC_LENGTH} {_EXPECTED}",
        )
    if name in _SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX):
        raise Refused(Code.ILLEGAL_TOPIC, f"topic {name!r} is one of the system's")
    return name


@lru_cache(_MAX_LEGAL)
def group_name(name: str) -> str:
    """The name of a consumer group, if it is legal and not one of the system's."""
    if not name.strip():
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, "the consumer group has no name")
    if len(name) > MAX_GROUP_LENGTH or not _LEGAL.fullmatch(name):
        raise Refused(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"consumer group {name[:MAX_GROUP_LENGTH]!r}",
            expected=f"at most {MAX_GROUP_LENGTH} {_EXPECTED}",
        )
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, f"group {name!r} is one of the system's")
    return name


def has_control_character(text: str) -> bool:
    """Whether a text has a character that cannot be stored or shown."""
    return _CONTROL.search(text) is not None
