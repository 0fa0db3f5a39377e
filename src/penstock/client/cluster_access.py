"""Where a cluster is and how to log in: addresses, credentials, TLS and namespace in one value.

Producers, consumers, the administrator, the command line and Spark all reach a cluster through a
`ClusterAccess`. What the caller leaves out comes from the environment: ``NAMESRV_ADDR``,
``PENSTOCK_ACCESS_KEY``, ``PENSTOCK_SECRET_KEY``, ``PENSTOCK_SECURITY_TOKEN``, ``PENSTOCK_TLS`` and
``PENSTOCK_NAMESPACE``. It is read once, when the value is made, so a `ClusterAccess` means the same
cluster in another process. ``repr`` shows no secret.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self, TypedDict

from penstock.client.options import Option
from penstock.client.session.namespaces import unwrap, wrap
from penstock.errors import ConfigError
from penstock.remoting.addresses import parse_address
from penstock.remoting.tls import Tls

DEFAULT_NAMESRV = "127.0.0.1:9876"


class AccessKeywords(TypedDict, total=False):
    """Keywords that name the credentials, TLS and namespace of a cluster."""

    access_key: str | None
    secret_key: str | None
    security_token: str | None
    tls: Tls | bool | None
    namespace: str | None


ACCESS_OPTIONS: Mapping[str, Option] = {
    "access_key": Option("SessionCredentials.accessKey", "also `PENSTOCK_ACCESS_KEY`"),
    "secret_key": Option("SessionCredentials.secretKey", "also `PENSTOCK_SECRET_KEY`"),
    "security_token": Option("SessionCredentials.securityToken", "also `PENSTOCK_SECURITY_TOKEN`"),
    "tls": Option("tls.enable", "True, or a `Tls`; also `PENSTOCK_TLS`"),
    "namespace": Option("namespace", "prefix of topics and groups; also `PENSTOCK_NAMESPACE`"),
}
"""The same keywords, for the documentation."""


class ClusterKeywords(AccessKeywords, total=False):
    """The same with the address: everything that describes a `ClusterAccess`."""

    namesrv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The keys that requests are signed with; ``repr`` shows the access key only."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """One cluster as one user reaches it; hashable and picklable."""

    namesrv: tuple[str, ...]
    """The addresses of its name servers."""
    credentials: Credentials | None = field(default=None, repr=False)
    tls: Tls | None = None
    namespace: str | None = None

    @classmethod
    def of(
        cls,
        namesrv: str | Iterable[str] | None = None,
        *,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
        tls: Tls | bool | None = None,
        namespace: str | None = None,
    ) -> Self:
        """Make one from the keywords of a client; None: use the environment."""
        check_text("namespace", namespace)
        return cls(
            namesrv=nameservers(namesrv),
            credentials=credentials(access_key, secret_key, security_token),
            tls=_tls(tls),
            namespace=_given(namespace, "PENSTOCK_NAMESPACE"),
        )

    def as_keywords(self) -> ClusterKeywords:
        """The keywords that make an equal one, in any environment."""
        who = self.credentials
        # Nothing is None, which would mean the reader's own environment.
        return ClusterKeywords(
            namesrv=self.namesrv,
            access_key=who.access_key if who else "",
            secret_key=who.secret_key if who else "",
            security_token=(who.security_token if who else None) or "",
            tls=self.tls or False,
            namespace=self.namespace or "",
        )

    @property
    def addresses(self) -> str:
        """The name servers as one text, ``host:port;host:port``."""
        return ";".join(self.namesrv)

    def long_name(self, name: str) -> str:
        """The name by which brokers know a topic or group."""
        return wrap(self.namespace, name)

    def short_name(self, name: str) -> str:
        """The name by which the user knows a topic or group."""
        return unwrap(self.namespace, name)


def nameservers(namesrv: str | Iterable[str] | None) -> tuple[str, ...]:
    """The addresses in ``"host:port;host:port"`` or a list; else NAMESRV_ADDR, else the default."""
    if namesrv is None:
        namesrv = os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV
    expected = "at least one name server such as '127.0.0.1:9876'"
    listed = namesrv.split(";") if isinstance(namesrv, str) else namesrv
    try:
        addresses = tuple(dict.fromkeys(text.strip() for text in listed if text.strip()))
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"namesrv is {namesrv!r}", expected=expected) from error
    if not addresses:
        raise ConfigError(f"namesrv is {namesrv!r}", expected=expected)
    for address in addresses:
        parse_address(address)
    return addresses


def credentials(
    access_key: str | None, secret_key: str | None, security_token: str | None
) -> Credentials | None:
    """Credentials from arguments, else from the environment; None when there are none."""
    check_text("access_key", access_key)
    check_text("secret_key", secret_key)
    check_text("security_token", security_token)
    access_key = _given(access_key, "PENSTOCK_ACCESS_KEY")
    secret_key = _given(secret_key, "PENSTOCK_SECRET_KEY")
    security_token = _given(security_token, "PENSTOCK_SECURITY_TOKEN")
    if access_key and secret_key:
        return Credentials(
            access_key=access_key, secret_key=secret_key, security_token=security_token
        )
    if access_key or secret_key:
        missing = "secret_key" if access_key else "access_key"
        raise ConfigError(f"{missing} is missing", expected="access_key and secret_key together")
    return None


def _given(value: str | None, variable: str) -> str | None:
    return (os.environ.get(variable) if value is None else value) or None


def _tls(tls: Tls | bool | None) -> Tls | None:
    if isinstance(tls, Tls):
        return tls
    if not isinstance(tls, bool | None):
        raise ConfigError(f"tls is {tls!r}", expected="True, False or a Tls")
    if tls is None:
        tls = os.environ.get("PENSTOCK_TLS", "").lower() in ("1", "true", "yes", "on")
    return Tls() if tls else None


def check_text(key: str, value: object) -> None:
    """Refuse a value that is neither text nor None, without showing it: it may be a secret."""
    if not isinstance(value, str | None):
        raise ConfigError(f"{key} is of type {type(value).__name__}", expected="text")
