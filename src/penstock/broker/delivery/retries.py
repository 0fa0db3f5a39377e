"""Rules for messages that a consumer could not process.

The decisions of CONSUMER_SEND_MSG_BACK and of sends to a retry topic; handlers act on them.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.model.names import RETRY_PREFIX, dead_letter_topic, retry_topic

# Level 3 (ten seconds) is the first delay of the default plan; each failure adds one level.
FIRST_RETRY_LEVEL = 3
DEAD_LETTER_QUEUE = 0
# Older clients do not know maxReconsumeTimes; a number in that field has no meaning.
FIRST_VERSION_WITH_MAX_TIMES = 121


class NextAttempt(NamedTuple):
    """The topic of the next attempt; ``delay_level`` 0 means at once."""

    topic: str
    delay_level: int
    is_dead: bool


def max_reconsume_times(asked: int | None, version: int, group_limit: int) -> int:
    """How often a message may be retried: as the client says, else as its group is configured."""
    if asked is not None and version >= FIRST_VERSION_WITH_MAX_TIMES:
        return asked
    return group_limit


def after_send_back(
    group: str, reconsume_times: int, delay_level: int, max_times: int
) -> NextAttempt:
    """Where a message goes after a send-back.

    ``delay_level`` below 0 means a dead letter at once, 0 that the broker chooses, above 0 is
    the level that the client chose.
    """
    if reconsume_times >= max_times or delay_level < 0:
        return NextAttempt(dead_letter_topic(group), 0, is_dead=True)
    level = delay_level or FIRST_RETRY_LEVEL + reconsume_times
    return NextAttempt(retry_topic(group), level, is_dead=False)


def group_of_retry_topic(topic: str) -> str | None:
    """The group whose retry topic this is; None for any other topic."""
    return topic[len(RETRY_PREFIX) :] if topic.startswith(RETRY_PREFIX) else None


def is_dead_on_send(reconsume_times: int, max_times: int, *, group_is_orderly: bool) -> bool:
    """Whether a message sent to a retry topic becomes a dead letter.

    An orderly group sends only dead letters there; it does not consume its retry topic.
    """
    return group_is_orderly or reconsume_times > max_times
