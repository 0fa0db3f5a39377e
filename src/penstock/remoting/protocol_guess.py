"""Guesses from its first bytes what a peer speaks that does not speak RocketMQ; for the log."""

from __future__ import annotations

_GREETINGS = (
    (b"\x16\x03", "a TLS client; this port takes plain connections only, see the tls settings"),
    (b"PROXY ", "a load balancer that sends the PROXY preamble; turn that off for this port"),
    (
        b"\r\n\r\n\x00\r\nQUIT\n",
        "a load balancer that sends the PROXY preamble (v2); turn that off",
    ),
    (b"SSH-", "an SSH client"),
    (b"PRI * HTTP/2", "a gRPC or HTTP/2 client; RocketMQ 5 gRPC clients need Apache's proxy"),
)
_HTTP_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"CONNECT ")
SHOWN_BYTES = 16


def guess_protocol(data: bytes) -> str:
    """The kind of client that most probably sent ``data`` to a remoting port."""
    for greeting, client in _GREETINGS:
        if data.startswith(greeting):
            return client
    if data.startswith(_HTTP_METHODS):
        return "an HTTP client"
    return "no known protocol, or a RocketMQ peer out of step"
