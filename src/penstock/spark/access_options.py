"""The options that say where the cluster is and how to reach it; reading and writing share them."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from penstock.client.cluster_access import ClusterAccess
from penstock.remoting.tls import Tls
from penstock.spark.option_table import OptionReader, Unusable, boolean, json_object, option


def _tls(text: str) -> Tls | bool:
    """True, false, or a JSON object with the keywords of `Tls`."""
    if not text.startswith("{"):
        return boolean(text)
    known = {field.name for field in dataclasses.fields(Tls)}
    settings = json_object(text, "true, false, or a JSON object of TLS settings")
    for name in settings:
        if name not in known:
            raise Unusable(f"some of {', '.join(sorted(known))}", f"has {name!r}")
    values = {
        name: Path(str(value)) if name.endswith("_file") and value is not None else value
        for name, value in settings.items()
    }
    return Tls(**values)  # type: ignore[arg-type]  # TLS itself refuses values of other types


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """The keywords of `ClusterAccess.of`, as options."""

    namesrv: str | None = option(
        "namesrv",
        meaning="name servers, `host:port;host:port`",
        default_text="`NAMESRV_ADDR`, else `127.0.0.1:9876`",
    )
    access_key: str | None = option(
        "accessKey",
        meaning="the access key that requests are signed with; never shown",
        default_text="`PENSTOCK_ACCESS_KEY`",
        secret=True,
    )
    secret_key: str | None = option(
        "secretKey",
        meaning="the secret key beside it; never shown",
        default_text="`PENSTOCK_SECRET_KEY`",
        secret=True,
    )
    security_token: str | None = option(
        "securityToken",
        meaning="a temporary token beside the keys; never shown",
        default_text="`PENSTOCK_SECURITY_TOKEN`",
        secret=True,
    )
    tls: Tls | bool | None = option(
        "tls",
        _tls,
        meaning="`true`, or TLS settings as a JSON object",
        default_text="`PENSTOCK_TLS`",
        secret=True,
    )
    namespace: str | None = option(
        "namespace", meaning="prefix of topics and groups", default_text="`PENSTOCK_NAMESPACE`"
    )


def parse_access(given: OptionReader) -> ClusterAccess:
    """The cluster to reach; the environment supplies options that are missing."""
    return ClusterAccess.of(**given.values(AccessOptions))


def access_options(access: ClusterAccess) -> dict[str, str]:
    """The options from which `parse_access` makes an equal value."""
    keywords = access.as_keywords()
    given = {
        "namesrv": access.addresses,
        "accessKey": keywords["access_key"],
        "secretKey": keywords["secret_key"],
        "securityToken": keywords["security_token"],
        # Always given: without it an executor would read its own environment.
        "tls": "false" if access.tls is None else _tls_text(access.tls),
        "namespace": access.namespace,
    }
    return {name: value for name, value in given.items() if value is not None}


def _tls_text(tls: Tls) -> str:
    given = {name: value for name, value in dataclasses.asdict(tls).items() if value is not None}
    return json.dumps(given, default=str)
