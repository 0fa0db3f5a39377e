"""Handlers by request code."""

from __future__ import annotations

import pytest

from penstock.errors import LifecycleError
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.remoting import Peer
from penstock.remoting.dispatch import Dispatcher


def _answer(peer: Peer, command: Command) -> Command:
    return Command(0)


def test_a_code_with_two_handlers_is_refused() -> None:
    dispatcher = Dispatcher()
    dispatcher.add_raw(RequestCode.HEART_BEAT, _answer)
    with pytest.raises(LifecycleError, match="HEART_BEAT has two handlers"):
        dispatcher.add_raw(RequestCode.HEART_BEAT, _answer)
