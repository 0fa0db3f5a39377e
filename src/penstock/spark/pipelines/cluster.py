"""Which cluster a pipeline talks to, in the words of Spark options and of `Admin`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypedDict

import orjson

from penstock.admin.blocking import Admin
from penstock.client.cluster_access import nameservers
from penstock.remoting.tls import ClientTls
from penstock.spark import connections


class Access(TypedDict, total=False):
    """Keywords every pipeline takes; without them the environment is asked."""

    access_key: str | None
    secret_key: str | None
    security_token: str | None
    tls: ClientTls | bool | None
    namespace: str | None


_OPTION_NAMES = {
    "access_key": "accessKey",
    "secret_key": "secretKey",
    "security_token": "securityToken",
    "tls": "tls",
    "namespace": "namespace",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster and the right to use it; secrets are not shown."""

    namesrv: str
    access: Access = field(repr=False, default_factory=Access)

    @classmethod
    def of(cls, namesrv: str | Iterable[str] | None, access: Access) -> Cluster:
        """Settled on the driver: executors may have another environment."""
        settled = connections.Access.of(";".join(nameservers(namesrv)), **access)
        return cls(
            ";".join(settled.namesrv),
            Access(
                access_key=settled.access_key,
                secret_key=settled.secret_key,
                security_token=settled.security_token,
                # Not None, for which an executor would ask its own environment.
                tls=settled.tls or False,
                namespace=settled.namespace,
            ),
        )

    def options(self) -> dict[str, str]:
        """What ``format("penstock")`` is told."""
        told = {"namesrv": self.namesrv}
        for key, value in self.access.items():
            if value is not None:
                told[_OPTION_NAMES[key]] = _text(value)
        return told

    def admin(self) -> Admin:
        """A connection for the driver's own questions."""
        return Admin(namesrv=self.namesrv, **self.access)


def _text(value: object) -> str:
    """A keyword's value as the text of an option."""
    if isinstance(value, ClientTls):
        given = {k: v for k, v in dataclasses.asdict(value).items() if v is not None}
        return orjson.dumps(given, default=str).decode()
    return str(value).lower() if isinstance(value, bool) else str(value)
