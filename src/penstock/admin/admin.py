"""Each operator action as one typed coroutine.

It speaks RocketMQ's own requests and no others, so it works on clusters of Apache RocketMQ too.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.admin.brokers import BrokerActions
from penstock.admin.dead_letters import DeadLetterActions


class Admin(DeadLetterActions, BrokerActions):
    """Looks at a cluster and changes it; connects on the first call.

    ``namesrv`` as for all clients; ``timeout`` for one request. `close`, or leaving an ``async
    with`` block, gives the connections back; without it they last as long as the process.
    """

    async def close(self) -> None:
        """Give the connections back; idempotent."""
        lease = self.give_up()
        if lease is not None:
            await lease.release_async()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
