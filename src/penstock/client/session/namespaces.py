"""Namespaces: clients put a prefix before names, and brokers see the long name.

    orders -> ns%orders    %RETRY%billing -> %RETRY%ns%billing

System names have no prefix.
"""

from __future__ import annotations

from penstock.model.names import (
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_TOPIC_PREFIX,
)

SEPARATOR = "%"


def wrap(namespace: str | None, name: str) -> str:
    """The long name, which brokers know."""
    if not namespace or not name or _is_system(name):
        return name
    prefix, bare = _split(name)
    if bare.startswith(namespace + SEPARATOR):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{bare}"


def unwrap(namespace: str | None, name: str) -> str:
    """The short name, which the user knows."""
    if not namespace:
        return name
    prefix, bare = _split(name)
    return prefix + bare.removeprefix(namespace + SEPARATOR)


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def _is_system(name: str) -> bool:
    return name == DEFAULT_TOPIC or name.startswith((SYSTEM_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX))
