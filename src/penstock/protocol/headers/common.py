"""Fields that any request may carry beside its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocol.headers.codec import wire


@dataclass(slots=True)
class CommonFields:
    """Hints and credentials that ride along with any request.

    They are read apart from the request's own header, since few handlers look at them. All may
    be absent; ``broker_name`` is what the client believes and nothing to refuse a request for.
    """

    broker_name: str | None = field(default=None, metadata=wire("bname"))
    namespace: str | None = field(default=None, metadata=wire("ns"))
    is_namespaced: bool | None = field(default=None, metadata=wire("nsd"))
    is_oneway: bool | None = field(default=None, metadata=wire("oway"))
    is_logical_queue: bool | None = field(default=None, metadata=wire("lo"))
    request_type: str | None = field(default=None, metadata=wire("ReqT"))
    zone_name: str | None = field(default=None, metadata=wire("__ZONE_NAME"))
    zone_mode: str | None = field(default=None, metadata=wire("__ZONE_MODE"))
    access_key: str | None = field(default=None, metadata=wire("AccessKey"))
    signature: str | None = field(default=None, metadata=wire("Signature"))
    security_token: str | None = field(default=None, metadata=wire("SecurityToken"))
    ons_channel: str | None = field(default=None, metadata=wire("OnsChannel"))
