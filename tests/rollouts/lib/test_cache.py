"""Caches in memory have a size limit and keep the most recently used entries."""

from __future__ import annotations

import weakref

from rollouts.lib.cache import Cache, NewestCache, cached, cached_by_key, cached_newest, clear_caches


def test_the_least_recently_used_entries_are_removed() -> None:
    stored: Cache[str, bytes] = Cache(10, len)
    for name in "abc":
        stored.put(name, b"123")
    assert stored.get("a") == b"123"
    stored.put("d", b"12345")
    assert [stored.get(name) for name in "abcd"] == [b"123", None, None, b"12345"]


def test_an_entry_that_is_larger_than_the_cache_is_not_stored() -> None:
    stored: Cache[str, bytes] = Cache(10, len)
    stored.put("large", b"1" * 11)
    assert stored.get("large") is None
    stored.put("small", b"1" * 10)
    stored.put("small", b"2" * 10)
    assert stored.get("small") == b"1" * 10


def test_missing_entries_are_computed_together_and_none_is_a_valid_value() -> None:
    stored: Cache[str, str | None] = Cache(2)
    requests: list[list[str]] = []

    def compute_values(names: list[str]) -> dict[str, str | None]:
        requests.append(names)
        return {name: None if name == "b" else name.upper() for name in names}

    assert stored.get_many("ab", compute_values) == {"a": "A", "b": None}
    assert stored.get_many("bca", compute_values) == {"b": None, "c": "C", "a": "A"}
    # more than are kept, and all are answered
    assert stored.get_many("cab", compute_values) == {"c": "C", "a": "A", "b": None}
    assert requests == [["a", "b"], ["c"], ["b"]]


def test_a_cached_function_is_called_once_until_all_caches_are_cleared() -> None:
    requests: list[int] = []

    @cached(2)
    def double(number: int) -> int:
        requests.append(number)
        return 2 * number

    assert [double(item) for item in (1, 2, 1, 3, 1, 2)] == [2, 4, 2, 6, 2, 4]
    assert requests == [1, 2, 3, 2]
    clear_caches()
    assert double(2) == 4 and requests == [1, 2, 3, 2, 2]


def test_a_method_cached_by_key_does_not_keep_its_object() -> None:
    calls: list[str] = []

    class Result:
        def __init__(self, key: str) -> None:
            self.key = key

        @cached_by_key(4)
        def total(self) -> int:
            calls.append(self.key)
            return len(self.key)

    first = Result("ab")
    kept = weakref.ref(first)
    assert first.total() == 2
    del first
    assert kept() is None
    assert (Result("ab").total(), Result("abc").total()) == (2, 3)
    assert calls == ["ab", "abc"]


def test_only_the_newest_version_of_a_key_is_kept() -> None:
    stored: NewestCache[str, bytes] = NewestCache(10, len)
    computed: list[str] = []

    def load(key: str, version: int, value: bytes = b"123") -> bytes:
        return stored.load(key, version, lambda: computed.append(f"{key}{version}") or value)  # type: ignore[func-returns-value]

    for version in range(8):
        assert load("a", version, b"%03d" % version) == b"%03d" % version
    assert load("a", 7) == b"007"
    load("b", 1)
    assert load("a", 7) == b"007", "eight versions had no room"
    assert load("a", 8, b"1" * 11) == b"1" * 11, "too heavy to keep"
    assert load("b", 1) == b"123"
    assert computed == [*(f"a{version}" for version in range(8)), "b1", "a8"]


def test_a_function_is_computed_once_per_version_and_for_each_of_its_other_arguments() -> None:
    computed: list[tuple[object, ...]] = []

    @cached_newest(2)
    def load(pk: int, created_at: str, version: int, split: str = "train") -> str:
        computed.append((pk, version, split))
        return f"{pk} {created_at} {version} {split}"

    for _again in range(2):
        assert load(1, "monday", 1) == "1 monday 1 train"
        assert load(1, "monday", 1, "eval") == "1 monday 1 eval"
    assert load(1, "monday", 2) == "1 monday 2 train"
    assert load(1, "monday", 1, "eval") == "1 monday 1 eval"
    assert load(1, "tuesday", 2) == "1 tuesday 2 train", "another run that got the same id"
    assert computed == [(1, 1, "train"), (1, 1, "eval"), (1, 2, "train"), (1, 2, "train")]
    clear_caches()
    load(1, "tuesday", 2)
    assert len(computed) == 5


def test_of_many_keys_those_with_a_new_version_are_computed_together() -> None:
    stored: NewestCache[str, str] = NewestCache(2)
    computed: list[list[str]] = []

    def load(versions: dict[str, int]) -> dict[str, str]:
        def compute(missing: list[str]) -> dict[str, str]:
            computed.append(missing)
            return {key: f"{key}{versions[key]}" for key in missing}

        return stored.load_many(versions, compute)

    assert load({"a": 1, "b": 1}) == {"a": "a1", "b": "b1"}
    assert load({"a": 2, "b": 1}) == {"a": "a2", "b": "b1"}
    assert load({"a": 2, "b": 1}) == {"a": "a2", "b": "b1"}
    assert load({"a": 2, "b": 2, "c": 1}) == {"a": "a2", "b": "b2", "c": "c1"}, "more than are kept"
    assert computed == [["a", "b"], ["a"], ["b", "c"]]
