"""The reading half of S3 over HTTP, from directories of this machine: what Arrow asks for."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Storage:
    """A running server."""

    address: str
    read: list[str]
    """The keys that were read, in their order."""

    def url(self, path: str) -> str:
        """A URL that says where the server is, for processes without the environment."""
        return (
            f"s3://test:test@{path}?scheme=http&endpoint_override={self.address}&region=us-east-1"
        )


@contextlib.contextmanager
def serving_s3(root: Path, environment: pytest.MonkeyPatch) -> Iterator[Storage]:
    """Serve each directory in ``root`` as a bucket, and let this process use it."""
    read: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._object(has_body=False)

        def do_GET(self) -> None:
            if "list-type" in parse_qs(urlsplit(self.path).query):
                self._answer(200, _listing(root, self.path), {"Content-Type": "application/xml"})
            else:
                self._object(has_body=True)

        def _object(self, *, has_body: bool) -> None:
            key = unquote(urlsplit(self.path).path).strip("/")
            path = root / key
            if not path.is_file():
                self._answer(404, b"")
                return
            data = path.read_bytes()
            status = 200
            if asked := _RANGE.match(self.headers.get("Range", "")):
                status, data = 206, data[int(asked[1]) : int(asked[2]) + 1]
            if has_body:
                read.append(key)
            self._answer(status, data, has_body=has_body)

        def _answer(
            self,
            status: int,
            data: bytes,
            headers: dict[str, str] | None = None,
            *,
            has_body: bool = True,
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if has_body:
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Not to the standard error of the tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"127.0.0.1:{server.server_port}"
    environment.setenv("AWS_ENDPOINT_URL", f"http://{address}")
    environment.setenv("AWS_ACCESS_KEY_ID", "test")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
    environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
    environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
    try:
        yield Storage(address, read)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listing(root: Path, request: str) -> bytes:
    """The objects and common prefixes of a directory."""
    parts = urlsplit(request)
    bucket = unquote(parts.path).strip("/")
    query = parse_qs(parts.query)
    prefix = query.get("prefix", [""])[0]
    directory = root / bucket / prefix
    rows = []
    for entry in sorted(directory.iterdir()) if directory.is_dir() else ():
        key = escape(f"{prefix}{entry.name}")
        if entry.is_dir():
            rows.append(f"<CommonPrefixes><Prefix>{key}/</Prefix></CommonPrefixes>")
        else:
            size = entry.stat().st_size
            when = "2026-11-16T00:00:00.000Z"
            rows.append(
                f"<Contents><Key>{key}</Key><Size>{size}</Size>"
                f"<LastModified>{when}</LastModified></Contents>"
            )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
        f"<Name>{escape(bucket)}</Name><KeyCount>{len(rows)}</KeyCount>"
        f"<IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>"
    ).encode()
