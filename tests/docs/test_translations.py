"""A translated page follows its English original, section by section."""

from __future__ import annotations

import pytest
from tools.translations import ROOT, TRANSLATIONS, outdated, recorded, sections


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize(("english", "translated"), TRANSLATIONS.items())
def test_a_translation_has_what_the_english_page_says(english: str, translated: str) -> None:
    changed = outdated(text(english), text(translated))
    assert changed == [], (
        f"{english} changed and {translated} did not: translate the change, then run "
        "python -m tools.translations"
    )


@pytest.mark.parametrize(("english", "translated"), TRANSLATIONS.items())
def test_both_pages_link_to_each_other_at_the_top(english: str, translated: str) -> None:
    for page, other in ((english, translated), (translated, english)):
        head = sections(text(page))[0].text.lstrip()
        assert f"]({other.rpartition('/')[2]})" in "\n".join(head.splitlines()[:4])


PAGE = (
    "# Title\n\nHello.\n\n## One\n\n```python\nf()  # a comment\n# more\n```\n\n## Two\n\nText.\n"
)
COPY = "# 标题\n\n你好。\n\n## 一\n\n```python\nf()  # 注释\n# 更多\n```\n\n## 二\n\n文字。\n"


def test_a_change_of_the_english_page_is_noticed() -> None:
    assert outdated(PAGE, COPY) == ["# Title", "## One", "## Two"]
    copy = recorded(PAGE, COPY)
    assert outdated(PAGE, copy) == []
    assert recorded(PAGE, copy) == copy
    assert outdated(PAGE.replace("Text.", "Another text."), copy) == ["## Two"]
    assert outdated(PAGE.replace("Text.", "\n  Text."), copy) == []
    assert outdated(PAGE.replace("f()", "g()"), recorded(PAGE.replace("f()", "g()"), COPY)) == [
        "## One"
    ]
    assert len(outdated(PAGE + "## Three\n\nNew.\n", copy)) == 1
