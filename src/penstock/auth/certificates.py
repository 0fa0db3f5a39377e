"""Certificates for development: an authority, one certificate for servers and one for clients.

They are made with the package ``cryptography``, which only this module needs. For production, use
the certificates of your organisation; the file names are the same.
"""

from __future__ import annotations

import ipaddress
import os
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from penstock.auth.certificate_files import CertificateFiles
from penstock.errors import ConfigError, InvalidArgument, MissingPackage

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID
except ImportError as error:
    raise MissingPackage(
        "certificates are made with the package cryptography, which is not installed",
        hint="pip install 'penstock[security]'",
    ) from error

VALID_DAYS: Final = 90
_MAX_HOST_CHARACTERS: Final = 253
_CLOCKS_DIFFER: Final = timedelta(hours=1)


class _Authority(NamedTuple):
    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    pem: bytes


def make_certificates(
    directory: Path, hosts: Iterable[str], *, days: int = VALID_DAYS, replace: bool = False
) -> CertificateFiles:
    """Write an authority, a server certificate for ``hosts`` and a client certificate.

    The key of the authority is not kept, so nothing else can be signed with it.
    """
    names = list(dict.fromkeys(hosts))
    if not names:
        raise InvalidArgument("a certificate for no host", expected="at least one host or address")
    files = CertificateFiles.of(directory)
    present = [str(file) for file in files if file.exists()]
    if present and not replace:
        raise ConfigError(
            f"{', '.join(present)} exist already",
            hint="choose another directory, or --replace them",
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = _make_authority(days)
    server_pem, server_key = _make_signed(authority, names[0], names, days, is_server=True)
    client_pem, client_key = _make_signed(authority, "penstock client", (), days, is_server=False)
    _write(files.authority, authority.pem, 0o644)
    _write(files.certificate, server_pem + authority.pem, 0o644)
    _write(files.key, server_key, 0o600)
    _write(files.client_certificate, client_pem, 0o644)
    _write(files.client_key, client_key, 0o600)
    return files


def _make_authority(days: int) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Penstock development authority")
    certificate = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .sign(key, hashes.SHA256())
    )
    return _Authority(name, key, _pem(certificate))


def _make_signed(
    authority: _Authority, name: str, hosts: Iterable[str], days: int, *, is_server: bool
) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    kinds = ExtendedKeyUsageOID
    purpose = kinds.SERVER_AUTH if is_server else kinds.CLIENT_AUTH
    builder = (
        _builder(_name(name), authority.name, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
    )
    alternatives = [_alternative_name(host) for host in hosts]
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    certificate = builder.sign(authority.key, hashes.SHA256())
    # Java's servers and clients read keys in PKCS#8 only.
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return _pem(certificate), pem


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    # The longest common name that X.509 allows.
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text[:64])])


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host.isascii() or not host.strip() or len(host) > _MAX_HOST_CHARACTERS:
        raise InvalidArgument(f"host {host[:64]!r}", expected="a host name or an address")
    return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, data: bytes, mode: int) -> None:
    # A name that cannot be guessed, and a file of our own: a directory that others may write to
    # could have a link under the name, and the key would go where it points to.
    handle, draft = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
