"""The mode of a group in a topic: set, listed, kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.stage import Stage, in_virtual_time
from tests.support.wire import json_body

from penstock.protocol.bodies.common import RequestMode
from penstock.protocol.bodies.pop import RequestModes, SetRequestMode
from penstock.protocol.codes import RequestCode

SET = RequestCode.SET_MESSAGE_REQUEST_MODE


@pytest.mark.spec("P73")
@in_virtual_time
async def test_the_mode_of_a_group_survives_a_restart(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await wire.send("T")
        await wire.heartbeat("me@1", consumer="cg", topics=["T"])
        await wire.ok(SET, body=SetRequestMode("T", "cg", RequestMode.POP, 8))
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        answer = await wire.ok(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        modes = json_body(RequestModes, answer).message_request_mode_map
        assert modes == {"T": {"cg": SetRequestMode("T", "cg", RequestMode.POP, 8)}}


@pytest.mark.spec("P73")
@pytest.mark.parametrize(
    ("topic", "group", "code"), [("%RETRY%cg", "cg", 16), ("none", "cg", 17), ("T", "none", 26)]
)
@in_virtual_time
async def test_modes_of_what_does_not_exist_are_refused(
    tmp_path: Path, topic: str, group: str, code: int
) -> None:
    async with Stage(tmp_path) as stage:
        wire = await stage.connect(await stage.broker())
        await wire.send("T")
        await wire.heartbeat("me@1", consumer="cg", topics=["T"])
        ask = SetRequestMode(topic, group, RequestMode.POP)
        assert (await wire.request(SET, body=ask)).code == code
        answer = await wire.ok(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert json_body(RequestModes, answer).message_request_mode_map == {}
