"""What is kept in memory is bounded by what it weighs, and what was asked for last stays longest."""

from __future__ import annotations

from rollouts.lib.weighted_lru import Kept


def test_what_was_asked_for_last_stays() -> None:
    kept: Kept[str, bytes] = Kept(10, len)
    for name in "abc":
        kept.put(name, b"123")
    assert kept.get("a") == b"123"
    kept.put("d", b"12345")
    assert [kept.get(name) for name in "abcd"] == [b"123", None, None, b"12345"]


def test_what_weighs_more_than_all_may_is_not_kept_and_leaves_room() -> None:
    kept: Kept[str, bytes] = Kept(10, len)
    kept.put("large", b"1" * 11)
    assert kept.get("large") is None
    kept.put("small", b"1" * 10)
    kept.put("small", b"2" * 10)
    assert kept.get("small") == b"1" * 10


def test_what_is_not_kept_of_many_is_made_together_and_nothing_is_an_answer_too() -> None:
    kept: Kept[str, str | None] = Kept(2)
    asked: list[list[str]] = []

    def make(names: list[str]) -> dict[str, str | None]:
        asked.append(names)
        return {name: None if name == "b" else name.upper() for name in names}

    assert kept.all("ab", make) == {"a": "A", "b": None}
    assert kept.all("bca", make) == {"b": None, "c": "C", "a": "A"}
    assert kept.all("cab", make) == {"c": "C", "a": "A", "b": None}  # more than are kept, and all are answered
    assert asked == [["a", "b"], ["c"], ["b"]]
