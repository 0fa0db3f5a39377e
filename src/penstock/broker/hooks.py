"""Hooks for programs that embed a broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

log = logging.getLogger(__name__)


class SentBack(NamedTuple):
    """A message that a consumer has sent back."""

    group: str
    topic: str
    is_success: bool
    is_dead: bool


SendBackHook = Callable[[SentBack], None]


def call_hooks(hooks: Iterable[SendBackHook], event: SentBack) -> None:
    """Call every hook; a failing one is logged and has no effect."""
    for hook in hooks:
        try:
            hook(event)
        except Exception:
            log.exception("send-back hook failed group=%s topic=%s", event.group, event.topic)
