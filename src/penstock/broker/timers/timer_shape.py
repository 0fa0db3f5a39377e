"""The settings that the files of timer messages depend on, and the rule for messages far away."""

from __future__ import annotations

from typing import NamedTuple

from penstock.store.timers.wheel_file import SLOTS


class TimerShape(NamedTuple):
    """The settings that the files depend on."""

    precision_ms: int = 1000
    roll_window_slots: int = 2 * 86_400
    log_segment_bytes: int = 100 << 20
    slots: int = SLOTS

    @property
    def roll_window_ms(self) -> int:
        """Messages further away are parked again later."""
        return self.roll_window_slots * self.precision_ms

    def floor(self, time_ms: int) -> int:
        """The tick at or before a time."""
        return time_ms - time_ms % self.precision_ms

    def roll_slot(self, slot_ms: int, wheel_ms: int) -> int:
        """The slot in which a message waits first; its own unless that is too far away."""
        window = self.roll_window_ms
        left = slot_ms - wheel_ms
        if left < window:
            return slot_ms
        step = window // 2 if left - window < window // 3 else window
        return self.floor(wheel_ms + step)
