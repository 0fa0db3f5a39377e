"""The names of releases."""

from __future__ import annotations

import pytest

from penstock.protocol.versions import readable_version, version_text


@pytest.mark.parametrize(
    ("version", "text"), [(479, "V5_3_3"), (413, "V5_0_0"), (513, "V5_5_0"), (407, "V4_9_7")]
)
def test_versions_have_names(version: int, text: str) -> None:
    assert version_text(version) == text
    assert readable_version(version) == text[1:].replace("_", ".")


@pytest.mark.parametrize("version", [-1, 0, 212])
def test_numbers_before_4_0_have_no_name(version: int) -> None:
    assert readable_version(version) is None
