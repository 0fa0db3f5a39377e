"""Socket addresses in the binary form that records and message ids carry.

ip:4 or 16 | port:4      big-endian
"""

from __future__ import annotations

import functools
import ipaddress

from penstock.errors import InvalidArgument, ProtocolError

IPV4_HOST_BYTES = 8
IPV6_HOST_BYTES = 20
_MAX_PORT = 65535


@functools.lru_cache(maxsize=1024)
def pack_host(ip: str, port: int) -> bytes:
    """An address as 8 (IPv4) or 20 (IPv6) bytes.

    A dual-stack socket reports IPv4 peers as ``::ffff:1.2.3.4``; those are stored as IPv4.
    """
    try:
        address = ipaddress.ip_address(ip.strip("[]"))
    except ValueError as error:
        raise InvalidArgument(
            f"host {ip!r} is not an IP address", expected="such as '10.0.0.5' or '2001:db8::1'"
        ) from error
    if not 0 <= port <= _MAX_PORT:
        raise InvalidArgument(f"port {port} of host {ip}", expected=f"0 to {_MAX_PORT}")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + port.to_bytes(4, "big")


@functools.lru_cache(maxsize=1024)
def unpack_host(host: bytes) -> str:
    """A packed address as text: ``10.0.0.5:10911`` or ``[2001:db8::1]:10911``."""
    port = int.from_bytes(host[-4:], "big", signed=True)
    if len(host) == IPV4_HOST_BYTES:
        return f"{host[0]}.{host[1]}.{host[2]}.{host[3]}:{port}"
    if len(host) == IPV6_HOST_BYTES:
        return f"[{ipaddress.IPv6Address(host[:16])}]:{port}"
    raise ProtocolError(
        f"packed host of {len(host)} bytes",
        expected=f"{IPV4_HOST_BYTES} (IPv4) or {IPV6_HOST_BYTES} (IPv6)",
    )


def parse_host(text: str) -> bytes:
    """The packed form of ``ip:port`` text, the inverse of ``unpack_host``."""
    ip, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit():
        raise InvalidArgument(f"address {text!r} has no port", expected="'ip:port'")
    return pack_host(ip, int(port))


def offset_message_id(host: bytes, log_position: int) -> str:
    """The id a broker gives a message: its packed address and the record's place in the log."""
    return (host + log_position.to_bytes(8, "big", signed=True)).hex().upper()
