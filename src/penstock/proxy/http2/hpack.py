"""Header compression of HTTP/2 (HPACK, RFC 7541), as a server needs it: decoding.

What a server sends is made of a few constant header blocks, which use no table and no Huffman
code (`literal`). Bytes come from peers: every length is bounded, and so is what they become.
"""

from __future__ import annotations

from typing import Final

MAX_TABLE_BYTES: Final = 4096
"""Size of the dynamic table: the default of HTTP/2, which the server does not change."""
MAX_LIST_BYTES: Final = 64 << 10
"""Names and values of one header list."""
_ENTRY_BYTES: Final = 32
_MAX_SHIFT: Final = 28
_MAX_KNOWN: Final = 16
_MAX_KNOWN_BYTES: Final = 1024

_STATIC_TEXT: Final = """
    :authority :method=GET :method=POST :path=/ :path=/index.html :scheme=http :scheme=https
    :status=200 :status=204 :status=206 :status=304 :status=400 :status=404 :status=500
    accept-charset accept-encoding=gzip,_deflate accept-language accept-ranges accept
    access-control-allow-origin age allow authorization cache-control content-disposition
    content-encoding content-language content-length content-location content-range content-type
    cookie date etag expect expires from host if-match if-modified-since if-none-match if-range
    if-unmodified-since last-modified link location max-forwards proxy-authenticate
    proxy-authorization range referer refresh retry-after server set-cookie
    strict-transport-security transfer-encoding user-agent vary via www-authenticate
"""
_Entry = tuple[str, str, int]
"""A header, and what it counts."""


def _entry(name: str, value: str) -> _Entry:
    return name, value, len(name) + len(value) + _ENTRY_BYTES


_STATIC: Final = [
    _entry(name, value.replace("_", " "))
    for name, _, value in (one.partition("=") for one in _STATIC_TEXT.split())
]
_NEWEST: Final = len(_STATIC)

# The code is canonical: it follows from the lengths of the codes of all 256 bytes and of the end.
_CODE_LENGTHS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b"
    "080606060505050606060606060607080f060c0a0d0607070707070707070707070707070707070707070707"
    "0807080d130d0e060f05060506050606060507070606060506070605050607070707070f0b0e0d1c14161414"
    "1616161716171717171718171818161718171717171516171617171816151416161717151716161815161717"
    "151516151716171714161616171616171a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a"
    "1c1b1b1b14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
    "1e"
)
_END: Final = 256
_FORBIDDEN: Final = {0: " ", 10: " ", 13: " "}


class HeaderError(Exception):
    """A header block that cannot be decoded; the connection cannot go on after it."""


class TooManyHeaders(Exception):
    """The header list of a block is too long."""


class MalformedHeaders(Exception):
    """The value of a header has a character that none may have."""


class _Node:
    """A node of the tree of codes: what follows one bit, and, once it was needed, eight bits."""

    __slots__ = ("bytes_after", "is_padding", "next", "symbol")

    def __init__(self) -> None:
        self.next: list[_Node | None] = [None, None]
        self.symbol: int | None = None
        self.is_padding = False
        """Whether the bits up to here may end a string: at most seven, all of them ones."""
        self.bytes_after: dict[int, tuple[bytes, _Node]] = {}


def _tree() -> _Node:
    root = _Node()
    code, before = 0, 0
    for symbol in sorted(range(_END + 1), key=lambda one: (_CODE_LENGTHS[one], one)):
        length = _CODE_LENGTHS[symbol]
        if before:
            code = (code + 1) << (length - before)
        before = length
        node = root
        for shift in range(length - 1, -1, -1):
            bit = code >> shift & 1
            child = node.next[bit]
            if child is None:
                child = node.next[bit] = _Node()
            node = child
        node.symbol = symbol
    node = root
    for _ in range(8):
        node.is_padding = True
        following = node.next[1]
        assert following is not None, "the code of the end has 30 bits"
        node = following
    return root


_ROOT: Final = _tree()


def decode_huffman(data: bytes) -> bytes:
    """A string that is in Huffman code; raises `HeaderError`."""
    node = _ROOT
    parts: list[bytes] = []
    append = parts.append
    for byte in data:
        try:
            part, node = node.bytes_after[byte]
        except KeyError:
            part, node = _step(node, byte)
        append(part)
    if not node.is_padding:
        raise HeaderError("a Huffman code is cut off")
    return b"".join(parts)


def _step(begin: _Node, byte: int) -> tuple[bytes, _Node]:
    made = bytearray()
    node = begin
    for shift in range(7, -1, -1):
        following = node.next[byte >> shift & 1]
        assert following is not None, "the code is complete"
        node = following
        if node.symbol is not None:
            if node.symbol == _END:
                raise HeaderError("a Huffman code has the end in it")
            made.append(node.symbol)
            node = _ROOT
    step = begin.bytes_after[byte] = bytes(made), node
    return step


