"""A process that dies while it adds the keys of one write leaves a gap in the index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.store import Draft, MessageStore, StoreConfig, key_index
from penstock.store.tools.verify import verify

CONFIG = StoreConfig(mapped_file_size_commit_log=65_536, max_hash_slot_num=20, max_index_num=400)


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


def draft(number: int) -> Draft:
    properties = f"UNIQ_KEY\x01id-{number}\x02KEYS\x01a-{number} b-{number}\x02".encode()
    return Draft("orders", 0, b"body", properties, born_timestamp=1)


def test_the_next_process_adds_the_keys_again_and_that_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MessageStore(tmp_path / "store", CONFIG)
    store.open()
    for number in range(3):
        store.append(draft(number))
        store.write()
    pack, calls = key_index._pack_unit, iter(range(100))

    def pack_until_killed(*arguments: Any) -> None:
        if next(calls) == 4:
            raise Killed
        pack(*arguments)

    for number in range(3, 9):
        store.append(draft(number))
    with monkeypatch.context() as patched:
        patched.setattr(key_index, "_pack_unit", pack_until_killed)
        with pytest.raises(Killed):
            store.write()
    store.abandon()

    with MessageStore(tmp_path / "store", CONFIG) as again:
        for number in range(9):
            for key in (f"id-{number}", f"a-{number}", f"b-{number}"):
                assert len(again.query("orders", key).slices) == 1
    assert verify("store", str(tmp_path / "store")).damages == []
