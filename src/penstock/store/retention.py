"""Which log segments are deleted, and when: pure decisions over times and ratios.

Deletion starts at the oldest segment, stops at the first one to keep and never includes the last
one. The progress of consumers does not matter: a slow group loses the deleted messages, as in
RocketMQ. `cleaning` gathers the inputs and carries out the decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.store.config import StoreConfig

HOUR_MS: Final = 3_600_000
MANUAL_ROUNDS: Final = 20

# RocketMQ clamps both ratios, so that a typo cannot fill the disk or empty the store.
_FORCE_RANGE = (0.30, 0.85)
_WARNING_RANGE = (0.35, 0.90)


@dataclass(frozen=True, slots=True)
class DiskRules:
    """Shares of the disk in use, 0 to 1, from which on something happens."""

    clean_at_any_hour: float
    delete_unexpired: float
    refuse_messages: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What one round of cleaning does."""

    delete: int
    """How many of the oldest segments are deleted."""
    is_disk_full: bool
    """Whether messages are refused until there is room again."""
    reason: str


def disk_rules(config: StoreConfig) -> DiskRules:
    """The ratios in force, within RocketMQ's bounds."""
    return DiskRules(
        min(max(config.disk_max_used_space_ratio, 10), 95) / 100,
        min(max(config.disk_space_clean_forcibly_ratio / 100, _FORCE_RANGE[0]), _FORCE_RANGE[1]),
        min(max(config.disk_space_warning_level_ratio / 100, _WARNING_RANGE[0]), _WARNING_RANGE[1]),
    )


def decide(
    config: StoreConfig,
    modified_ms: Sequence[int],
    now_ms: int,
    hour: int,
    used_ratio: float,
    *,
    is_manual: bool = False,
    is_clock_doubtful: bool = False,
) -> Decision:
    """What to delete of segments last modified at ``modified_ms``, oldest first.

    ``is_clock_doubtful``: nothing is deleted for its age.
    """
    rules = disk_rules(config)
    is_full = used_ratio > rules.refuse_messages
    is_tight = used_ratio > rules.clean_at_any_hour
    is_forced = config.clean_file_forcibly_enable and (
        used_ratio > rules.delete_unexpired or is_full
    )
    if is_forced:
        reason = f"disk {used_ratio:.0%} used"
    elif is_clock_doubtful:
        return Decision(0, is_full, "")
    elif is_manual:
        reason = "asked for"
    elif hour in config.delete_hours:
        reason = f"hour {hour:02d}"
    elif is_tight:
        reason = f"disk {used_ratio:.0%} used, expired segments only"
    else:
        return Decision(0, is_full, "")
    kept_ms = config.file_reserved_hours * HOUR_MS
    delete = 0
    for modified in _without_future(modified_ms, now_ms)[:-1]:
        if delete >= config.delete_file_batch_max:
            break
        if not is_forced and modified + kept_ms > now_ms:
            break
        delete += 1
    return Decision(delete, is_full, reason)


def _without_future(modified_ms: Sequence[int], now_ms: int) -> list[int]:
    """The times, where one after ``now_ms`` gives way to the least of the later segments.

    Segments are written one after the other. One that seems to come from the future was written
    before the clock was set back, and not after the segments that follow it.
    """
    found: list[int] = []
    later = now_ms
    for modified in reversed(modified_ms):
        found.append(modified if modified <= now_ms else later)
        # A file that is gone has no time.
        later = min(later, modified or later)
    return found[::-1]
