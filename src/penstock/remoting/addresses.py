"""Socket addresses as text: ``host:port``, with brackets around an IPv6 host."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from penstock.errors import InvalidArgument

_MAPPED_IPV4 = "::ffff:"
_MAX_PORT = 65_535


def parse_address(address: str) -> tuple[str, int]:
    """``"10.0.0.5:10911"`` or ``"[::1]:10911"`` as host and port."""
    host, colon, digits = address.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""  # An IPv6 host without brackets is ambiguous.
    port = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 5 else 0
    if not host or not colon or not 0 < port <= _MAX_PORT:
        raise InvalidArgument(
            f"address {address!r}",
            expected="host:port with a port from 1 to 65535, such as 127.0.0.1:9876 or [::1]:9876",
        )
    return host, port


def format_address(name: object) -> str:
    """The name that a socket reports for itself or its peer, as text.

    A dual-stack socket reports IPv4 peers as ``::ffff:1.2.3.4``; they are shown as IPv4.
    """
    if not isinstance(name, tuple) or len(name) < 2:
        return str(name) if name else "unknown"
    host, port = str(name[0]), name[1]
    if host.startswith(_MAPPED_IPV4) and "." in host:
        host = host.removeprefix(_MAPPED_IPV4)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def resolve_host(host: str) -> str:
    """The IP address of a host name; an IP address is returned as it is.

    IPv4 is preferred, since that is what older RocketMQ clients can read in a message id.
    """
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(
            f"host {host!r} has no address: {error}",
            expected="an IP address, or a name that this machine can look up",
        ) from error
    ordered = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return str(ordered[0][4][0])
