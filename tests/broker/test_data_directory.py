"""What brokers of one machine are called, and which of their stores may be served."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.data_directory import broker_names, make_data_directory, refuse_lost_stores
from penstock.errors import StoreError


def test_brokers_are_lettered_or_numbered() -> None:
    assert broker_names("broker-a", 1) == ["broker-a"]
    assert broker_names("broker-a", 3) == ["broker-a", "broker-b", "broker-c"]
    assert broker_names("mine", 3) == ["mine", "mine-2", "mine-3"]
    assert broker_names("broker-a", 26)[-1] == "broker-z"
    assert broker_names("broker-a", 27)[-1] == "broker-a-27"


def test_a_store_without_a_broker_is_named(tmp_path: Path) -> None:
    for name in ("broker-a", "broker-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    (tmp_path / "namesrv").mkdir()
    refuse_lost_stores(tmp_path, ["broker-a", "broker-b", "broker-c"])
    with pytest.raises(StoreError, match=r"only broker-a would run.*brokers=2.*broker-b away"):
        refuse_lost_stores(tmp_path, ["broker-a"])


def test_the_directory_is_created_or_an_error_gives_the_reason(tmp_path: Path) -> None:
    make_data_directory(tmp_path / "new" / "data")
    assert list((tmp_path / "new" / "data").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        make_data_directory(tmp_path / "file" / "data")
