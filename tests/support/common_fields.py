"""Fields that any request may carry beside its own."""

from __future__ import annotations

from msgspec import field

from penstock.protocol.headers.codec import Header


class CommonFields(Header):
    """Hints and credentials that ride along with any request.

    They are read apart from the request's own header, since few handlers look at them. All may
    be absent; ``broker_name`` is what the client believes and nothing to refuse a request for.
    """

    broker_name: str | None = field(default=None, name="bname")
    namespace: str | None = field(default=None, name="ns")
    is_namespaced: bool | None = field(default=None, name="nsd")
    is_oneway: bool | None = field(default=None, name="oway")
    is_logical_queue: bool | None = field(default=None, name="lo")
    request_type: str | None = field(default=None, name="ReqT")
    zone_name: str | None = field(default=None, name="__ZONE_NAME")
    zone_mode: str | None = field(default=None, name="__ZONE_MODE")
    access_key: str | None = field(default=None, name="AccessKey")
    signature: str | None = field(default=None, name="Signature")
    security_token: str | None = field(default=None, name="SecurityToken")
    ons_channel: str | None = field(default=None, name="OnsChannel")
