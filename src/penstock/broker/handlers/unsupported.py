"""Requests that this broker does not support, and what to use instead.

A request that is listed here is refused with a hint, never accepted and served wrongly.
``docs/limits.md`` has the same table; a test compares them.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

from penstock.errors import RequestCodeNotSupported
from penstock.protocol.codes import RequestCode, request_name
from penstock.protocol.commands import Command
from penstock.remoting import Peer
from penstock.remoting.dispatch import Dispatcher


class Limit(NamedTuple):
    """A family of requests that is refused."""

    feature: str
    codes: tuple[int, ...]
    instead: str


UNSUPPORTED: Final = (
    Limit(
        "timer messages in RocksDB",
        (RequestCode.SWITCH_TIMER_ENGINE,),
        "they are in the files of the timer wheel, which need no setting",
    ),
    Limit(
        "lite topics",
        (
            RequestCode.POP_LITE_MESSAGE,
            RequestCode.LITE_SUBSCRIPTION_CTL,
            RequestCode.ACK_LITE_MESSAGE,
            RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
        ),
        "use ordinary topics",
    ),
    Limit(
        "static topics",
        (RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,),
        "create the topic on each broker",
    ),
    Limit(
        "access rules of 4.x (plain_acl.yml)",
        (
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
            RequestCode.DELETE_ACL_CONFIG,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        ),
        "manage users and rights with penstock user and penstock acl",
    ),
    Limit(
        "forbidding a group single topics",
        (RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,),
        "disable the whole group with consumeEnable=false",
    ),
    Limit(
        "flow control and read-ahead modes for cold data",
        (
            RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
            RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
            RequestCode.SET_COMMITLOG_READ_MODE,
        ),
        "bound what one pull returns with penstockMaxPullBytes",
    ),
    Limit(
        "queues and tables in RocksDB",
        (
            RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
            RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        ),
        "read the tables with exportMetadata; they are JSON files here",
    ),
    Limit(
        "an agreed flush offset of a master and its slaves",
        (RequestCode.RESET_MASTER_FLUSH_OFFSET,),
        "look at a broker's flushed position in its runtime information",
    ),
    Limit(
        "requests that no client in use sends",
        (
            RequestCode.QUERY_BROKER_OFFSET,
            RequestCode.WHO_CONSUME_THE_MESSAGE,
            RequestCode.GET_CLIENT_CONFIG,
        ),
        "ask for topics, groups and offsets by the requests that are in use",
    ),
)


def add_refusals(dispatcher: Dispatcher) -> None:
    """Refuse everything that is listed here."""
    for limit in UNSUPPORTED:
        for code in limit.codes:
            dispatcher.add_raw(code, functools.partial(_refuse, limit))


def _refuse(limit: Limit, peer: Peer, command: Command) -> Command:
    raise RequestCodeNotSupported(
        f"{request_name(command.code)}: this broker does not support {limit.feature} yet",
        hint=limit.instead,
    )


def limits_table() -> str:
    """The table of ``docs/limits.md``."""
    rows = ["| Not supported | Requests | Instead |", "|---|---|---|"]
    for limit in UNSUPPORTED:
        codes = ", ".join(f"`{request_name(code)}` ({code})" for code in limit.codes)
        rows.append(f"| {limit.feature} | {codes} | {limit.instead} |")
    return "\n".join(rows) + "\n"
