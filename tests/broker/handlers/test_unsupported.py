"""What the broker does not do is refused in words, and written down."""

from __future__ import annotations

import pytest
from tests.support.paths import ROOT
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.broker.handlers.unsupported import UNSUPPORTED, limits_table
from penstock.model.properties import encode_properties
from penstock.protocol.codes import REQUEST_NAMES, RequestCode
from penstock.protocol.records.batches import BatchItem, encode_batch

LIMITS_PAGE = ROOT / "docs" / "limits.md"
REFUSED = [(limit, code) for limit in UNSUPPORTED for code in limit.codes]


@pytest.mark.parametrize(
    ("feature", "instead", "code"),
    [(limit.feature, limit.instead, code) for limit, code in REFUSED],
    ids=[REQUEST_NAMES[code] for _, code in REFUSED],
)
async def test_it_is_refused_with_the_way_out(
    wire: Wire, feature: str, instead: str, code: int
) -> None:
    answer = await wire.request(code, {"topic": "T"}, b"{}")
    assert answer.code == 3
    assert answer.remark is not None
    assert REQUEST_NAMES[code] in answer.remark
    assert feature in answer.remark
    assert instead in answer.remark


def test_the_page_about_limits_has_the_same_table() -> None:
    assert limits_table() in LIMITS_PAGE.read_text()


def test_nothing_is_listed_twice() -> None:
    codes = [code for _, code in REFUSED]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(
    "properties",
    [{"DELAY": "3"}, {"TIMER_DELAY_SEC": "60"}, {"TIMER_DELIVER_MS": "1"}, {"TRAN_MSG": "true"}],
)
async def test_a_batch_may_hold_nothing_that_is_not_for_now(
    broker: Broker, wire: Wire, properties: dict[str, str]
) -> None:
    items = [
        BatchItem(b"plain"),
        BatchItem(b"special", encode_properties(properties)),
    ]
    answer = await wire.send(
        "T", encode_batch(items), code=RequestCode.SEND_BATCH_MESSAGE, batch=True
    )
    assert answer.code == 13
    assert broker.state.storage.max_offset("T", 0) == 0


async def test_an_unknown_code_is_refused_word_for_word(wire: Wire) -> None:
    answer = await wire.request(9999)
    assert (answer.code, answer.remark) == (3, " request type 9999 not supported")


async def test_an_unknown_code_is_logged_once(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        await wire.request(9999)
    lines = [r.getMessage() for r in caplog.records if "code=9999" in r.getMessage()]
    assert len(lines) == 1


async def test_an_unknown_oneway_request_is_dropped_in_silence(wire: Wire) -> None:
    wire.oneway(9999)
    wire.oneway(RequestCode.POP_LITE_MESSAGE)
    assert (await wire.request(RequestCode.GET_ALL_DELAY_OFFSET)).code == 0
    assert wire.requests == []
