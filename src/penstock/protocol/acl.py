"""Signed requests: the access key of the sender, and a signature that proves it.

The signature is the HMAC-SHA1, in base64, of the values of all ext fields but itself, in the order
of their names and with nothing between them, followed by the body. Code, flag and request id are
not signed. A field added to a request after it was signed breaks the signature.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from binascii import b2a_base64
from collections.abc import Mapping
from functools import lru_cache
from hmac import compare_digest
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
    proof = {ACCESS_KEY: access_key}
    if security_token:
        proof[SECURITY_TOKEN] = security_token
    signed = {**ext, **proof} if ext else proof
    digest = _verifier(secret_key).digest(signed, signed_names(tuple(signed)), body)
    proof[SIGNATURE] = b2a_base64(digest, newline=False).decode()
    return proof


def access_key(ext: Mapping[str, str] | None) -> str | None:
    """The access key of a request; the C++ client sends an empty one if it has none."""
    return (ext or {}).get(ACCESS_KEY) or None


def unsigned(ext: Mapping[str, str] | None) -> dict[str, str]:
    """The fields without those of the signature, which is for one server only."""
    proof = (ACCESS_KEY, SIGNATURE, SECURITY_TOKEN)
    return {name: value for name, value in (ext or {}).items() if name not in proof}


def verify(ext: Mapping[str, str], body: Body, secret_key: str) -> bool:
    """Whether the signature of a received request was made with ``secret_key``."""
    return Verifier(secret_key).verify(ext, body)


class Verifier:
    """Checks signatures made with one secret.

    HMAC hashes the key twice before any data; both states are prepared once and copied for each
    request, which takes half the time of `hmac.new`.
    """

    __slots__ = ("_copy_inner", "_copy_outer")

    def __init__(self, secret_key: str) -> None:
        key = secret_key.encode()
        if len(key) > _BLOCK_BYTES:
            key = hashlib.sha1(key).digest()
        key = key.ljust(_BLOCK_BYTES, b"\0")
        self._copy_inner = hashlib.sha1(key.translate(_INNER_PAD)).copy
        self._copy_outer = hashlib.sha1(key.translate(_OUTER_PAD)).copy

    def verify(self, ext: Mapping[str, str], body: Body) -> bool:
        """Whether the signature among ``ext`` is right."""
        claimed = _claimed_digest(ext)
        names = signed_names(tuple(ext))
        if compare_digest(claimed, self.digest(ext, names, body)):
            return True
        if _MAYBE_UNSIGNED not in ext:
            return False
        names = tuple(name for name in names if name != _MAYBE_UNSIGNED)
        return compare_digest(claimed, self.digest(ext, names, body))

    def fits(self, claimed: bytes, values: str, body: bytes) -> bool:
        """Whether a digest is that of these values, in their order, and the body.

        `verify` for callers that have read the fields already.
        """
        inner = self._copy_inner()
        inner.update(values.encode() + body)
        outer = self._copy_outer()
        outer.update(inner.digest())
        return compare_digest(claimed, outer.digest())

    def fits_base64(self, claimed: bytes, signed: bytes) -> bool:
        """Whether a digest in base64 is that of these bytes: the values, then the body."""
        inner = self._copy_inner()
        inner.update(signed)
        outer = self._copy_outer()
        outer.update(inner.digest())
        return compare_digest(claimed, b2a_base64(outer.digest(), newline=False))

    def digest(self, ext: Mapping[str, str], names: tuple[str, ...], body: Body) -> bytes:
        """The HMAC-SHA1 of the values of ``names``, in this order, and the body."""
        inner = self._copy_inner()
        inner.update("".join([ext[name] for name in names]).encode())
        for part in (body,) if isinstance(body, bytes | bytearray | memoryview) else body:
            inner.update(part)
        outer = self._copy_outer()
        outer.update(inner.digest())
        return outer.digest()


_BLOCK_BYTES: Final = 64
_INNER_PAD: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD: Final = bytes(byte ^ 0x5C for byte in range(256))
_DIGEST_CHARACTERS: Final = 28
_NO_DIGEST: Final = b""


def _claimed_digest(ext: Mapping[str, str]) -> bytes:
    """The digest that a request claims; no bytes, which equal no digest, if it is malformed."""
    text = ext.get(SIGNATURE, "")
    if len(text) != _DIGEST_CHARACTERS:
        return _NO_DIGEST
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return _NO_DIGEST


# Clients send few sets of fields, each many times.
@lru_cache(256)
def signed_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the fields that are signed, in the order of their values."""
    return tuple(sorted((name for name in names if name != SIGNATURE), key=_java_order))


# A program signs with few secrets, each request with one of them.
@lru_cache(16)
def _verifier(secret_key: str) -> Verifier:
    return Verifier(secret_key)


def _java_order(name: str) -> bytes:
    """Java compares texts by UTF-16 unit, Python by character."""
    return name.encode("utf-16-be", "surrogatepass")
