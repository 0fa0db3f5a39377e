"""Client ids: ``ip@instance``, or ``ip@instance@unit``.

Brokers identify the members of a group by client id alone. Two processes with the same id look like
one consumer and take the same share, so the instance of producers and clustering consumers is made
unique. A broadcasting consumer keeps ``DEFAULT``: its local offsets are stored under the client id
and must be found again after a restart.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence

DEFAULT_INSTANCE = "DEFAULT"
FALLBACK_IP = "127.0.0.1"


def client_id(ip: str, instance: str, unit: str | None = None) -> str:
    """The client id of these parts."""
    return f"{ip}@{instance}@{unit}" if unit else f"{ip}@{instance}"


def new_instance(*, by_process: bool) -> str:
    """The name of an instance without a given one.

    Releases up to 4.8 used the process id, so the clients of one process shared a session
    (``by_process``); since 4.9 each client has its own.
    """
    pid = os.getpid()
    return str(pid) if by_process else f"{pid}#{time.perf_counter_ns()}"


def renamed(old: str, *, by_process: bool) -> str:
    """Another id of the same form, for a client that was made before a fork.

    Otherwise all forked processes would share one id.
    """
    ip, _, rest = old.partition("@")
    return client_id(ip, new_instance(by_process=by_process), rest.partition("@")[2] or None)


def local_ip(addresses: Sequence[str] = ()) -> str:
    """The address of this machine as others see it, preferably on the way to ``addresses``.

    Connecting a datagram socket sends nothing; the kernel only selects the local address. Names
    are not resolved: that could block for seconds.
    """
    hosts = [address.rpartition(":")[0] for address in addresses]
    # Any distant address finds the interface of the default route.
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
