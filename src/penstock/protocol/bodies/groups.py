"""Consumer groups as a broker keeps them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from penstock.protocol.bodies.codec import extra
from penstock.protocol.bodies.common import DataVersion
from penstock.protocol.bodies.values import Int32, WireEnum


class RetryPolicyType(WireEnum):
    """How the delay between two attempts grows."""

    EXPONENTIAL = "EXPONENTIAL"
    CUSTOMIZED = "CUSTOMIZED"


@dataclass(frozen=True, slots=True)
class ExponentialRetryPolicy:
    """Each delay a multiple of the one before, in milliseconds."""

    initial: int = 5_000
    max: int = 7_200_000
    multiplier: int = 2


@dataclass(frozen=True, slots=True)
class CustomizedRetryPolicy:
    """Each delay by itself, in milliseconds."""

    next: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupRetryPolicy:
    """How long a group's failed messages wait."""

    type: RetryPolicyType = RetryPolicyType.CUSTOMIZED
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


@dataclass(frozen=True, slots=True)
class SimpleSubscription:
    """A subscription that an administrator fixed for a group."""

    topic: str
    expression_type: str | None = None
    expression: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """A consumer group of a broker.

    What is None was written by 4.9, which does not know it; ``with_defaults`` fills it in.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool | None = None
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    group_retry_policy: GroupRetryPolicy | None = None
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 | None = None
    consume_timeout_minute: Int32 | None = None
    subscription_data_set: tuple[SimpleSubscription, ...] | None = None
    attributes: dict[str, str] | None = None
    extra: dict[str, object] = field(default_factory=dict, metadata=extra())

    def with_defaults(self) -> SubscriptionGroupConfig:
        """The same group with everything said that 5.x says."""
        return dataclasses.replace(
            self,
            consume_message_orderly=bool(self.consume_message_orderly),
            group_retry_policy=self.group_retry_policy or GroupRetryPolicy(),
            group_sys_flag=self.group_sys_flag or 0,
            consume_timeout_minute=(
                15 if self.consume_timeout_minute is None else self.consume_timeout_minute
            ),
            attributes={} if self.attributes is None else self.attributes,
        )


@dataclass(frozen=True, slots=True)
class SubscriptionGroupList:
    """Groups to be created or changed."""

    group_config_list: tuple[SubscriptionGroupConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class SubscriptionGroupTable:
    """All groups of a broker: ``config/subscriptionGroup.json`` and code 201's answer.

    ``forbidden_table`` has bits by group and topic; None is left out, as 4.9 does.
    """

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, Int32]] | None = None
