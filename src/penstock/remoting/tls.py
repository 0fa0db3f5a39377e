"""Certificates and TLS modes.

Plain and TLS connections share a port: a TLS connection starts with byte 0x16, a plain one with
the first byte of a frame's length, which is 0x00 for any frame below 16 MiB. A server peeks
at that byte (`listener`), then decides by its mode.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError

HANDSHAKE_BYTE: Final = 0x16
HANDSHAKE_SECONDS: Final = 10.0
# How long a closing client waits for the close_notify of the server. Apache's servers never send
# it over TLS 1.3 (Java leaves the half-closed connection open), and nothing depends on it.
CLOSE_NOTIFY_SECONDS: Final = 0.3


class TlsMode(StrEnum):
    """The connections that a server accepts (RocketMQ's ``tls.server.mode``)."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"

    def refusal(self, first_byte: int) -> str | None:
        """Why a connection that starts with ``first_byte`` is refused, or ``None``."""
        is_tls = first_byte == HANDSHAKE_BYTE
        if is_tls and self is TlsMode.DISABLED:
            return "a TLS client, but the server's TLS mode is disabled"
        if not is_tls and self is TlsMode.ENFORCING:
            return "a plain client, but the server's TLS mode is enforcing"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS settings of a server: mode, certificate, and whether clients need one."""

    mode: TlsMode = TlsMode.PERMISSIVE
    certificate_file: Path | None = None
    """Certificate chain in PEM form (``tls.server.certPath``)."""
    key_file: Path | None = None
    """Private key in PEM form (``tls.server.keyPath``)."""
    key_password: str | None = field(default=None, repr=False)
    client_ca_file: Path | None = None
    """Clients need a certificate signed by one of these (``tls.server.trustCertPath``)."""

    def __post_init__(self) -> None:
        if self.mode is not TlsMode.DISABLED and self.certificate_file is None:
            raise ConfigError(
                f"TLS mode {self.mode} without a certificate",
                expected="certificate_file and key_file",
                hint="set them, or the mode to disabled",
            )

    def context(self) -> ssl.SSLContext | None:
        """The context for handshakes; ``None`` when TLS is disabled."""
        if self.mode is TlsMode.DISABLED or self.certificate_file is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load_into(context)
        return context

    def load_into(self, context: ssl.SSLContext) -> None:
        """Use the files as they are now, for the handshakes to come."""
        assert self.certificate_file is not None, "checked when it was made"
        _load_certificate(context, self.certificate_file, self.key_file, self.key_password)
        if self.client_ca_file is not None:
            _load_authorities(context, self.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS settings of a client. The certificate of the server is checked unless ``verify`` is off.

    RocketMQ's own clients accept any certificate by default (``tls.client.authServer=false``).
    """

    verify: bool = True
    check_hostname: bool = True
    """Brokers are often addressed by IP while certificates carry names; then turn this off."""
    ca_file: Path | None = None
    """Trusted authorities instead of those of the system (``tls.client.trustCertPath``)."""
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: str | None = field(default=None, repr=False)

    def context(self) -> ssl.SSLContext:
        """The context for handshakes."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca_file is not None:
            _load_authorities(context, self.ca_file)
        if not (self.verify and self.check_hostname):
            context.check_hostname = False
        if not self.verify:
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_file is not None:
            _load_certificate(context, self.certificate_file, self.key_file, self.key_password)
        return context


def _load_certificate(
    context: ssl.SSLContext, certificate: Path, key: Path | None, password: str | None
) -> None:
    try:
        context.load_cert_chain(certificate, key, password or "")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"certificate {certificate} with key {key or certificate} cannot be loaded: {error}",
            expected="a certificate chain and its private key in PEM form",
        ) from error


def _load_authorities(context: ssl.SSLContext, file: Path) -> None:
    try:
        context.load_verify_locations(file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"trusted certificates {file} cannot be loaded: {error}", expected="a PEM file"
        ) from error
