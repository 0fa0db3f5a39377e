"""The gRPC port of ``penstock up``: which one, and whether it can be served."""

from __future__ import annotations

import importlib.util
from typing import Final, NamedTuple

from penstock.errors import ConfigError, MissingPackage

GRPC_PORT: Final = 8081
OFF: Final = "off"
_MAX_PORT: Final = 65_535
_PACKAGE: Final = "google.protobuf"


class Port(NamedTuple):
    """A port to listen on."""

    number: int
    is_default: bool = False
    """Whether another one will do."""


def is_installed() -> bool:
    """Whether the package of the extra is there."""
    try:
        return importlib.util.find_spec(_PACKAGE) is not None
    except ModuleNotFoundError:
        return False


def chosen_port(given: str | None, *, any_port: bool = False) -> Port | None:
    """The port of ``--grpc-port``; None: gRPC is not served.

    ``any_port``: the broker has a free port, so the default is one, too.
    """
    if given == OFF:
        return None
    if given is None:
        if not is_installed():
            return None
        return Port(0) if any_port else Port(GRPC_PORT, is_default=True)
    if not (given.isascii() and given.isdecimal() and int(given) <= _MAX_PORT):
        raise ConfigError(
            f"--grpc-port {given!r}", expected=f"a port from 0 to {_MAX_PORT}, or {OFF}"
        )
    if not is_installed():
        raise MissingPackage("--grpc-port needs protobuf", hint="pip install 'penstock[grpc]'")
    return Port(int(given))
