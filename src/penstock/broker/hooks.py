"""What an embedding program may ask to be told of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

log = logging.getLogger(__name__)


class SentBack(NamedTuple):
    """A message that a consumer could not handle."""

    group: str
    topic: str
    is_success: bool
    is_dead: bool


SendBackHook = Callable[[SentBack], None]


def call_hooks(hooks: Iterable[SendBackHook], event: SentBack) -> None:
    """Tell every hook; one that fails changes nothing."""
    for hook in hooks:
        try:
            hook(event)
        except Exception:
            log.exception("send-back hook failed group=%s topic=%s", event.group, event.topic)