class HeaderDecoder:
    """Decodes the header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._table = list(_STATIC)
        """The static table, then the dynamic one, which begins with its newest entry."""
        self._size = 0
        self._max_size = MAX_TABLE_BYTES
        self._known: dict[bytes, dict[str, str]] = {}
        """Blocks that depend on the table as it is now, and leave it so."""

    def decode(self, block: bytes) -> dict[str, str]:
        """The headers of a block; of a name that comes several times, the last value counts.

        Raises `HeaderError`, or `TooManyHeaders` or `MalformedHeaders`, after which the connection
        can go on.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        headers: dict[str, str] = {}
        is_lasting = True
        is_malformed = False
        room = MAX_LIST_BYTES
        position, end = 0, len(block)
        table = self._table
        try:
            while position < end:
                first = block[position]
                # Nearly all headers of a call are entries of a table with a number below 127: they
                # are read here, without another function.
                if 0x80 < first < 0xFF:
                    position += 1
                    index = first - 0x80
                    entry = table[index - 1] if index <= len(table) else self._entry(index)
                    name, value, size = entry
                elif first & 0x80:
                    index, position = _integer(block, position, 0x7F)
                    name, value, size = self._entry(index)
                elif first & 0xE0 == 0x20:
                    size, position = _integer(block, position, 0x1F)
                    if size > MAX_TABLE_BYTES or headers:
                        raise HeaderError(f"size {size} of the table")
                    self._resize(size)
                    is_lasting = False
                    continue
                else:
                    is_added = first & 0x40
                    index, position = _integer(block, position, 0x3F if is_added else 0x0F)
                    if index:
                        name = self._entry(index)[0]
                    else:
                        name, position = _string(block, position)
                    value, position = _string(block, position)
                    # Nearly all are printable, which is one question.
                    if not value.isprintable() and not _FORBIDDEN.keys().isdisjoint(
                        map(ord, value)
                    ):
                        is_malformed = True
                        # In the table it counts, and must not come from there later.
                        value = value.translate(_FORBIDDEN)
                    entry = _entry(name, value)
                    size = entry[2]
                    if is_added:
                        self._add(entry)
                        is_lasting = False
                room -= size
                if room >= 0:
                    headers[name] = value
        except IndexError:
            raise HeaderError("a header block is cut off") from None
        if is_malformed:
            raise MalformedHeaders("a header with NUL, CR or LF")
        if room < 0:
            raise TooManyHeaders(f"headers of more than {MAX_LIST_BYTES} bytes")
        if is_lasting:
            self._remember(block, headers)
        return headers

    def _remember(self, block: bytes, headers: dict[str, str]) -> None:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        if len(block) <= _MAX_KNOWN_BYTES:
            self._known[block] = headers

    def _entry(self, index: int) -> _Entry:
        if not index:
            raise HeaderError("a header with the index 0")
        if index > len(self._table):
            raise HeaderError(f"no header has the index {index}")
        return self._table[index - 1]

    def _add(self, entry: _Entry) -> None:
        # At once: a block that changes the table may be refused in the end.
        self._known.clear()
        self._table.insert(_NEWEST, entry)
        self._size += entry[2]
        if self._size > self._max_size:
            self._shrink()

    def _resize(self, size: int) -> None:
        self._known.clear()
        self._max_size = size
        self._shrink()

    def _shrink(self) -> None:
        while self._size > self._max_size:
            self._size -= self._table.pop()[2]


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    shift = 0
    while True:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
        shift += 7
        if shift > _MAX_SHIFT:
            raise HeaderError("a number is too long")


def _string(block: bytes, position: int) -> tuple[str, int]:
    is_huffman = block[position] & 0x80
    length, position = _integer(block, position, 0x7F)
    end = position + length
    if end > len(block):
        raise HeaderError("a string is cut off")
    data = block[position:end]
    if is_huffman:
        data = decode_huffman(data)
    # One character for each byte: sizes of the table are counted in bytes.
    return data.decode("latin-1"), end


def literal(name: str, value: str) -> bytes:
    """A header that is not added to a table."""
    return b"\x00" + _plain(name) + _plain(value)


def _plain(text: str) -> bytes:
    data = text.encode()
    if len(data) < 0x7F:
        return bytes((len(data),)) + data
    rest = len(data) - 0x7F
    made = bytearray((0x7F,))
    while rest >= 0x80:
        made.append(rest & 0x7F | 0x80)
        rest >>= 7
    made.append(rest)
    return bytes(made) + data
