"""New certificates without a restart: the files are looked at every few seconds.

A new pair is tried out first. If certificate and key do not fit each other, as in the moment
between two copies, the old pair stays in use and the next look tries again. Open connections keep
the certificate they were made with.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError
from penstock.remoting.tls import ServerTls
from penstock.runtime.clock import Clock
from penstock.runtime.service import Service
from penstock.runtime.threads import run_to_end

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
_Stamp = tuple[tuple[int, int, int] | None, ...]


class CertificateReload(Service):
    """Keeps the context of a server in step with its files."""

    def __init__(self, tls: ServerTls, context: ssl.SSLContext, clock: Clock) -> None:
        self._tls = tls
        self._context = context
        self._clock = clock
        self._loaded = self._stamps()
        self._refused: _Stamp | None = None

    async def _run(self, ready: Callable[[], None]) -> None:
        ready()
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            await run_to_end(None, self._look)

    def _look(self) -> None:
        stamps = self._stamps()
        if stamps == self._loaded or stamps == self._refused:
            return
        try:
            self._tls.context()
            self._tls.load_into(self._context)
        except ConfigError as error:
            self._refused = stamps
            log.error("the new certificate cannot be used, the old one stays error=%s", error)
            return
        self._loaded, self._refused = stamps, None
        log.info("certificate loaded again path=%s", self._tls.certificate_file)

    def _stamps(self) -> _Stamp:
        files = (self._tls.certificate_file, self._tls.key_file, self._tls.client_ca_file)
        return tuple(_stamp(file) for file in files if file is not None)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
