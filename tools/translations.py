"""Which sections of a translated page follow their English original.

Each heading of a translation is followed by ``<!-- en: 1a2b3c4d5e6f -->``: the digest of the
English section, in the same order, that it was translated from. When the English section changes,
its digest does, and ``tests/docs/test_translations.py`` names it. Translate the change, then record
the new digests:

    python -m tools.translations
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TRANSLATIONS = {
    "README.md": "README.zh-CN.md",
    "docs/tutorial.md": "docs/tutorial.zh-CN.md",
}
"""English pages, and what each is translated to."""

_HEADING = re.compile(r"^#{1,2} .+$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"\n?<!-- en: ([0-9a-f]*) -->\n")
_COMMENT = re.compile(r"\s+# .*$", re.MULTILINE)


class Section(NamedTuple):
    """A heading of the first or second level, and the text below it."""

    title: str
    text: str

    @property
    def digest(self) -> str:
        """A digest of heading and text; line breaks and indentation do not count."""
        words = " ".join(f"{self.title} {_MARK.sub('', self.text)}".split())
        return hashlib.sha256(words.encode()).hexdigest()[:12]

    @property
    def mark(self) -> str | None:
        """The digest of the original that is recorded below the heading."""
        found = _MARK.match(self.text)
        return None if found is None else found[1]

    @property
    def code(self) -> list[str]:
        """The code blocks without comments, which are translated."""
        return [_COMMENT.sub("", block) for block in _FENCE.findall(self.text)]


def sections(page: str) -> list[Section]:
    """The sections of a page in order; a ``#`` within a code block is no heading."""
    blocks = [(found.start(), found.end()) for found in _FENCE.finditer(page)]
    headings = [
        found
        for found in _HEADING.finditer(page)
        if not any(start < found.start() < end for start, end in blocks)
    ]
    ends = [found.start() for found in headings[1:]] + [len(page)]
    return [
        Section(found[0].strip(), page[found.end() : end])
        for found, end in zip(headings, ends, strict=True)
    ]


def outdated(english: str, translated: str) -> list[str]:
    """The titles of English sections that the translation does not follow."""
    originals, copies = sections(english), sections(translated)
    if len(originals) != len(copies):
        return [f"{len(originals)} sections in English, {len(copies)} in the translation"]
    return [
        original.title
        for original, copy in zip(originals, copies, strict=True)
        if copy.mark != original.digest or copy.code != original.code
    ]


def recorded(english: str, translated: str) -> str:
    """The translated page with the digests of the English sections as they are now."""
    originals, copies = sections(english), sections(translated)
    parts = [translated[: translated.index(copies[0].title)]]
    for original, copy in zip(originals, copies, strict=True):
        text = _MARK.sub("\n", copy.text, count=1).lstrip("\n")
        parts.append(f"{copy.title}\n<!-- en: {original.digest} -->\n\n{text}")
    return "".join(parts)


def main() -> None:
    """Record the digests of all translations."""
    for english, translated in TRANSLATIONS.items():
        page = ROOT / translated
        original = (ROOT / english).read_text(encoding="utf-8")
        page.write_text(recorded(original, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
