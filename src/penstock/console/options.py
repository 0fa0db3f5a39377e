"""What a console serves and what it allows: the values behind the options of the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.client.cluster_access import ClusterAccess

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """The clusters of a console and its rules."""

    contexts: Mapping[str, ClusterAccess]
    """How to reach each cluster, by the name that is part of its addresses."""
    hosts: frozenset[str] = LOOPBACK_HOSTS
    """Names by which browsers may address the console, without port; others are refused."""
    base_path: str = ""
    """The path below which a proxy serves the console, such as ``/mq``."""
    read_only: bool = False
    """Leave out everything that changes the cluster."""
    hide_bodies: bool = False
    """Never show or send out the body of a message."""
    no_export: bool = False
    """Do not offer messages as files."""
    login: bool = False
    """Ask for an access key, with which the user's requests are signed."""
    shares_keys: bool = False
    """Let every visitor use the keys of a context that has some, without a login."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses whose word about a visitor's address and scheme (X-Forwarded-...) counts."""
    operators: frozenset[str] | None = None
    """With a login: the users who may change things; others only look. None: the broker decides."""
    archives: tuple[str, ...] = ()
    """Directories with archives of Spark, shown beside its streams."""
    audit_file: Path | None = None
    """Where changes are written, one JSON object for each."""

    def asks(self, context: str) -> bool:
        """Whether a login is needed for a cluster.

        Also where its context holds keys: every account of this machine reaches a loopback address,
        and would have the rights of these keys.
        """
        has_keys = self.contexts[context].credentials is not None
        return self.login or (has_keys and not self.shares_keys)

    @property
    def asking(self) -> list[str]:
        """The clusters that need a login."""
        return [name for name in self.contexts if self.asks(name)]
