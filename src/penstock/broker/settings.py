"""The settings of a running broker.

A request over the network may change the settings that are declared as changeable, and no others:
numbers and switches with a known range. No path, address or command is among them. A change lasts
until the broker stops; a permanent one belongs in the configuration file. No part of the broker
keeps a copy of a changeable setting: it reads the current one, or gets a function that does. What
else a change causes is in `BrokerState.apply_settings`.
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
from penstock.runtime.config import settings, to_mapping
from penstock.store import StoreConfig

log = logging.getLogger(__name__)

# mqadmin exportConfigs of 4.9 fails without any of these.
_FIXED: Final = {
    "filterServerNums": "0",
    "msgTraceTopicName": TRACE_TOPIC,
    "useTLS": "false",
}
_MAX_CHANGES: Final = 100
Listener = Callable[["Settings"], None]


class Settings:
    """The current settings of a broker and its store."""

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
        """Every setting under RocketMQ's key, and the fixed values that only tools ask for."""
        return {**_FIXED, **to_mapping(self.broker), **to_mapping(self.store)}

    def change(self, texts: Mapping[str, str]) -> None:
        """Apply all of ``texts``, or none of them.

        Raises `NoPermission` for a setting that may not be changed while the broker runs, and
        `ConfigError` for an unknown one or an illegal value.
        """
        if len(texts) > _MAX_CHANGES:
            raise ConfigError(f"{len(texts)} settings at once", expected=f"at most {_MAX_CHANGES}")
        for key in texts:
            _check_changeable(key)
        broker = dataclasses.replace(self.broker, **_values(BrokerConfig, texts))
        store = dataclasses.replace(self.store, **_values(StoreConfig, texts))
        if broker == self.broker and store == self.store:
            return
        self.broker, self.store = broker, store
        self.version = self.version.following(self._now_ms())
        for key, text in texts.items():
            log.info("setting changed until the next start key=%s value=%s", key, text[:100])
        for listener in self._listeners:
            listener(self)


_SETTINGS: Final = {item.key: item for item in (*settings(StoreConfig), *settings(BrokerConfig))}
CHANGEABLE: Final = sorted(key for key, item in _SETTINGS.items() if item.is_changeable)


def _check_changeable(key: str) -> None:
    expected = f"one of {', '.join(CHANGEABLE)}"
    if key not in _SETTINGS:
        raise ConfigError(f"unknown setting {key[:100]}", expected=expected)
    if key not in CHANGEABLE:
        raise NoPermission(
            f"setting {key} cannot be changed while the broker runs",
            expected=expected,
            hint="change it in the broker's configuration file and restart",
        )


def _values(cls: type, texts: Mapping[str, str]) -> dict[str, Any]:
    return {item.name: item.parse(texts[item.key]) for item in settings(cls) if item.key in texts}
