"""The consumer groups of a broker: the table that is saved in ``config/subscriptionGroup.json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from penstock.errors import GroupNotFound, IllegalName, RequestRefused
from penstock.model.names import READ, SYSTEM_GROUP_PREFIX
from penstock.protocol.bodies.codec import decode_body, encode_state
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from penstock.protocol.validation import check_group

_BROADCAST_TOO = ("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY")
PREDEFINED = (*_BROADCAST_TOO, "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_ONSAPI_PULL")

GROUPS_FILE = "subscriptionGroup.json"
MAX_GROUPS = 16_384
"""Bounds memory: a client creates a group, with topics, by naming it."""


class Groups:
    """All consumer groups of one broker."""

    def __init__(
        self,
        *,
        auto_create: Callable[[], bool],
        now_ms: Callable[[], int],
        changed: Callable[[str], None] = lambda group: None,
    ) -> None:
        self._auto_create = auto_create
        """Whether an unknown group is created on first use."""
        self._now_ms = now_ms
        self._changed = changed
        self._table: dict[str, SubscriptionGroupConfig] = {}
        self.forbidden: dict[str, dict[str, int]] = {}
        """By group and topic: the permissions that are denied."""
        self._version = DataVersion(0, now_ms(), 0)
        self._add_predefined()

    # Reading

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """A group, if it is known."""
        return self._table.get(group)

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """A group, created on first use if that is allowed and the name is legal."""
        config = self._find_or_make(group)
        if config is not None and group not in self._table:
            self.put(config)
        return config

    def require(self, group: str) -> SubscriptionGroupConfig:
        """A group, created on first use if that is allowed; else `GroupNotFound`."""
        config = self.find_or_create(group)
        if config is None:
            raise _not_found(group)
        return config

    def foresee(self, group: str) -> SubscriptionGroupConfig:
        """A group as its first use would find it; nothing is created. Raises `GroupNotFound`."""
        config = self._find_or_make(group)
        if config is None:
            raise _not_found(group)
        return config

    def _find_or_make(self, group: str) -> SubscriptionGroupConfig | None:
        """A group of the table, or the one that may be put there."""
        config = self._table.get(group)
        if config is None and (self._auto_create() or group.startswith(SYSTEM_GROUP_PREFIX)):
            try:
                check_group(group)
            except IllegalName:
                return None
            config = SubscriptionGroupConfig(group).with_defaults()
        return config

    def may_not_read(self, group: str, topic: str) -> bool:
        """Whether a group may not read a topic; such rules come with tables of other brokers."""
        return bool(self.forbidden.get(group, {}).get(topic, 0) & READ)

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(self._table.values())

    def __contains__(self, group: str) -> bool:
        return group in self._table

    def table(self) -> SubscriptionGroupTable:
        """The table for answers and for the file."""
        return SubscriptionGroupTable(dict(self._table), self._version, dict(self.forbidden))

    # Changing

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace a group; `RequestRefused` if there is no room for another one."""
        config = config.with_defaults()
        is_new = config.group_name not in self._table
        if is_new and len(self._table) >= MAX_GROUPS and config.group_name not in PREDEFINED:
            raise RequestRefused(
                f"no room for group {config.group_name}, the broker has {len(self._table)} groups",
                expected=f"at most {MAX_GROUPS}",
                hint="delete unused groups, or set autoCreateSubscriptionGroup=false",
            )
        if self._table.get(config.group_name) == config:
            return
        self._table[config.group_name] = config
        self._note_change(config.group_name)

    def remove(self, group: str) -> bool:
        """Delete a group; False if there was none."""
        if self._table.pop(group, None) is None:
            return False
        self.forbidden.pop(group, None)
        self._note_change(group)
        return True

    # Saving

    def dump(self) -> bytes:
        """The content of ``subscriptionGroup.json``."""
        return encode_state(self.table())

    def load(self, data: bytes) -> None:
        """Load the content of a file that ``dump`` or Apache RocketMQ wrote."""
        table = decode_body(SubscriptionGroupTable, data)
        self._table = {
            name: dataclasses.replace(config, group_name=name).with_defaults()
            for name, config in table.subscription_group_table.items()
        }
        self.forbidden = table.forbidden_table or {}
        self._version = table.data_version
        self._add_predefined()

    def _add_predefined(self) -> None:
        for group in PREDEFINED:
            if group not in self._table:
                self.put(SubscriptionGroupConfig(group))

    def _note_change(self, group: str) -> None:
        self._version = self._version.following(self._now_ms())
        self._changed(group)


def _not_found(group: str) -> GroupNotFound:
    return GroupNotFound(
        f"subscription group [{group[:255]}] does not exist",
        expected="a group that exists, or a legal name and autoCreateSubscriptionGroup",
        hint="create it, or set autoCreateSubscriptionGroup=true on the broker",
    )
