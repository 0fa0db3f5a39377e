"""A process that dies while it adds the keys of one write leaves a gap in the index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.store import Draft, MessageStore, StoreConfig
from penstock.store.tools.verify import verify

CONFIG = StoreConfig(mapped_file_size_commit_log=65_536, max_hash_slot_num=20, max_index_num=400)


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


class DyingWords:
    """The words of an index file, of which only so many can be stored to."""

    def __init__(self, words: Any, stores: int) -> None:
        self._words, self._left = words, stores

    def __getitem__(self, at: int) -> int:
        return int(self._words[at])

    def __setitem__(self, at: int, word: int) -> None:
        if not self._left:
            raise Killed
        self._left -= 1
        self._words[at] = word


def draft(number: int) -> Draft:
    properties = f"UNIQ_KEY\x01id-{number}\x02KEYS\x01a-{number} b-{number}\x02".encode()
    return Draft("orders", 0, b"body", properties, born_timestamp=1)


@pytest.mark.parametrize("stores", [0, 4, 17])
def test_the_next_process_adds_the_keys_again_and_that_is_no_damage(
    tmp_path: Path, stores: int
) -> None:
    store = MessageStore(tmp_path / "store", CONFIG)
    store.open()
    for number in range(3):
        store.append(draft(number))
        store.write()
    for number in range(3, 9):
        store.append(draft(number))
    index = store._context.index
    assert index is not None
    index._words = DyingWords(index._words, stores)  # type: ignore[assignment]
    with pytest.raises(Killed):
        store.write()
    store.abandon()

    with MessageStore(tmp_path / "store", CONFIG) as again:
        for number in range(9):
            for key in (f"id-{number}", f"a-{number}", f"b-{number}"):
                assert len(again.query("orders", key).slices) == 1
    assert verify("store", str(tmp_path / "store")).damages == []
