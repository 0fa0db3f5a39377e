"""What a client calls itself: ``ip@instance``, with ``@unit`` when a unit is named.

Brokers tell members of a group apart by this name alone. Two processes with one name look like one
consumer and take the same share, so the instance of producers and clustering consumers is made
unique; a broadcasting consumer keeps ``DEFAULT``, because its local offsets are filed under the
client id and must be found again after a restart.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence

DEFAULT_INSTANCE = "DEFAULT"
FALLBACK_IP = "127.0.0.1"


def client_id(ip: str, instance: str, unit: str | None = None) -> str:
    """The name a client goes by."""
    return f"{ip}@{instance}@{unit}" if unit else f"{ip}@{instance}"


def new_instance(*, by_process: bool) -> str:
    """A name for an instance nobody named.

    Releases up to 4.8 used the process id, so the clients of one process shared a session
    (``by_process``); since 4.9 each one is its own.
    """
    pid = os.getpid()
    return str(pid) if by_process else f"{pid}#{time.perf_counter_ns()}"


def renamed(old: str, *, by_process: bool) -> str:
    """Another name of the same form, for a client that was made before a fork.

    Every process of the fork would go by the name it came with.
    """
    ip, _, rest = old.partition("@")
    return client_id(ip, new_instance(by_process=by_process), rest.partition("@")[2] or None)


def local_ip(addresses: Sequence[str] = ()) -> str:
    """The address this machine shows to the outside, by preference to ``addresses``.

    Connecting a datagram socket sends nothing; it only asks the kernel which way it would go.
    Names are not resolved: that could block for seconds.
    """
    hosts = [address.rpartition(":")[0] for address in addresses]
    # Any far address will do to find the interface of the default route.
    for host in (*hosts, "192.0.2.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                socket.inet_aton(host)
                probe.connect((host, 9))
                ip = str(probe.getsockname()[0])
            except OSError:
                continue
            if ip != "0.0.0.0":
                return ip
    return FALLBACK_IP
