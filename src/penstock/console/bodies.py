"""Bodies for people: text, JSON, hexadecimal, base64; compressed ones are inflated, bounded."""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from dataclasses import dataclass

SHOWN_BYTES = 64 << 10
LINE_CHARACTERS = 160
MAX_INFLATED = 1 << 20
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


@dataclass(frozen=True, slots=True)
class ShownBody:
    """A body as one view shows it."""

    view: str
    text: str
    note: str
    """What was done to it, or left out; empty for the whole body as it is."""
    views: tuple[str, ...]


def show(body: bytes, view: str = "") -> ShownBody:
    """A body in the view that was asked for, or in the best one."""
    inflated, note = _inflated(body)
    text = _text(inflated)
    pretty = _pretty(inflated) if text is not None else None
    views = tuple(
        name
        for name, there in (("json", pretty), ("text", text), ("hex", ""), ("base64", ""))
        if there is not None
    )
    chosen = view if view in views else views[0]
    if chosen == "json" and pretty is not None:
        shown = pretty
    elif chosen == "text" and text is not None:
        shown = text
    elif chosen == "base64":
        # The body as it is stored: what is copied from here is decoded elsewhere.
        note = ""
        shown = base64.encodebytes(body[: SHOWN_BYTES // 4 * 3]).decode()
        if len(body) > SHOWN_BYTES // 4 * 3:
            note = f"the first {SHOWN_BYTES // 4 * 3:,} of {len(body):,} bytes"
    else:
        shown = _hex(inflated[: SHOWN_BYTES // 4])
        if len(inflated) > SHOWN_BYTES // 4:
            note = _joined(note, f"the first {SHOWN_BYTES // 4:,} of {len(inflated):,} bytes")
    if len(shown) > SHOWN_BYTES and chosen in ("json", "text"):
        note = _joined(note, f"the first {SHOWN_BYTES:,} of {len(shown):,} characters")
        shown = shown[:SHOWN_BYTES]
    return ShownBody(chosen, _visible(shown), note, views)


def line(body: bytes) -> str:
    """A body in one line of a table."""
    if not body:
        return ""
    text = _text(body[: LINE_CHARACTERS * 4])
    if text is None:
        # The cut may have hit the middle of a character.
        text = body[: LINE_CHARACTERS * 4].decode("utf-8", "replace")
        if text.count("\ufffd") > 3 or "\x00" in text:
            return f"{len(body):,} bytes: {body[:24].hex(' ')}{' ...' if len(body) > 24 else ''}"
    shown = " ".join(text.split())
    return _visible(shown if len(shown) <= LINE_CHARACTERS else f"{shown[:LINE_CHARACTERS]}...")


def is_text(body: bytes) -> bool:
    """Whether a body can be edited as text without loss."""
    return _text(body) is not None


def _text(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if "\x00" in text else text


def _pretty(body: bytes) -> str | None:
    if body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _inflated(body: bytes) -> tuple[bytes, str]:
    """What is compressed inside a body, at most `MAX_INFLATED` of it."""
    for magic, name, bits in ((b"\x1f\x8b", "gzip", 31), (b"\x78", "zlib", 15)):
        if body.startswith(magic):
            try:
                part = zlib.decompressobj(bits).decompress(body, MAX_INFLATED)
            except (zlib.error, gzip.BadGzipFile):
                continue
            return part, f"inflated from {len(body):,} bytes of {name}"
    return body, ""


def _hex(body: bytes) -> str:
    lines = []
    for at in range(0, len(body), 16):
        part = body[at : at + 16]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {plain}")
    return "\n".join(lines)


def _visible(text: str) -> str:
    """Characters that would steer the page, such as a change of direction, as their numbers."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _joined(first: str, second: str) -> str:
    return f"{first}; {second}" if first else second
