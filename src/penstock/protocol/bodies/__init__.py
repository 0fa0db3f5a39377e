"""Structured bodies: one dataclass each, by family, with one codec for all.

A family is loaded when it is first used, also as ``bodies.stats``: to make the classes of all
families takes longer than most commands of the command line run.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.protocol.bodies import (
        auth,
        clients,
        codec,
        common,
        config_text,
        groups,
        offsets,
        pop,
        registration,
        routes,
        running,
        stats,
        timers,
        topics,
    )

__all__ = [
    "auth",
    "clients",
    "codec",
    "common",
    "config_text",
    "groups",
    "offsets",
    "pop",
    "registration",
    "routes",
    "running",
    "stats",
    "timers",
    "topics",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
