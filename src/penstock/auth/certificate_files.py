"""The files of a directory with certificates, under the names that ``penstock cert`` gives them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class CertificateFiles(NamedTuple):
    """An authority, the pair of a server and the pair of a client."""

    authority: Path
    certificate: Path
    key: Path
    client_certificate: Path
    client_key: Path

    @classmethod
    def of(cls, directory: Path) -> CertificateFiles:
        """The files of a directory, whether they exist or not."""
        names = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
        return cls(*(directory / name for name in names))
