"""Long responses: repetitions are folded, answers marked, an outline is shown, and no text is lost."""

from __future__ import annotations

import html
import re

import pytest

from dashboard.pages.common import formatting
from dashboard.pages.sample import outline, repetition, text_view

LOOP = "Let me see.\n" + "Wait, let me check again.\n" * 43 + "So it is 5, and that follows from what was said.\n" * 6


def strip_markup(rendered_html: str) -> str:
    """The text of rendered HTML, without what the page added."""
    without = re.sub(r"<summary>.*?</summary>", "", rendered_html)
    return html.unescape(re.sub(r"<[^>]*>", "", without))


def test_a_repeated_line_is_folded_after_its_first_occurrence() -> None:
    fold = repetition.find_repetitions(LOOP + "#### 5\n" + "and the rest of it. " * 20)[0]
    assert fold.times == 43
    assert LOOP[fold.start : fold.end] == "Wait, let me check again.\n" * 42


@pytest.mark.parametrize(
    "piece", ["再检查一遍，每个数字都要核对。", "go round and round ", "Is it 3.5? No. Yes. ", "a\nb\nc\n\n"]
)
def test_repeated_sentences_words_and_blocks_of_lines_are_folded(piece: str) -> None:
    (fold,) = repetition.find_repetitions(
        "It begins.\n" + piece * 60 + "\nIt ends here, with words of its own. " + "x y z " * 30
    )
    assert fold.times in (59, 60)


MIXED = "The answer هو الجواب 答案是四十二 and we repeat "


