from __future__ import annotations

from dataclasses import fields

import pytest

from penstock.errors import ConfigError
from penstock.remoting import Limits


def test_the_defaults_are_rocketmqs_where_it_has_any() -> None:
    limits = Limits()
    assert limits.max_frame_bytes == 16_777_216
    assert limits.idle_seconds == 120
    assert limits.max_in_flight == 65_535


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
@pytest.mark.parametrize("value", [0, -1])
def test_every_limit_is_more_than_zero(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        Limits(**{name: value})


def test_the_write_marks_must_be_in_order() -> None:
    with pytest.raises(ConfigError, match="write_low <= write_high <= write_cut"):
        Limits(write_low=10, write_high=5)
    with pytest.raises(ConfigError, match="write_low <= write_high <= write_cut"):
        Limits(write_low=1, write_high=5, write_cut=4)
