"""Each operator action as one typed coroutine.

It uses only requests that RocketMQ defines, so it also works with clusters of Apache RocketMQ. The
actions are in the modules `topics`, `groups`, `offsets`, `resets`, `messages`, `dead_letters`,
`tables`, `message_life`, `transactions`, `timers`, `brokers` and `access`; `blocking` has a line
for each.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.admin.access import AccessActions
from penstock.admin.brokers import BrokerActions
from penstock.admin.message_life import LifeActions
from penstock.admin.resets import ResetActions
from penstock.admin.timers import TimerActions
from penstock.admin.transactions import TransactionActions


class Admin(
    LifeActions, ResetActions, TransactionActions, TimerActions, BrokerActions, AccessActions
):
    """Inspects and changes a cluster; connects on the first call.

    ``namesrv`` as for all clients; ``timeout`` for one request. `close`, or leaving an ``async
    with`` block, releases the connections; otherwise they last as long as the process.
    """

    async def close(self) -> None:
        """Release the connections; idempotent."""
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
