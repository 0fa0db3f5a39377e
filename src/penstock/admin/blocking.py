"""`Admin` for ordinary, blocking Python: each method runs the coroutine of the same name.

A new action is written once, as a coroutine, and gets one line here, which keeps its signature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from penstock.admin import admin
from penstock.client.arguments import AccessOptions
from penstock.runtime.durations import Duration

_P = ParamSpec("_P")
_T = TypeVar("_T")


def blocking(
    action: Callable[Concatenate[admin.Admin, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Admin, _P], _T]:
    """The blocking method for a coroutine of `penstock.admin.admin.Admin`."""

    @functools.wraps(action)
    def method(self: Admin, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._run(action(self._actions, *args, **kwargs))

    return method


class Admin:
    """Inspects and changes a cluster; connects on the first call.

    ``namesrv`` as for all clients; ``timeout`` is for one request. `close`, or leaving a ``with``
    block, releases the connections; otherwise they last as long as the process.
    """

    def __init__(
        self,
        *,
        namesrv: str | Iterable[str] | None = None,
        timeout: Duration = 5,
        **options: Unpack[AccessOptions],
    ) -> None:
        self._actions = admin.Admin(namesrv=namesrv, timeout=timeout, **options)

    def _run(self, action: Coroutine[Any, Any, _T]) -> _T:
        try:
            host = self._actions.host
        except BaseException:
            action.close()
            raise
        return host.run(action)

    def close(self) -> None:
        """Release the connections; idempotent."""
        lease = self._actions.give_up()
        if lease is not None:
            lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Topics
    topics = blocking(admin.Admin.topics)
    create_topic = blocking(admin.Admin.create_topic)
    delete_topic = blocking(admin.Admin.delete_topic)
    route = blocking(admin.Admin.route)
    topic_config = blocking(admin.Admin.topic_config)
    message_types = blocking(admin.Admin.message_types)
    topic_stats = blocking(admin.Admin.topic_stats)
    topic_groups = blocking(admin.Admin.topic_groups)
    topic_table = blocking(admin.Admin.topic_table)

    # Groups
    groups = blocking(admin.Admin.groups)
    group_config = blocking(admin.Admin.group_config)
    create_group = blocking(admin.Admin.create_group)
    delete_group = blocking(admin.Admin.delete_group)
    group_modes = blocking(admin.Admin.group_modes)
    set_group_mode = blocking(admin.Admin.set_group_mode)
    connections = blocking(admin.Admin.connections)
    clients = blocking(admin.Admin.clients)
    members = blocking(admin.Admin.members)
    subscriptions = blocking(admin.Admin.subscriptions)
    producers = blocking(admin.Admin.producers)
    all_producers = blocking(admin.Admin.all_producers)
    streams = blocking(admin.Admin.streams)
    running_info = blocking(admin.Admin.running_info)

    # Offsets
    group_lag = blocking(admin.Admin.group_lag)
    offsets_at = blocking(admin.Admin.offsets_at)
    lag_table = blocking(admin.Admin.lag_table)
    plan_reset = blocking(admin.Admin.plan_reset)
    reset_offsets = blocking(admin.Admin.reset_offsets)

    # Messages
    message = blocking(admin.Admin.message)
    query = blocking(admin.Admin.query)
    messages = blocking(admin.Admin.messages)
    consume_directly = blocking(admin.Admin.consume_directly)
    message_life = blocking(admin.Admin.message_life)

    # Dead letters
    dead_letter_groups = blocking(admin.Admin.dead_letter_groups)
    dead_letter_queues = blocking(admin.Admin.dead_letter_queues)
    dead_letters = blocking(admin.Admin.dead_letters)
    redriven = blocking(admin.Admin.redriven)
    redrive = blocking(admin.Admin.redrive)
    settle_dead_letters = blocking(admin.Admin.settle_dead_letters)
    delete_dead_letters = blocking(admin.Admin.delete_dead_letters)

    # Transactions
    transactions = blocking(admin.Admin.transactions)
    transactions_at = blocking(admin.Admin.transactions_at)
    resume_transaction = blocking(admin.Admin.resume_transaction)
    timers = blocking(admin.Admin.timers)
    recall_timer = blocking(admin.Admin.recall_timer)

    # Brokers
    cluster = blocking(admin.Admin.cluster)
    broker_info = blocking(admin.Admin.broker_info)
    broker_config = blocking(admin.Admin.broker_config)
    update_broker_config = blocking(admin.Admin.update_broker_config)

    # Users and rights
    users = blocking(admin.Admin.users)
    create_user = blocking(admin.Admin.create_user)
    update_user = blocking(admin.Admin.update_user)
    delete_user = blocking(admin.Admin.delete_user)
    rights = blocking(admin.Admin.rights)
    grant = blocking(admin.Admin.grant)
    revoke = blocking(admin.Admin.revoke)
