"""Signed requests: the access key of the sender, and a signature that proves it.

The signature is the HMAC-SHA1, in base64, of the values of all ext fields but itself, in the order
of their names and with nothing between them, followed by the body. Code, flag and request id are
not signed. A field added to a request after it was signed breaks the signature.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import Final

from penstock.protocol.commands import Body

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
# Clients up to V4_9_3 add this field after signing, later ones before.
_MAYBE_UNSIGNED: Final = "_UNIQUE_KEY_QUERY"


def sign(
    ext: Mapping[str, str] | None,
    body: Body,
    access_key: str,
    secret_key: str,
    security_token: str | None = None,
) -> dict[str, str]:
    """The ext fields to add to a request with these ext fields and this body."""
    credentials = {ACCESS_KEY: access_key}
    if security_token:
        credentials[SECURITY_TOKEN] = security_token
    signed = {**(ext or {}), **credentials}
    return {**credentials, SIGNATURE: _signature(signed, body, secret_key)}


def access_key(ext: Mapping[str, str] | None) -> str | None:
    """The access key of a request; the C++ client sends an empty one if it has none."""
    return (ext or {}).get(ACCESS_KEY) or None


def verify(ext: Mapping[str, str], body: Body, secret_key: str) -> bool:
    """Whether the signature of a received request was made with ``secret_key``."""
    claimed = ext.get(SIGNATURE, "").encode()
    if hmac.compare_digest(claimed, _signature(ext, body, secret_key).encode()):
        return True
    if _MAYBE_UNSIGNED not in ext:
        return False
    rest = {key: value for key, value in ext.items() if key != _MAYBE_UNSIGNED}
    return hmac.compare_digest(claimed, _signature(rest, body, secret_key).encode())


def _signature(ext: Mapping[str, str], body: Body, secret_key: str) -> str:
    names = sorted((name for name in ext if name != SIGNATURE), key=_java_order)
    digest = hmac.new(secret_key.encode(), "".join(map(ext.__getitem__, names)).encode(), "sha1")
    for part in (body,) if isinstance(body, bytes | bytearray | memoryview) else body:
        digest.update(part)
    return base64.b64encode(digest.digest()).decode()


def _java_order(name: str) -> bytes:
    """Java compares texts by UTF-16 unit, Python by character."""
    return name.encode("utf-16-be")
