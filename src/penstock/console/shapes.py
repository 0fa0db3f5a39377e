"""The answers of the JSON API that are more than rows of `penstock.admin.plain_rows`."""

from __future__ import annotations

from typing import Any, Generic, TypedDict, TypeVar

from penstock.admin.plain_rows import (
    ClientJson,
    DeadLetterJson,
    LagQueueJson,
    MoveJson,
    RightJson,
    TimerJson,
    TopicQueueJson,
    TopicSummaryJson,
    UserJson,
)
from penstock.model.message_json import MessageJson

_T = TypeVar("_T")


class Rows(TypedDict, Generic[_T]):
    """A list that is shown whole."""

    rows: list[_T]


class PageOfRows(TypedDict, Generic[_T]):
    """A part of a long list: page ``page`` of ``pages``."""

    rows: list[_T]
    total: int
    matching: int
    page: int
    pages: int


class Done(TypedDict):
    """A change was made; ``location`` is where to look."""

    location: str


class TopicListJson(TopicSummaryJson):
    """A topic of the list."""

    kind: str
    message_type: str | None


class TopicJson(TypedDict):
    """One topic."""

    topic: str
    kind: str
    message_type: str | None
    permission: str
    queues: list[TopicQueueJson] | None
    groups: list[str] | None
    lag_by_group: dict[str, int]


class GroupListJson(TypedDict):
    """A group of the list; its lag includes retries that are due."""

    group: str
    members: int | None
    topics: list[str]
    lag: int
    retries: int
    in_flight: int
    behind_since_ms: int | None
    dead_letters: int | None


class GroupJson(TypedDict):
    """One group; ``doctor`` is what ``penstock doctor GROUP --json`` says."""

    group: str
    lag: int | None
    retries: int | None
    in_flight: int | None
    dead_letters: int | None
    queues: list[LagQueueJson]
    members: list[ClientJson] | None
    doctor: dict[str, Any] | None


class FindingJson(TypedDict):
    """Something that needs attention."""

    group: str
    cause: str
    severity: str
    what: str


class OverviewJson(TypedDict):
    """The first page."""

    in_per_second: float | None
    out_per_second: float | None
    lag: int | None
    groups_behind: int
    dead_letters: dict[str, int]
    delayed: int | None
    topics: int
    findings: list[FindingJson]
    silent: list[str]


class BrokerPageJson(TypedDict):
    """One broker as it reports itself; secrets are shown as set."""

    broker: str
    addresses: list[str]
    info: dict[str, str] | None
    settings: dict[str, str] | None


class MessagesJson(TypedDict):
    """Messages, newest first, and how far the search got; ``older`` goes on.

    ``cut`` means that there are fewer than were asked for, because their bodies are large.
    """

    rows: list[MessageJson]
    read: int
    total: int
    complete: bool
    cut: bool
    older: str | None


class LifeEventJson(TypedDict):
    """One thing that happened to a message."""

    at_ms: int | None
    kind: str
    text: str
    group: str | None
    reason: str | None
    offset_msg_id: str | None


class MessageLifeJson(TypedDict):
    """A message and its life."""

    message: MessageJson
    life: list[LifeEventJson] | None
    not_known: list[str]


class HandledJson(TypedDict):
    """How a consumer took a message that was handed to it."""

    group: str
    client_id: str
    result: str
    remark: str | None


class ReceiptJson(TypedDict):
    """A message that was sent."""

    msg_id: str
    offset_msg_id: str
    queue: str
    queue_offset: int


class PlanJson(TypedDict):
    """The plan of a reset; ``plan`` is sent back to carry it out."""

    moves: list[MoveJson]
    again: int
    left_out: int
    plan: str | None
    problem: str | None


class StandsJson(TypedDict):
    """Where the queues of a group stand after a reset."""

    stands: dict[str, int]


class LettersJson(TypedDict):
    """Dead letters of a group."""

    group: str
    pending: int
    stored: int
    rows: list[DeadLetterJson]


class RedrivePlanJson(TypedDict):
    """What a redrive would send."""

    group: str
    to: str | None
    letters: int
    stay_pending: int
    sample: list[DeadLetterJson]


class LevelJson(TypedDict):
    """A delay level and what waits in it."""

    level: int
    delay: str
    waiting: int


class DelaysJson(TypedDict):
    """What waits for its time."""

    levels: list[LevelJson]
    timers: list[TimerJson] | None
    waiting_timers: int


class ConnectedJson(ClientJson):
    """A connected client and its group."""

    group: str


class ClientsJson(TypedDict):
    """Everything that is connected."""

    consumers: list[ConnectedJson]
    producers: list[ConnectedJson]


class MemberQueueJson(TypedDict):
    """A queue that a consumer holds."""

    queue: str
    committed: int
    cached: int
    last_pull_ms: int | None
    last_consumed_ms: int | None


class MemberJson(TypedDict):
    """What a consumer reports about itself."""

    group: str
    client_id: str
    properties: dict[str, str]
    queues: list[MemberQueueJson]
    stacks: str | None


class StreamJson(TypedDict):
    """A running Spark stream that commits to a group."""

    group: str
    topics: list[str]
    streams: int
    rate: float | None
    lag: int | None
    last_ms: int | None
    behind_since_ms: int | None


class ArchiveJson(TypedDict):
    """An archive of a topic."""

    directory: str
    topic: str | None
    rows: int | None
    bytes: int | None
    files: int | None
    days: int | None
    from_ms: int | None
    to_ms: int | None
    behind: int | None
    gaps: int | None
    problem: str | None


class SparkJson(TypedDict):
    """Streams and archives."""

    streams: list[StreamJson]
    archives: list[ArchiveJson]


class AccessJson(TypedDict):
    """Users and their rights."""

    users: list[UserJson]
    rights: list[RightJson]


class JobJson(TypedDict):
    """A piece of work that outlasts a request."""

    number: int
    title: str
    state: str
    done: int
    total: int
    began_ms: int
    ended_ms: int | None
    error: str | None


class ResultJson(TypedDict):
    """What became of one message of a job."""

    message: str
    result: str


class JobPageJson(JobJson):
    """A job with what became of each part."""

    results: list[ResultJson]


class SearchJson(TypedDict):
    """What a text may mean; ``location`` leads to a certain hit."""

    location: str | None
    topics: list[str]
    groups: list[str]
    messages: list[MessageJson]
    errors: list[str]
    topics_left: int
    """How many topics were not searched for the key yet; ``after`` goes on with them."""
