"""The runtime information of the broker under the keys that RocketMQ's tools read."""

from __future__ import annotations

from typing import Final

from penstock.broker.rate_sampler import DayTotals
from penstock.broker.state import BrokerState
from penstock.model.names import TIMER_TOPIC
from penstock.protocol.bodies.common import KvTable
from penstock.protocol.bodies.stats import HaStatus
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import VERSION
from penstock.protocol.versions import version_text
from penstock.remoting.dispatch import Reply, handles

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MAX_DAMAGES: Final = 5
# RocketMQ's requests wait in queues of thread pools. There are none here, but tools divide by the
# capacity.
_QUEUE_CAPACITIES: Final = {
    "send": 10_000,
    "pull": 100_000,
    "litePull": 100_000,
    "query": 20_000,
    "ack": 100_000,
}
_RATES: Final = {
    "putTps": "put",
    "getFoundTps": "found",
    "getMissTps": "missed",
    # 4.9 spells it with one r, and its tool fails without this key.
    "getTransferedTps": "transferred",
    "getTransferredTps": "transferred",
}


@handles(RequestCode.GET_BROKER_RUNTIME_INFO)
def get_runtime_info(broker: BrokerState) -> Reply:
    """Version, rates, totals, sizes."""
    return Reply(
        body=KvTable(
            {
                **_identity(broker),
                **_rates(broker),
                **_totals(broker),
                **_queues(),
                **_store(broker),
                **_damages(broker),
                **_delays(broker),
                **_timers(broker),
            }
        )
    )


def _identity(broker: BrokerState) -> dict[str, str]:
    return {
        "brokerVersionDesc": version_text(VERSION),
        "brokerVersion": str(VERSION),
        "brokerActive": "true",
        "bootTimestamp": str(broker.started_ms),
        "runtime": _age(broker.clock.time_ms() - broker.started_ms),
        "startAcceptSendRequestTimeStamp": "0",
    }


def _rates(broker: BrokerState) -> dict[str, str]:
    rates = {key: broker.rate_sampler.rates(field) for key, field in _RATES.items()}
    rates["getTotalTps"] = [
        found + missed
        for found, missed in zip(rates["getFoundTps"], rates["getMissTps"], strict=True)
    ]
    return {key: " ".join(map(str, values)) for key, values in rates.items()}


def _totals(broker: BrokerState) -> dict[str, str]:
    counts, totals = broker.storage.store.counts, broker.stats.put_total
    return {
        **_day("msgPutTotal", broker.rate_sampler.day_totals("put")),
        **_day("msgGetTotal", broker.rate_sampler.day_totals("get")),
        "putMessageTimesTotal": str(counts.put_count),
        "putMessageSizeTotal": str(counts.put_bytes),
        "putMessageFailedTimes": str(counts.put_refused),
        "putMessageAverageSize": str(totals.size / totals.count if totals.count else 0.0),
        # Not measured: an append is a copy into memory.
        "putMessageEntireTimeMax": "0",
        "getMessageEntireTimeMax": "0",
        "putMessageDistributeTime": "null",
        "putLatency99": "0.00",
        "putLatency999": "0.00",
        "pageCacheLockTimeMills": "0",
    }


def _day(prefix: str, totals: DayTotals) -> dict[str, str]:
    return {
        f"{prefix}TodayNow": str(totals.now),
        f"{prefix}TodayMorning": str(totals.today_morning),
        f"{prefix}YesterdayMorning": str(totals.yesterday_morning),
    }


def _queues() -> dict[str, str]:
    texts = {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "100000"}
    for name, capacity in _QUEUE_CAPACITIES.items():
        texts[f"{name}ThreadPoolQueueSize"] = "0"
        texts[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        texts[f"{name}ThreadPoolQueueCapacity"] = str(capacity)
    return texts


def _damages(broker: BrokerState) -> dict[str, str]:
    """Messages that cannot be read, for our own tools; RocketMQ's show every key they get."""
    damages = broker.storage.store.damages
    return {"penstockStoreDamage": " | ".join(damages[:_MAX_DAMAGES])} if damages else {}


def _store(broker: BrokerState) -> dict[str, str]:
    store = broker.storage.store
    statistics = store.statistics()
    space = store.disk_space()
    ratio = f"{statistics.disk_used_ratio:.2f}"
    return {
        "commitLogMinOffset": str(statistics.min_position),
        "commitLogMaxOffset": str(statistics.max_position),
        "commitLogDiskRatio": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": f"Total : {_size(space.total)}, Free : {_size(space.available)}.",
        "earliestMessageTimeStamp": str(statistics.earliest_timestamp),
        "dispatchBehindBytes": str(statistics.dispatch_behind_bytes),
        "dispatchMaxBuffer": "0",
        "remainHowManyDataToFlush": _size(statistics.max_position - statistics.flushed_position),
        "remainTransientStoreBufferNumbs": str((1 << 31) - 1),
    }


def _delays(broker: BrokerState) -> dict[str, str]:
    """The progress of each delay level, from which exporters compute the waiting messages."""
    return {
        f"scheduleMessageOffset_{level}": f"{position},{end}"
        for level, (position, end) in broker.delay_service.progress().items()
    }


def _timers(broker: BrokerState) -> dict[str, str]:
    timers, end = broker.timers, broker.storage.max_offset(TIMER_TOPIC, 0)
    behind_ms = max(0, broker.clock.time_ms() - timers.read_ms) if timers.pending else 0
    return {
        "timerReadBehind": str(behind_ms // 1000),
        "timerOffsetBehind": str(max(0, end - timers.next_offset)),
        "timerCongestNum": str(timers.pending),
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
    }


def _age(milliseconds: int) -> str:
    seconds = max(0, milliseconds) // 1000
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size(count: int) -> str:
    """A size in a readable unit: ``252.0 GiB``."""
    if count < 1024:
        return f"{count} B"
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{size:.1f} {_UNITS[unit]}"


@handles(RequestCode.GET_BROKER_HA_STATUS)
def get_ha_status(broker: BrokerState) -> Reply:
    """The state of the slaves: none, as nothing is replicated."""
    return Reply(
        body=HaStatus(
            master=not broker.config.is_slave,
            master_commit_log_max_offset=broker.storage.store.max_position,
        )
    )
