from __future__ import annotations

import asyncio
import sys

import uvloop

from penstock.remoting.loop import SWITCH_SECONDS, new_event_loop, run


def test_the_process_runs_on_uvloop_where_there_is_one() -> None:
    async def which() -> type:
        return type(asyncio.get_running_loop())

    assert run(which()) is uvloop.Loop
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, uvloop.Loop)


def test_threads_of_the_process_let_the_loop_run_soon() -> None:
    async def interval() -> float:
        return sys.getswitchinterval()

    before = sys.getswitchinterval()
    assert run(interval()) == SWITCH_SECONDS < before
    assert sys.getswitchinterval() == before
