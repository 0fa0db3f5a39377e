"""Certificates and TLS modes.

Plain and TLS connections share a port: a TLS connection starts with byte 0x16, a plain one with
the first byte of a frame's length, which is 0x00 for any frame below 16 MiB. A server peeks
at that byte (`listener`), then decides by its mode.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Self, TypeAlias

from penstock.errors import ConfigError
from penstock.remoting.file_stamps import FileStamp, file_stamp

HANDSHAKE_BYTE: Final = 0x16
HANDSHAKE_SECONDS: Final = 10.0
# How long a closing client waits for the close_notify of the server. Apache's servers never send
# it over TLS 1.3 (Java leaves the half-closed connection open), and nothing depends on it.
CLOSE_NOTIFY_SECONDS: Final = 0.3

TlsStamps: TypeAlias = tuple[FileStamp | None, ...]


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

    def context(self) -> ServerContext | None:
        """The context for handshakes; ``None`` when TLS is disabled."""
        if self.mode is TlsMode.DISABLED or self.certificate_file is None:
            return None
        # Before the files are read: a change in between gives them other stamps.
        stamps = self.stamps()
        return ServerContext(self.fresh_context(), stamps)

    def fresh_context(self) -> ssl.SSLContext:
        """A context with the files as they are now; waits for the disk."""
        assert self.certificate_file is not None, "checked when it was made"
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load_certificate(context, self.certificate_file, self.key_file, self.key_password)
        if self.client_ca_file is not None:
            _load_authorities(context, self.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def stamps(self) -> TlsStamps:
        """Change whenever one of the files does."""
        files = (self.certificate_file, self.key_file, self.client_ca_file)
        return tuple(_stamp(file) for file in files if file is not None)


class ServerContext(ssl.SSLContext):
    """The context of a listener. Each handshake is made by the newest context behind it.

    OpenSSL may be reading a context that is in use, and it never forgets an authority that it was
    given. So new files make a new context, which takes the place of the one before.
    """

    def __new__(cls, current: ssl.SSLContext, stamps: TlsStamps) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, current: ssl.SSLContext, stamps: TlsStamps) -> None:
        # Nothing shakes hands with the settings of this one; shown are those that count.
        self.minimum_version = current.minimum_version
        self._current = current
        self._protocols: list[str] = []
        self.stamps = stamps
        """Of the files that the current one was made of."""

    def use(self, fresh: ssl.SSLContext, stamps: TlsStamps) -> None:
        """Make the handshakes to come with another context; called on the loop."""
        if self._protocols:
            fresh.set_alpn_protocols(self._protocols)
        self._current, self.stamps = fresh, stamps

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        self._protocols = list(alpn_protocols)
        self._current.set_alpn_protocols(self._protocols)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self._current.wrap_bio(incoming, outgoing, server_side, server_hostname, session)

    def wrap_socket(
        self,
        sock: socket.socket,
        server_side: bool = False,
        do_handshake_on_connect: bool = True,
        suppress_ragged_eofs: bool = True,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLSocket:
        return self._current.wrap_socket(
            sock,
            server_side,
            do_handshake_on_connect,
            suppress_ragged_eofs,
            server_hostname,
            session,
        )


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
        context = _trusting(self.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not (self.verify and self.check_hostname):
            context.check_hostname = False
        if not self.verify:
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_file is not None:
            _load_certificate(context, self.certificate_file, self.key_file, self.key_password)
        return context


def _stamp(file: Path) -> FileStamp | None:
    try:
        return file_stamp(file)
    except OSError:
        return None


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


def _trusting(authorities: Path | None) -> ssl.SSLContext:
    """The context of a client; authorities of the system count only without own ones."""
    if authorities is None:
        return ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    try:
        return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise _not_loaded(authorities, error) from error


def _load_authorities(context: ssl.SSLContext, file: Path) -> None:
    try:
        context.load_verify_locations(file)
    except (OSError, ssl.SSLError) as error:
        raise _not_loaded(file, error) from error


def _not_loaded(authorities: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"trusted certificates {authorities} cannot be loaded: {error}", expected="a PEM file"
    )
