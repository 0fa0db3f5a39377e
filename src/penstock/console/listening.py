"""The socket of a console, bound before anything of the console is loaded."""

from __future__ import annotations

import errno
import importlib.util
import socket

from penstock.errors import ConfigError, ListenFailed

DEFAULT_PORT = 8082
BACKLOG = 128
_NEEDED = ("starlette", "uvicorn", "jinja2")


def is_installed() -> bool:
    """Whether the extra ``[console]`` is there; nothing of it is imported."""
    return all(importlib.util.find_spec(name) is not None for name in _NEEDED)


def require_installed() -> None:
    """Name the extra where it is missing."""
    if not is_installed():
        raise ConfigError(
            "the console needs starlette, uvicorn and jinja2",
            expected="the extra [console]",
            hint="pip install 'penstock[console]'",
        )


def listen(host: str, port: int, *, or_any: bool = False) -> socket.socket:
    """A bound, listening socket; ``or_any`` takes a free port where this one is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            bound.bind((host, port))
            bound.listen(BACKLOG)
        except OSError as error:
            if not or_any or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            bound.close()
            bound = socket.socket(family, socket.SOCK_STREAM)
            bound.bind((host, 0))
            bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise ListenFailed(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="another port: --port PORT (0: any free port)",
        ) from error
    bound.setblocking(False)
    return bound


def address_of(bound: socket.socket, base_path: str = "") -> str:
    """What to type into a browser."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{base_path}/"
