"""Properties of responses that are computed from their texts."""

from __future__ import annotations

import numpy as np
import pytest

from rollouts.samples.responses.text_properties import (
    TEXT_PROPERTY_BITS,
    compute_text_properties,
    has_tool_call,
    scan_responses,
)


def compute_facets(
    responses: list[str], prompts: list[str] | None = None, tokens: list[int | None] | None = None
) -> list[set[str]]:
    """Facets of the responses of one group, as one dump."""
    scanned = scan_responses(prompts or ["q"] * len(responses), responses)
    unknown = [None] * len(responses)
    hashes = np.array([hash(response) for response in responses])
    bits = compute_text_properties(scanned, hashes, tokens or unknown, unknown)
    return [{name for name, bit in TEXT_PROPERTY_BITS.items() if bit & int(row)} for row in bits]


def generate_prose(seed: int, words: int) -> str:
    random = np.random.default_rng(seed)
    return " ".join(f"w{number}" for number in random.integers(0, 5000, words)) + "."


@pytest.mark.parametrize(
    "text", ["W" * 200, "prose first. " + "Wait, let me check. " * 30, "もう一度確認します。" * 20, "1 2 3 " * 500]
)
def test_a_text_that_repeats_itself_is_a_repetition(text: str) -> None:
    assert compute_facets([text]) == [{"repetition"}] or "repetition" in compute_facets([text])[0]


@pytest.mark.parametrize(
    "text", ["", "4", generate_prose(1, 800), "a" * 40, "\n" * 500 + "x", "| a | b |\n|---|---|\n| 1 | 2 |\n"]
)
def test_ordinary_text_is_no_repetition(text: str) -> None:
    assert "repetition" not in compute_facets([text])[0]


def test_a_response_in_a_script_the_prompt_does_not_use_is_a_language_mix() -> None:
    english, chinese = "How many apples are there?", "一共有多少个苹果?"
    mixed = "First we add, 然后我们把所有的苹果加起来得到答案, so it is 4."
    assert compute_facets([mixed, mixed, "Just 4.", "θ ≈ π, 👍 café — ok"], [english, chinese, english, english]) == [
        {"language-mix", "duplicate"}, {"duplicate"}, set(), set(),
    ]  # fmt: skip


def test_kanji_in_a_japanese_response_is_no_language_mix() -> None:
    assert compute_facets(["合計金額計算結果合計三百円"], ["いくらですか"]) == [set()]


def test_white_space_is_empty_and_no_duplicate() -> None:
    assert compute_facets(["", " \n", "4"]) == [{"empty"}, {"empty"}, set()]


def test_equal_responses_of_a_group_are_duplicates() -> None:
    assert compute_facets(["4", "5", "4"]) == [{"duplicate"}, set(), {"duplicate"}]


def test_a_missing_marker_is_found_if_the_other_responses_have_it() -> None:
    answers = [f"{generate_prose(i, 20)} Answer: {i}" for i in range(9)]
    assert compute_facets([*answers, generate_prose(99, 5)])[-1] == {"no-marker"}
    assert compute_facets([*answers[:5], *(generate_prose(i, 5) for i in range(50, 55))])[-1] == set()


def test_a_truncated_response_is_recognised_by_its_missing_end() -> None:
    answers = [f"{generate_prose(i, 20)} Answer: {i}" for i in range(9)]
    assert compute_facets([*answers, generate_prose(99, 60)[:-4] + " and then"])[-1] == {"no-marker", "trunc?"}
    assert compute_facets([generate_prose(i, 20) + " and then" for i in range(9)])[-1] == set()


def test_several_responses_of_the_maximum_length_are_truncated() -> None:
    texts = [generate_prose(i, 5) for i in range(6)]
    assert compute_facets(texts, tokens=[10, 20, 30, 512, 512, 40]) == [
        set(),
        set(),
        set(),
        {"trunc?"},
        {"trunc?"},
        set(),
    ]
    assert compute_facets(texts, tokens=[10, 20, 30, 512, 500, 40]) == [set()] * 6
    assert compute_facets(texts, tokens=[8] * 6) == [set()] * 6


@pytest.mark.parametrize(
    ("response", "messages", "called"),
    [
        ("<tool_call>{}</tool_call>", [], True),
        ("I look.\nuser\n<tool_response>\n4\n</tool_response>\nassistant\n4", [], True),
        ("I look.\ntool\n4\nassistant\nIt is 4.", [], True),
        ("A hammer is a\ntool\nfor nails.", [], False),
        ("4", [{"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]}], True),
        ("4", [{"role": "tool", "content": "4"}], True),
        ("4", [{"role": "user", "content": "2+2"}, {"role": "assistant", "tool_calls": []}], False),
    ],
)
def test_a_tool_call_is_found_in_messages_and_in_text(
    response: str, messages: list[dict[str, object]], called: bool
) -> None:
    assert has_tool_call(response, messages) is called