@pytest.mark.parametrize(
    "piece",
    [
        MIXED,
        "Let us see, 42 هو الجواب. 答案是四十二。 ",
        "答案是四十二الجواب",
        "a",
        "".join(f"w{n} " for n in range(40)),
    ],
)
@pytest.mark.parametrize("chars", [4000, 2_000_000])
def test_a_loop_is_folded_in_any_script_and_length(piece: str, chars: int) -> None:
    text = "Before it loops, 7 words are said. " + piece * (chars // len(piece)) + "\nThe end."
    (fold,) = repetition.find_repetitions(text)
    assert fold.end - fold.start > chars - 4 * len(piece) - repetition.VISIBLE_END_CHARS
    assert (fold.end - fold.start) % len(piece) <= 1  # the last space may be a line break


def test_a_loop_of_more_lines_than_are_compared_is_folded_to_its_end() -> None:
    text = "It begins.\n" + "again\n" * 250_000 + "It ends. " * 40
    fold = repetition.find_repetitions(text)[0]
    assert fold.times == 250_000 and text[fold.end : fold.end + 8] == "It ends."
    pair = "again\nand so on\n"
    fold = repetition.find_repetitions(pair * 120_000 + "It ends. " * 40)[0]
    assert (fold.times, fold.end) == (120_000, len(pair) * 120_000)


def test_two_loops_of_a_long_line_are_folded_and_the_text_between_them_is_shown() -> None:
    between = "".join(f"{n} is not {n + 1}; " for n in range(20_000))
    folds = repetition.find_repetitions(MIXED * 9000 + between + "再检查一遍" * 9000 + " end")
    assert [fold.times for fold in folds] == [9000, 9000]
    assert folds[0].end <= len(MIXED) * 9000 < len(MIXED) * 9000 + len(between) <= folds[1].start


@pytest.mark.parametrize("long", [MIXED * 20_000, "".join(f"{n} هو 答案" for n in range(99_999)), "x" * 900_000])
def test_a_long_line_is_laid_out_in_short_blocks_and_nothing_is_lost(long: str) -> None:
    rendered = [text_view.build_text_view(long).html, formatting.render_highlighted_text(long)]
    for html_text in rendered:
        assert strip_markup(html_text) == long
        assert max(map(len, html_text.split('<span class="block">'))) < 3 * formatting.BLOCK_CHARS
    paragraphs = formatting.render_markdown(long).split("</p>")
    assert max(map(len, paragraphs)) <= formatting.MAX_PARAGRAPH_CHARS + 100


def test_a_block_does_not_end_between_a_letter_and_its_mark() -> None:
    blocks = list(formatting.split_into_blocks("e\u0301" * 60_000))
    assert len(blocks) > 1 and not any(block.startswith("\u0301") for block in blocks)


@pytest.mark.parametrize("kept", ["one two three", "a\n" * 3, "1. x\n2. y\n3. z\n" * 2, "", "\n", "yes " * 4])
def test_short_repetitions_are_not_folded(kept: str) -> None:
    assert repetition.find_repetitions(kept) == []


def test_the_end_of_a_text_is_always_visible() -> None:
    text = "again and again\n" * 400
    rendered = text[repetition.find_repetitions(text)[-1].end :]
    assert rendered.startswith("again")
    assert repetition.VISIBLE_END_CHARS <= len(rendered) < repetition.VISIBLE_END_CHARS + len("again and again\n")


@pytest.mark.parametrize(
    "whole",
    [
        LOOP,
        "plain",
        "x<b>" * 60_000,
        "line & line\n" * 40_000,
        "a #### 1 <i>\n" * 900,
        "\\boxed{1}" * 1500,
        "é\u202e\n" * 70,
    ],
)
def test_rendering_keeps_every_character(whole: str) -> None:
    assert strip_markup(text_view.build_text_view(whole, ["line"]).html) == whole


def test_a_hit_that_crosses_the_end_of_a_block_is_marked_in_both() -> None:
    text = "".join(f"{n} times {n} is {n * n}\n" for n in range(1000, 20_000))
    first = next(formatting.split_into_blocks(text))
    start = len(first) - 5
    text = text[:start] + "left\nright" + text[start + 10 :]
    rendered = text_view.build_text_view(text, ["left\nright"])
    assert '<mark class="hit">left\n</mark></span><span class="block"><mark class="hit">right</mark>' in rendered.html
    assert strip_markup(rendered.html) == text


def test_answers_and_hits_are_marked_up_to_a_limit_that_is_reported() -> None:
    few = text_view.build_text_view("the sum\n#### 298", ["SUM"])
    assert '<mark class="hit">sum</mark>' in few.html
    assert '<mark class="answer">#### 298</mark>' in few.html
    assert not few.marks_omitted
    many = text_view.build_text_view("".join(f"#### {n}\n" for n in range(1200)))
    assert many.marks_omitted
    assert many.html.count("<mark") == text_view.MAX_MARKS


def test_the_answer_of_a_text_of_megabytes_is_marked_at_its_end() -> None:
    long = "".join(f"{n} and so on.\n" for n in range(150_000)) + "Answer: 42"
    assert '<mark class="answer">Answer: 42</mark>' in text_view.build_text_view(long).html


@pytest.mark.parametrize(
    "whole",
    [
        "#### 5\nThe Answer : 6 and \\boxed{\\frac{1}{2}} #####7\nanswer: 8 ####9",
        "answer answer: 1\nreanswer: 2\nANSWER：3\nanswer:\n4\n\\boxed{ \\boxed{5} ###",
        "answer: " + "x" * 399 + "##### 6 answer: 7",
        "İ answer: 8 in a text that is longer in small letters, \\BOXED{9}",
        "anſwer: 10",
        "",
    ],
)
def test_answers_are_those_that_a_search_of_the_whole_text_finds(whole: str) -> None:
    for start in (0, 3, len(whole) // 2):
        everywhere = [result.span() for result in formatting.ANSWER_PATTERN.finditer(whole, start)]
        assert [result.span() for result in formatting.find_answers(whole, start)] == everywhere


def test_text_is_escaped_and_control_characters_are_named() -> None:
    assert formatting.render_text("a <b>\t& 'c'") == "a &lt;b&gt;\t&amp; &#x27;c&#x27;"
    assert 'data-code="U+0000"' in formatting.render_text("a\0b")


RESPONSE = (
    "<think>\nhm\n</think>\n<tool_call>\n{}\n</tool_call>\nuser\n<tool_response>\n4\n</tool_response>\nassistant\n"
    "```python\nprint(4)\n```\nThe answer: 4\n#### 4"
)


def test_an_outline_names_turns_reasoning_calls_code_and_the_last_answer() -> None:
    result = outline.find_landmarks(RESPONSE, "r")
    assert [item.label for item in result] == [
        "end of reasoning", "tool call", "user", "assistant", "python", "answer",
    ]  # fmt: skip
    assert RESPONSE[result[-1].at :] == "#### 4"
    view = text_view.build_text_view(RESPONSE)
    assert all(f'id="{landmark.name}"' in view.html for landmark in view.landmarks)


def test_data_on_the_line_of_a_fence_is_not_a_language() -> None:
    """CURE's model writes the input of a test there."""
    result = outline.find_landmarks("```0 3\n```\n```sh\nls\n```\n```4\n```", "r")
    assert [item.label for item in result] == ["code", "sh", "code"]


def test_an_outline_stays_short_and_still_has_the_answer() -> None:
    result = outline.find_landmarks("```\nx\n```\n" * 500 + "#### 1", "r")
    assert len(result) == outline.MAX_LANDMARKS
    assert result[-1].kind == "answer"
