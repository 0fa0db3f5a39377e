"""Answers that list topics or groups: a user sees the rows that it has any right on.

A user with GET on the cluster sees all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from penstock.auth.model import ResourceType
from penstock.protocol.codes import RequestCode as Code
from penstock.protocol.commands import Command


class RowFilter(NamedTuple):
    """The member of a JSON body that holds the rows: an object or a list of names."""

    type: ResourceType
    member: str


ROW_FILTERS: Final[Mapping[int, RowFilter]] = {
    Code.GET_ALL_TOPIC_CONFIG: RowFilter(ResourceType.TOPIC, "topicConfigTable"),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: RowFilter(ResourceType.GROUP, "subscriptionGroupTable"),
    **{
        code: RowFilter(ResourceType.TOPIC, "topicList")
        for code in (
            Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            Code.GET_TOPICS_BY_CLUSTER,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            Code.GET_UNIT_TOPIC_LIST,
            Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
            Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        )
    },
}


def filter_rows(
    rows: RowFilter, answer: Command, may_see: Callable[[ResourceType, str], bool]
) -> Command:
    """The answer with the rows that may be seen."""
    body = answer.body
    if not isinstance(body, bytes | bytearray | memoryview):
        body = b"".join(body)
    if answer.code != 0 or not body:
        return answer
    document: dict[str, Any] = orjson.loads(body)
    found = document.get(rows.member)
    if isinstance(found, dict):
        document[rows.member] = {
            name: row for name, row in found.items() if may_see(rows.type, name)
        }
    elif isinstance(found, list):
        document[rows.member] = [name for name in found if may_see(rows.type, str(name))]
    return replace(answer, body=orjson.dumps(document))
