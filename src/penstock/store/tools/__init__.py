"""Looking at stores without touching them: what is there, whether it is whole, all of it as JSON.

Only `repair` takes the lock and writes. Everything else works on a live store, on a copy, on a
store of Apache RocketMQ's, and on one too damaged to be opened.
"""

from penstock.store.tools.export import Exporter, ExportRange
from penstock.store.tools.locate import FoundStore, find_stores
from penstock.store.tools.repair import Repair, repair
from penstock.store.tools.survey import Survey, survey
from penstock.store.tools.verify import Damage, Verification, verify

__all__ = [
    "Damage",
    "ExportRange",
    "Exporter",
    "FoundStore",
    "Repair",
    "Survey",
    "Verification",
    "find_stores",
    "repair",
    "survey",
    "verify",
]
