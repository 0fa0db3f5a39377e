"""New certificates without a restart: the files are looked at every few seconds.

A new pair is tried out first. If certificate and key do not fit each other, as in the moment
between two copies, the old pair stays in use and the next look tries again. Open connections keep
the certificate they were made with; authorities of clients that were taken out of their file are
trusted no longer by the next handshake.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Final

from penstock.errors import ConfigError
from penstock.remoting.tls import ServerContext, ServerTls, TlsStamps
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service
from penstock.runtime.threads import run_to_end

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0


class CertificateReload(Service):
    """Keeps the context of a server in step with its files."""

    def __init__(self, tls: ServerTls, context: ServerContext, clock: Clock) -> None:
        self._tls = tls
        self._context = context
        self._clock = clock
        self._refused: TlsStamps | None = None
        """Of files that cannot be used: they are not tried again until they change."""
        self._told: TlsStamps | None = None

    async def _run(self, ready: Callable[[], None]) -> None:
        ready()
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        stamps = await run_to_end(None, self._tls.stamps)
        if stamps in (self._context.stamps, self._refused):
            return
        try:
            fresh = await run_to_end(None, self._tls.fresh_context)
        except ConfigError as error:
            if not _may_pass(error):
                self._refused = stamps
            if stamps != self._told:
                self._told = stamps
                log.error("the new certificate cannot be used, the old one stays error=%s", error)
            return
        self._context.use(fresh, stamps)
        self._refused = self._told = None
        log.info("certificate loaded again path=%s", self._tls.certificate_file)


def _may_pass(error: ConfigError) -> bool:
    """Whether it may work with the same files later, such as after too many open files."""
    cause = error.__cause__
    return isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError)
