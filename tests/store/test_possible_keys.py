"""A cheap look at the index never denies a key that a search would find."""

from __future__ import annotations

import random

import pytest
from tests.store.conftest import SMALL, OpenStore

from penstock.store import Draft, MessageStore, StoreConfig


def fill(store: MessageStore, keys: list[str]) -> None:
    for key in keys:
        store.append(Draft("orders", 0, b"body", f"UNIQ_KEY\x01{key}\x02".encode()))
        store.write()


@pytest.mark.parametrize("is_even", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_not_possible_is_not_found(open_store: OpenStore, seed: int, is_even: bool) -> None:
    chance = random.Random(seed)

    def key() -> str:
        # Few slots and letters whose hashes collide ("Aa", "BB"): chains, and equal hashes.
        length = 4 if is_even else chance.randrange(1, 6)
        return "".join(chance.choice(["Aa", "BB", "C#", "\u00e4x"]) for _ in range(length))

    stored = [key() for _ in range(60)]
    asked = stored + [key() for _ in range(200)]
    chance.shuffle(asked)
    store = open_store(SMALL)
    fill(store, stored)
    for _ in range(2):
        possible = store.possible_keys("orders", [one.encode() for one in asked])
        found = [at for at, one in enumerate(asked) if store.query("orders", one).slices]
        assert {asked[at] for at in found} == set(stored)
        assert set(found) <= set(possible)
        assert possible == sorted(set(possible))
        assert not store.possible_keys("another", [])
        store.close()
        store = open_store(SMALL)


def test_most_new_keys_are_not_possible(open_store: OpenStore) -> None:
    store = open_store(StoreConfig(max_hash_slot_num=1000, max_index_num=10_000))
    fill(store, [f"ID-{number:06d}" for number in range(300)])
    asked = [b"NEW-%06d" % number for number in range(300)]
    assert not store.possible_keys("orders", asked)
    assert store.possible_keys("orders", [*asked, b"ID-000007"]) == [300]


def test_a_store_without_an_index_has_no_keys(open_store: OpenStore) -> None:
    store = open_store(StoreConfig(message_index_enable=False))
    fill(store, ["ID"])
    assert store.possible_keys("orders", [b"ID"]) == []
