"""What ``penstock topic create`` does to each broker: decided here, carried out in ``topics``.

A topic that exists keeps what no option names. So a second ``topic create`` changes nothing by
itself, and its changes can be listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.errors import InvalidArgument

DEFAULT_QUEUES = 8
_READ, _WRITE = 4, 2


def permission_text(permission: object) -> str:
    """``rw``, ``r`` or ``w``; ``-`` for a topic without permissions."""
    if not isinstance(permission, int):
        return str(permission)
    return (
        "".join(letter for letter, bit in (("r", _READ), ("w", _WRITE)) if permission & bit) or "-"
    )


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic on one broker."""

    read_queues: int = DEFAULT_QUEUES
    write_queues: int = DEFAULT_QUEUES
    permission: int = _READ | _WRITE
    order: bool = False
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """The options that were given; None is one that was not."""

    queues: int | None = None
    read_queues: int | None = None
    permission: int | None = None
    order: bool = False
    """An ordered topic stays one: the name servers' list of its queues outlives this flag."""
    attributes: Mapping[str, str] = field(default_factory=dict)

    def over(self, found: TopicSettings) -> TopicSettings:
        """Those settings with these options."""
        return TopicSettings(
            # To write fewer and read as many as before is asked for by name.
            read_queues=self.read_queues or self.queues or found.read_queues,
            write_queues=self.queues or found.write_queues,
            permission=found.permission if self.permission is None else self.permission,
            order=found.order or self.order,
            attributes=tuple({**dict(found.attributes), **self.attributes}.items()),
        )


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What to do with one topic, by broker."""

    topic: str
    before: Mapping[str, TopicSettings]
    after: Mapping[str, TopicSettings]
    """Only the brokers that need a request."""

    @property
    def existed(self) -> bool:
        return bool(self.before)

    def groups(self) -> list[tuple[TopicSettings, list[str]]]:
        """Brokers by the settings they get."""
        found: dict[TopicSettings, list[str]] = {}
        for broker, settings in sorted(self.after.items()):
            found.setdefault(settings, []).append(broker)
        return list(found.items())

    def changes(self) -> list[str]:
        """What becomes different, in words; brokers are named where it is not the same on all."""
        brokers_of: dict[str, list[str]] = {}
        for broker, settings in sorted(self.after.items()):
            found = self.before.get(broker)
            for text in ["new"] if found is None else differences(found, settings):
                brokers_of.setdefault(text, []).append(broker)
        everywhere = sorted(self.before)
        return [
            text if brokers == everywhere else f"{text} on {', '.join(brokers)}"
            for text, brokers in brokers_of.items()
        ]

    @property
    def shrinks(self) -> bool:
        """Whether some broker gives fewer queues to read."""
        return any(
            settings.read_queues < self.before[broker].read_queues
            for broker, settings in self.after.items()
            if broker in self.before
        )

    def hides(self, queues: Iterable[tuple[str, int, int]]) -> int:
        """The number of messages that could no longer be read, from (broker, queue, messages)."""
        return sum(
            count
            for broker, queue, count in queues
            if broker in self.after
            and broker in self.before
            and self.after[broker].read_queues <= queue < self.before[broker].read_queues
        )


def plan_topic(
    topic: str,
    options: TopicOptions,
    before: Mapping[str, TopicSettings],
    brokers: Sequence[str],
    *,
    doubtful: bool = False,
) -> TopicPlan:
    """Decide the request to each of ``brokers`` for a topic with the settings ``before``.

    ``doubtful``: not every broker confirmed its settings, so all get a request.
    """
    # A broker that lacks the topic gets it as the others have it.
    model = next(iter(before.values()), TopicSettings())
    wanted = {broker: options.over(before.get(broker, model)) for broker in brokers}
    changed = {
        broker: settings
        for broker, settings in wanted.items()
        if doubtful or before.get(broker) != settings
    }
    if changed and any(settings.order for settings in wanted.values()):
        # The name servers keep one list of an ordered topic's brokers, written as a whole: a
        # broker without a request now would get no more messages.
        other_brokers = sorted(before.keys() - wanted.keys())
        if other_brokers:
            raise InvalidArgument(
                f"topic {topic!r} is ordered and also exists on {', '.join(other_brokers)}",
                expected="all of its brokers at once",
                hint="leave out --broker",
            )
        if len(set(wanted.values())) > 1:
            raise InvalidArgument(
                f"topic {topic!r} is ordered and differs from broker to broker",
                hint="give all of --queues, --permission, --order",
            )
        changed = wanted
    return TopicPlan(topic, before, changed)


def differences(before: TopicSettings, after: TopicSettings) -> list[str]:
    """Each setting that becomes another."""
    said = []
    if before.read_queues == before.write_queues and after.read_queues == after.write_queues:
        pairs = [(before.write_queues, after.write_queues, "queues")]
    else:
        pairs = [
            (before.write_queues, after.write_queues, "queues to write"),
            (before.read_queues, after.read_queues, "queues to read"),
        ]
    said += [f"{old} -> {new} {what}" for old, new, what in pairs if old != new]
    if before.permission != after.permission:
        old, new = permission_text(before.permission), permission_text(after.permission)
        said.append(f"permission {old} -> {new}")
    if before.order != after.order:
        said.append("ordered")
    known = dict(before.attributes)
    said += [f"{key}={value}" for key, value in after.attributes if known.get(key) != value]
    return said
