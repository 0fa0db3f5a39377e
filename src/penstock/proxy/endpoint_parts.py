"""The parts of the endpoint that handlers use."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from penstock.proxy.backend import Backend
from penstock.proxy.clients import Clients
from penstock.proxy.halves import Halves
from penstock.proxy.renewals import Renewals
from penstock.proxy.wire.messages import Endpoints
from penstock.runtime.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one endpoint; the endpoint owns them."""

    backend: Backend
    clock: Clock
    clients: Clients
    renewals: Renewals
    halves: Halves
    chance: random.Random
    advertised: Callable[[], Endpoints]
    """Where clients reach the endpoint, for those that do not say how they did."""
    in_background: Callable[[Coroutine[Any, Any, None]], None]
    """Runs work that a call does not wait for."""
