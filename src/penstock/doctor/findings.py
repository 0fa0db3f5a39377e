"""What the doctor says: findings, each with evidence and a way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Severity(Enum):
    """How bad it is."""

    CRITICAL = "critical"
    """Messages do not arrive."""
    WARNING = "warning"
    """Messages arrive late, not all of them, or not for long."""
    NOTE = "note"
    """Messages do not arrive yet, as was asked for: nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason why messages do not arrive."""

    cause: str
    """One of `causes.CAUSES`."""
    severity: Severity
    what: str
    """A sentence with names and numbers."""
    evidence: Mapping[str, object] = field(default_factory=dict)
    way_out: tuple[str, ...] = ()
    """What to do; a line that begins with ``penstock`` is a command to run."""

    def as_dict(self) -> dict[str, object]:
        """The same as plain values, for JSON."""
        return {
            "cause": self.cause,
            "severity": self.severity.value,
            "what": self.what,
            "evidence": dict(self.evidence),
            "way_out": list(self.way_out),
        }


def critical(cause: str, what: str, *way_out: str, **evidence: object) -> Finding:
    """A finding that keeps messages from arriving."""
    return Finding(cause, Severity.CRITICAL, what, evidence, way_out)


def warning(cause: str, what: str, *way_out: str, **evidence: object) -> Finding:
    """A finding that makes messages late, or some of them go missing."""
    return Finding(cause, Severity.WARNING, what, evidence, way_out)


def note(cause: str, what: str, *way_out: str, **evidence: object) -> Finding:
    """A finding that explains why messages do not arrive, although nothing is wrong."""
    return Finding(cause, Severity.NOTE, what, evidence, way_out)


def listed(names: list[str], limit: int = 8) -> str:
    """Names for a sentence; beyond ``limit`` only their number."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def plural(count: int, noun: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(milliseconds: float) -> str:
    """A span of time for people: ``12 s``, ``3 min``, ``2.5 h``."""
    seconds = abs(milliseconds) / 1000
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
