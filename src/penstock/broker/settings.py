"""The settings of a running broker, and which of them may be changed while it runs.

A request over the network may change what is listed here and nothing else: numbers and switches
whose type and range are known. No path, no address, no command is among them. A change lasts until
the broker stops; what is to last longer belongs into its configuration file.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.broker.config import BrokerConfig
from penstock.errors import ConfigError, NoPermission
from penstock.model.names import TRACE_TOPIC
from penstock.protocol.bodies.common import DataVersion
from penstock.runtime.config import Setting, settings, to_mapping
from penstock.store import StoreConfig

log = logging.getLogger(__name__)

_SWITCH: Final = None
_DAY_MS: Final = 86_400_000

CHANGEABLE: Final[Mapping[str, tuple[int, int] | None]] = {
    "brokerPermission": (0, 7),
    "autoCreateTopicEnable": _SWITCH,
    "autoCreateSubscriptionGroup": _SWITCH,
    "enablePropertyFilter": _SWITCH,
    "litePullMessageEnable": _SWITCH,
    "slaveReadEnable": _SWITCH,
    "longPollingEnable": _SWITCH,
    "shortPollingTimeMills": (0, _DAY_MS),
    "notifyConsumerIdsChangedEnable": _SWITCH,
    "useServerSideResetOffset": _SWITCH,
    "storeReplyMessageEnable": _SWITCH,
    "deadLetterTopicPerm": (0, 7),
    "sendBackChecksOriginTopic": _SWITCH,
    "penstockMaxPullBytes": (1, 1 << 30),
}
"""Of the broker's own settings: numbers with their range, and switches."""

CHANGEABLE_STORE: Final[Mapping[str, tuple[int, int] | None]] = {
    "fileReservedTime": (0, 1_000_000),
    "deleteWhen": None,  # hours; the store's own check knows them
    "diskMaxUsedSpaceRatio": (0, 100),
    "diskSpaceCleanForciblyRatio": (0, 100),
    "diskSpaceWarningLevelRatio": (0, 100),
    "cleanFileForciblyEnable": _SWITCH,
    "deleteFileBatchMax": (1, 1_000),
}
"""Of the store's settings: what is kept, and for how long."""

# mqadmin exportConfigs of 4.9 dies without any of these.
_FIXED: Final = {
    "filterServerNums": "0",
    "msgTraceTopicName": TRACE_TOPIC,
    "useTLS": "false",
}
_MAX_CHANGES: Final = 100
Listener = Callable[["Settings"], None]


class Settings:
    """What the broker runs with at the moment."""

    __slots__ = ("_listeners", "_now_ms", "broker", "store", "version")

    def __init__(
        self, broker: BrokerConfig, store: StoreConfig, *, now_ms: Callable[[], int]
    ) -> None:
        self.broker = broker
        self.store = store
        self.version = DataVersion(0, now_ms(), 0)
        self._now_ms = now_ms
        self._listeners: list[Listener] = []

    def on_change(self, listener: Listener) -> None:
        """Call ``listener`` after each change."""
        self._listeners.append(listener)

    def texts(self) -> dict[str, str]:
        """Every setting under RocketMQ's key, and what is fixed here where tools ask for it."""
        return {**_FIXED, **to_mapping(self.broker), **to_mapping(self.store)}

    def change(self, texts: Mapping[str, str]) -> None:
        """Take over all of ``texts``, or none of them.

        Raises `NoPermission` for a setting that exists and is not to be changed this way, and
        `ConfigError` for one that does not, or for a value it cannot have.
        """
        if len(texts) > _MAX_CHANGES:
            raise ConfigError(f"{len(texts)} settings at once", expected=f"at most {_MAX_CHANGES}")
        broker_items = {item.key: item for item in settings(BrokerConfig)}
        store_items = {item.key: item for item in settings(StoreConfig)}
        broker_changes: dict[str, Any] = {}
        store_changes: dict[str, Any] = {}
        for key, text in texts.items():
            if key in CHANGEABLE:
                _put(broker_changes, broker_items[key], text, CHANGEABLE[key])
            elif key in CHANGEABLE_STORE:
                _put(store_changes, store_items[key], text, CHANGEABLE_STORE[key])
            else:
                raise _refusal(key, known=key in broker_items or key in store_items)
        broker = dataclasses.replace(self.broker, **broker_changes)
        store = dataclasses.replace(self.store, **store_changes)
        if broker == self.broker and store == self.store:
            return
        self.broker, self.store = broker, store
        self.version = self.version.following(self._now_ms())
        for key, text in texts.items():
            log.info("setting changed until the next start key=%s value=%s", key, text[:100])
        for listener in self._listeners:
            listener(self)


def _put(changes: dict[str, Any], item: Setting, text: str, bounds: tuple[int, int] | None) -> None:
    value = item.parse(text)
    if bounds is not None and not bounds[0] <= value <= bounds[1]:
        raise ConfigError(f"{item.key} is {text[:100]}", expected=f"{bounds[0]} to {bounds[1]}")
    changes[item.name] = value


def _refusal(key: str, *, known: bool) -> ConfigError | NoPermission:
    allowed = ", ".join(sorted({**CHANGEABLE, **CHANGEABLE_STORE}))
    if not known:
        return ConfigError(f"unknown setting {key[:100]}", expected=f"one of {allowed}")
    return NoPermission(
        f"setting {key} cannot be changed while the broker runs",
        expected=f"one of {allowed}",
        hint="change it in the broker's configuration file and restart",
    )
