from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.remoting import format_address, parse_address
from penstock.remoting.addresses import resolve_host


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        (" broker-a.example:10911 ", ("broker-a.example", 10911)),
        ("[::1]:1", ("::1", 1)),
        ("[2001:db8::1]:65535", ("2001:db8::1", 65535)),
    ],
)
def test_host_and_port_are_read_from_text(text: str, parts: tuple[str, int]) -> None:
    assert parse_address(text) == parts


@pytest.mark.parametrize(
    "text",
    ["", ":", "localhost", "localhost:", ":9876", "h:0", "h:65536", "h:-1", "h:9 8", "::1:9876"],
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidArgument, match="host:port") as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)


@given(st.text())
def test_any_text_is_parsed_or_refused_and_nothing_else(text: str) -> None:
    try:
        host, port = parse_address(text)
    except InvalidArgument:
        return
    assert host
    assert 0 < port <= 65535


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (("10.0.0.5", 10911), "10.0.0.5:10911"),
        (("::ffff:10.0.0.5", 10911, 0, 0), "10.0.0.5:10911"),
        (("2001:db8::1", 10911, 0, 0), "[2001:db8::1]:10911"),
        ("/run/penstock.sock", "/run/penstock.sock"),
        (None, "unknown"),
        ((), "unknown"),
    ],
)
def test_the_name_of_a_socket_becomes_text(name: object, text: str) -> None:
    assert format_address(name) == text


@given(st.ip_addresses().map(str), st.integers(1, 65535))
def test_formatted_addresses_can_be_parsed_again(host: str, port: int) -> None:
    again = parse_address(format_address((host, port)))
    assert again[1] == port
    assert again[0] == host or host.startswith("::ffff:")


@pytest.mark.parametrize("text", ["10.0.0.5", "::1", "2001:db8::1"])
async def test_an_address_is_its_own_address(text: str) -> None:
    assert await resolve_host(text) == text


async def test_a_name_is_looked_up() -> None:
    assert await resolve_host("localhost") in ("127.0.0.1", "::1")


async def test_an_unknown_name_is_refused_with_the_name() -> None:
    with pytest.raises(InvalidArgument, match="no-such-host"):
        await resolve_host("no-such-host.invalid")
