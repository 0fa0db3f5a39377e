"""Request and response headers as structs, one module a family; ``codec`` reads and writes them.

A family is loaded when it is first used, also as ``headers.admin``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.protocol.headers import (
        admin,
        auth,
        clients,
        nameserver,
        offsets,
        pop,
        pull,
        routes,
        send,
        transactions,
    )

__all__ = [
    "admin",
    "auth",
    "clients",
    "nameserver",
    "offsets",
    "pop",
    "pull",
    "routes",
    "send",
    "transactions",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
