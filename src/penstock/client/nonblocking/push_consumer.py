"""`PushConsumer` for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import (
    Iterator,
)
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Unpack,
    overload,
)

from penstock.client.arguments import Time
from penstock.client.facades.push_consumer import Handled, PushConsumerFacade, PushConsumerKeywords
from penstock.client.facades.values import seek_to
from penstock.client.nonblocking.entered import Entered, soon
from penstock.client.observing.consumer_stats import ConsumerStats, consumer_stats
from penstock.client.session.session_registry import Lease
from penstock.model import MessageQueue, StoredMessage
from penstock.runtime.durations import Duration, seconds

log = logging.getLogger(__name__)


class PushConsumer(Entered, PushConsumerFacade[Handled]):
    """Calls handlers with the messages of its topics; keywords as in `penstock.PushConsumer`."""

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: PushConsumer[StoredMessage],
            group: str,
            *,
            batch_size: Literal[1] = 1,
            **keywords: Unpack[PushConsumerKeywords],
        ) -> None: ...

        @overload
        def __init__(
            self: PushConsumer[list[StoredMessage]],
            group: str,
            *,
            batch_size: int,
            **keywords: Unpack[PushConsumerKeywords],
        ) -> None: ...

        def __init__(self, group: str, **keywords: Any) -> None: ...

    _stopping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Join the group and begin to consume; coroutine handlers run on this loop."""
        lease = self._open()
        loop = asyncio.get_running_loop()
        self._stop_asked = asyncio.Event()
        try:
            await lease.host.await_(self._start(lease, loop))
        except BaseException:
            self._close()
            await lease.release_async()
            raise

    async def _start(self, lease: Lease, loop: asyncio.AbstractEventLoop) -> None:
        self._core = self._make_core(lease, lambda: loop)
        await self._core.start()

    async def run(self) -> None:
        """Consume until cancelled, SIGTERM or `stop`; then finish what runs and leave.

        It returns when everything is committed and the group left.
        """
        await self.start()
        try:
            with _sigterm_sets(self._stop_asked):
                await self._stop_asked.wait()
        finally:
            await self.stop()

    async def stop(self, timeout: Duration = 30) -> None:  # noqa: ASYNC109  how long to drain
        """Take no new work, wait for running handlers, commit, leave; idempotent.

        Cancelling it skips the wait. A second call waits for the first. Called by a handler of
        this consumer it only begins the stop and returns at once: the handler is among what is
        waited for, and its message is committed.
        """
        lease = self._close()
        if lease is not None:
            self._stopping = asyncio.ensure_future(self._stop_now(lease, seconds(timeout)))
            self._stop_asked.set()
        stopping = self._stopping
        if stopping is None or self._core.is_calling:
            return
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            stopping.cancel()
            await asyncio.wait([stopping])
            raise

    async def _stop_now(self, lease: Lease, timeout: float) -> None:  # noqa: ASYNC109
        leaving = asyncio.ensure_future(lease.host.await_(self._core.stop(timeout)))
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError:
            lease.host.call_soon(self._core.hurry)
            await leaving
            raise
        finally:
            await lease.release_async()

    async def pause(self) -> None:
        """Pull nothing more until `resume`; what is cached is still consumed."""
        await self._host.await_(soon(self._core.pause))

    async def resume(self) -> None:
        """Pull again."""
        await self._host.await_(self._core.resume())

    async def seek(self, queue: MessageQueue, offset_or_time: int | Time) -> None:
        """Go on at another place of a queue that is held: an offset, or a datetime or its text."""
        await self._host.await_(seek_to(self._core, queue, offset_or_time))

    async def assignment(self) -> set[MessageQueue]:
        """The queues of the subscribed topics that this consumer holds now."""
        return await self._host.await_(soon(self._core.assignment))

    async def stats(self) -> ConsumerStats:
        """Rates, counts and where each queue stands."""
        return await self._host.await_(soon(consumer_stats, self._core))


@contextlib.contextmanager
def _sigterm_sets(event: asyncio.Event) -> Iterator[None]:
    """Let SIGTERM end a `run`, where the loop can handle signals and the program does not."""
    loop = asyncio.get_running_loop()
    is_handled = False
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # Loops of other threads, and of other systems than Unix, have no signals.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(signal.SIGTERM, event.set)
            is_handled = True
    try:
        yield
    finally:
        if is_handled:
            loop.remove_signal_handler(signal.SIGTERM)
