"""Timer sends have the same outcome on the fast path as on the plain path."""

from __future__ import annotations

import re
import time

import pytest
from tests.broker.handlers.test_fast_send import (
    PROPERTIES,
    UNIQUE_ID,
    ask,
    enable_fast_path,
    header,
    on_plain_path,
)
from tests.support.asking import all_records
from tests.support.wire import Wire

from penstock.broker import Broker
from penstock.broker.handlers.fast_timers import FastTimers
from penstock.model.names import TIMER_TOPIC
from penstock.model.properties import parse_properties
from penstock.protocol.commands import Command

USUAL = [
    "TIMER_DELIVER_MS\x01<later>\x02",
    "TIMER_DELIVER_MS\x01<later+1>\x02",
    "TIMER_DELIVER_MS\x01<later>",
    "TIMER_DELIVER_MS\x01<later>\x02KEYS\x01k\x02my_TIMER_DELAY_MS\x01x\x02",
    "TIMER_DELAY_MS\x013600000\x02",
    "TIMER_DELAY_SEC\x013600\x02",
]
UNUSUAL = [
    "TIMER_DELAY_SEC\x01soon\x02",
    "TIMER_DELAY_SEC\x01-3\x02",
    "TIMER_DELAY_SEC\x01 30\x02",
    "TIMER_DELAY_SEC\x01\u0663\x02",
    "TIMER_DELAY_SEC\x0199999999999999999999\x02",
    "TIMER_DELAY_SEC\x019999999999\x02",
    "TIMER_DELAY_SEC\x010\x02",
    "TIMER_DELAY_SEC\x01\x02",
    "TIMER_DELIVER_MS\x011\x02",
    "TIMER_DELIVER_MS\x01<later>\x02DELAY\x013\x02",
    "TIMER_DELIVER_MS\x01<later>\x02TIMER_DELAY_SEC\x0130\x02",
    "TIMER_DELIVER_MS\x01<later>\x02TIMER_DELIVER_MS\x01<later>9\x02",
    "TIMER_DELIVER_MS\x01<later>\x02TRAN_MSG\x01true\x02",
    "TIMER_DELIVER_MS\x01<later>\x02WAIT\x01false\x02",
    "TIMER_DELIVER_MS\x01<later>\x02TIMER_OUT_MS\x01<later>\x02",
    "TIMER_DELIVER_MS\x01<later>\x02REAL_TOPIC\x01other\x02",
    "TIMER_DELIVER_MS\x01<later>\x02TIMER_DEL_UNIQKEY\x01U\x02",
    "TIMER_DELIVER_MS\x01<later>\x02MSG_REGION\x01elsewhere\x02",
    "TIMER_DELIVER_MS\x01<later>\x02a\x01\u00fc\x02",
    "TIMER_DELIVER_MS\x01<later>\x02no value\x02",
    "TIMER_DELIVER_MS\x01<later>\x02a\x01\x02",
    "TIMER_DELIVER_MS\x01<later>\x02a\x01b\x01c\x02d\x02",
    "TIMER_DELIVER_MS\x01<later>\x02a\x01b\x01c\x02\x02",
    "TIMER_DELIVER_MS\x01<later>\x02a\x011\x02b\x01x\x02a\x012\x02",
    "TIMER_DELIVER_MS\x01<later>\x02a\x01<32500>\x02",
    "TIMER_DELIVER_MS\x01<later>\x02a\x01<32700>\x02",
]


def properties(text: str) -> str:
    """The properties of a row: its times are in two hours, and its numbers of characters many."""
    later = (int(time.time()) + 7200) * 1000
    text = text.replace("<later>", f"{later}").replace("<later+1>", f"{later + 1}")
    return PROPERTIES + re.sub(r"<(\d+)>", lambda found: "x" * int(found[1]), text)


def said(answer: Command | None) -> object:
    assert answer is not None
    ext = {key: value for key, value in (answer.ext or {}).items() if key not in ("msgId",)}
    ext.pop("queueOffset", None)
    return answer.code, answer.flag, answer.remark, ext


@pytest.mark.parametrize("text", [*USUAL, *UNUSUAL])
async def test_a_timer_has_the_same_outcome_on_either_path(
    broker: Broker, wire: Wire, text: str
) -> None:
    await enable_fast_path(broker, wire)
    head = header(i=properties(text), e="0")
    outcomes: list[object] = []
    for way in (head, on_plain_path(head), head):
        outcomes.append(said(await ask(broker, way, b"body")))
    parked = [parse_properties(one.properties) for one in await all_records(wire, TIMER_TOPIC, 0)]
    if outcomes[0] == outcomes[2]:  # Else the next tick of the precision came in between.
        assert outcomes[1] == outcomes[0]
    for one in parked:
        # A delay counts from the arrival, and the three arrived at different times.
        late_by = int(one["TIMER_OUT_MS"]) - int(parked[0]["TIMER_OUT_MS"])
        assert 0 <= late_by <= 10_000
        if "DELIVER" in text:
            assert late_by == 0
        assert {**one, "TIMER_OUT_MS": ""} == {**parked[0], "TIMER_OUT_MS": ""}
    assert len(parked) in (0, 3)
    assert broker.state.stats.puts_of("T").count in (1, 4)


@pytest.mark.parametrize("text", USUAL)
async def test_usual_timers_take_the_fast_path(broker: Broker, text: str) -> None:
    parked = FastTimers(broker.state).park(properties(text), "T", 3)
    assert parked is not None
    assert parked.unique_id == UNIQUE_ID


@pytest.mark.parametrize("text", UNUSUAL)
async def test_unusual_timers_are_left_to_the_plain_path(broker: Broker, text: str) -> None:
    assert FastTimers(broker.state).park(properties(text), "T", 3) is None


async def test_a_parked_message_of_the_fast_path_is_delivered(broker: Broker, wire: Wire) -> None:
    await enable_fast_path(broker, wire)
    due_ms = (int(time.time()) + 2) * 1000
    await ask(broker, header(i=f"{PROPERTIES}TIMER_DELIVER_MS\x01{due_ms}\x02"), b"later")
    while len(records := await all_records(wire, "T", 0)) < 2:
        assert broker.state.timers.pending <= 1
    assert records[1].body == b"later"
    assert records[1].store_timestamp >= due_ms


@pytest.mark.parametrize("setting", ["timerWheelEnable", "timerCongestNumEachSlot"])
async def test_settings_of_timers_are_left_to_the_plain_path(broker: Broker, setting: str) -> None:
    fast = FastTimers(broker.state)
    assert fast.park(properties(USUAL[0]), "T", 0) is not None
    value = "false" if setting == "timerWheelEnable" else "5"
    broker.state.settings.change({setting: value})
    assert fast.park(properties(USUAL[0]), "T", 0) is None
