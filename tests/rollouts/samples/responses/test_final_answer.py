"""The final answer of a response."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rollouts.samples.responses.final_answer import extract_final_answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("so 17 * 12\n#### 204", "204"),
        ("#### 7\nno, wait\n#### $1,204.\n", "1204"),
        (r"first \boxed{3}, then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("#### Step 1: think\nAnswer: 34", "34"),
        (r"Answer: \boxed{34}", "34"),
        ("答案 answer：北京\n", "北京"),
        (r"never closed \boxed{12", ""),
        ("1, 2, 3", ""),
        ("####", ""),
        ("", ""),
        (r"\boxed{(1, 234)}", "(1, 234)"),
        ("Answer: 40<|im_end|>", "40"),
        ("#### 40 </s><|endoftext|>\n", "40"),
        ("Answer: a <|x b|>", "a <|x b|>"),
    ],
)
def test_an_answer_is_read_from_the_last_marker_that_rewards_look_for(response: str, answer: str) -> None:
    assert extract_final_answer(response, {}) == answer


@pytest.mark.parametrize(
    ("logged", "answer"),
    [
        ({"pred": "1,204"}, "1204"),
        ({"pred": 3.0}, "3"),
        ({"pred": "[INVALID]"}, ""),
        ({"pred": None}, "9"),
        ({"pred": [1]}, "9"),
    ],
)
def test_an_answer_that_the_reward_function_logged_is_preferred_to_the_text(
    logged: dict[str, Any], answer: str
) -> None:
    assert extract_final_answer("#### 9", logged) == answer


def test_text_that_makes_patterns_slow_is_read_in_limited_time() -> None:
    before = time.process_time()
    for text in (
        "\\boxed{" * 200_000,
        "answer:" * 200_000,
        "answer" + " " * 1_000_000,
        "#" * 1_000_000,
        "{" * 1_000_000,
        "</s> " * 20_000 + "x",
        "<|a|>" * 20_000 + "x",
        " " * 100_000 + "x",
    ):
        assert len(extract_final_answer(text, {})) <= 200
        assert len(extract_final_answer("", {"pred": text})) <= 200
    assert time.process_time() - before < 2
