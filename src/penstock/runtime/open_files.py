"""The limit of open files of this process (``ulimit -n``), which connections and stores share."""

from __future__ import annotations

import logging
import sys

if sys.platform != "win32":
    import resource

log = logging.getLogger(__name__)

_RESERVED_SHARE = 4
_MOST_RESERVED = 512


def soft_limit() -> int | None:
    """How many files may be open; None if there is no limit."""
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def first_reserved_number() -> int | None:
    """The first file number that a connection may not have; the rest is for files.

    The system gives out the lowest free number. So the number of a new connection tells how many
    files are open, of all servers and stores of the process.
    """
    soft = soft_limit()
    return None if soft is None else soft - min(soft // _RESERVED_SHARE, _MOST_RESERVED)


def raise_soft_limit() -> None:
    """Use all that this process may have, as Java's virtual machine does."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.info("limit of open files not raised soft=%d hard=%d error=%s", soft, hard, error)
