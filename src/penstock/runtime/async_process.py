"""Ending a child process of an event loop."""

from __future__ import annotations

import asyncio
import contextlib


async def end_process(process: asyncio.subprocess.Process, seconds: float) -> None:
    """Terminate a process that runs, and kill it if it is there ``seconds`` later."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
