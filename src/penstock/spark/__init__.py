"""The data pipeline on Spark: source, sink, handlers on executors, archive, replay and repair.

Names are imported when they are first used: ``penstock.spark.register`` does not load the reports.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.spark.consuming import consume as consume
    from penstock.spark.deduplication import deduplicate as deduplicate
    from penstock.spark.registration import register as register
    from penstock.spark.tuned_session import session as session

_HOMES: Final = {
    "consume": "penstock.spark.consuming",
    "deduplicate": "penstock.spark.deduplication",
    "register": "penstock.spark.registration",
    "session": "penstock.spark.tuned_session",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
