"""Every request code that a server serves has a row of needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.auth.need_tables import BROKER, NAME_SERVER
from penstock.broker import Broker, BrokerConfig
from penstock.nameserver import handlers
from penstock.protocol.codes import request_name
from penstock.remoting.dispatch import Dispatcher


@pytest.mark.spec("A49")
async def test_every_code_of_a_broker_has_a_row(tmp_path: Path) -> None:
    async with Broker(BrokerConfig(listen_port=0), tmp_path) as broker:
        codes = broker.codes
    missing = [request_name(code) for code in sorted(codes - BROKER.keys())]
    assert not missing, "add rows to penstock.auth.need_tables.BROKER"


@pytest.mark.spec("A49")
def test_every_code_of_a_name_server_has_a_row() -> None:
    dispatcher = Dispatcher()
    dispatcher.add_module(handlers, None)
    missing = [request_name(code) for code in sorted(dispatcher.codes - NAME_SERVER.keys())]
    assert not missing, "add rows to penstock.auth.need_tables.NAME_SERVER"
