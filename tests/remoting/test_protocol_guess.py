from __future__ import annotations

import pytest

from penstock.remoting.protocol_guess import guess_protocol


@pytest.mark.parametrize(
    ("data", "client"),
    [
        (b"\x16\x03\x01\x02\x00", "TLS"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 5 6\r\n", "PROXY preamble"),
        (b"\r\n\r\n\x00\r\nQUIT\n\x21", "PROXY preamble"),
        (b"GET / HTTP/1.1\r\n", "HTTP client"),
        (b"PRI * HTTP/2.0\r\n\r\nSM", "gRPC"),
        (b"SSH-2.0-OpenSSH", "SSH"),
        (b"\xff\xff\xff\xff", "out of step"),
        (b"", "out of step"),
    ],
)
def test_the_first_bytes_show_the_kind_of_client(data: bytes, client: str) -> None:
    assert client in guess_protocol(data)
