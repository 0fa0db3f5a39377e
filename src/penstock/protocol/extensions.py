"""Ext fields of our own, which only Penstock's client sends and only Penstock's broker reads.

RocketMQ's peers ignore ext fields they do not know, so nothing has to be negotiated.
"""

from __future__ import annotations

from typing import Final

from penstock.model.names import Failure

PULL_BYTES: Final = "penstockPullBytes"
"""On a pull: how many bytes of records the asker takes; lifts the caps of 32 and 256 KiB."""

PULL_COUNT: Final = "penstockPullCount"
"""Beside `PULL_BYTES`: how many messages the asker takes, instead of ``maxMsgNums``, which says how
many it asks of a broker that knows neither."""

REASON_FIELDS: Final = {
    "penstockReasonType": Failure.TYPE,
    "penstockReasonMessage": Failure.MESSAGE,
    "penstockReasonHost": Failure.HOST,
    "penstockReasonAttempt": Failure.ATTEMPT,
}
"""On a send-back: why the message failed, and the properties that keep it."""
