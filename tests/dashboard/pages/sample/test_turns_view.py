"""Turns of a conversation: logged as messages, or flattened into text by the trainer."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.pages.sample import chat_roles, turns_view
from rollouts.models import Project, Sample
from rollouts.samples.record import Record
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

PROMPT = "system\nBe brief.\nuser\nWhat is the root of 16?\nassistant\n"
RESPONSE = (
    "<think>\nI need a tool.\n</think>\nLet me see.\n"
    '<tool_call>\n{"name": "python", "arguments": {"code": "import math\\nprint(math.sqrt(16))"}}\n</tool_call>\nuser\n'
    "<tool_response>\n4.0\n</tool_response>\nassistant\n"
    '<tool_call>\n{"name": "look", "arguments": {"at": 1, "by": 2}}\n</tool_call>\nuser\n'
    "<tool_response>\nTraceback (most recent call last):\nNameError\n</tool_response>\nassistant\nIt is 4.\n#### 4"
)


def render_turns(prompt: str = "", response: str = "", **more: Any) -> list[tuple[str, list[tuple[str, str]]]]:
    result = turns_view.build_turns(Record(prompt=prompt, response=response, **more), "s1")
    return [(turn.role, [(part.kind, part.text) for part in turn.parts]) for turn in result]


def test_turns_are_restored_from_flattened_roles() -> None:
    assert render_turns(PROMPT, RESPONSE) == [
        ("system", [("text", "Be brief.")]),
        ("user", [("text", "What is the root of 16?")]),
        (
            "assistant",
            [
                ("reasoning", "I need a tool."),
                ("text", "Let me see."),
                ("call", "import math\nprint(math.sqrt(16))"),
            ],
        ),
        ("assistant", [("call", '{\n  "at": 1,\n  "by": 2\n}')]),
        ("assistant", [("text", "It is 4.\n#### 4")]),
    ]


def test_only_the_answer_of_the_model_is_marked(project: Project, reader: Client) -> None:
    prompt = "system\nEnd with:\nAnswer: <value>\nuser\nWhat is 1+1?\nAnswer: 3 is wrong.\nassistant\n"
    index_file(builders.run(project), lines({"prompt": prompt, "response": "Answer: 2", "index": 0}), format="native")
    page = reader.get(f"/samples/{Sample.objects.get().pk}/?view=turns").content.decode()
    turns = page[page.index('class="turns"') :]
    assert "Answer: &lt;value&gt;" in turns and turns.count('<mark class="answer">') == 1
    assert '<mark class="answer">Answer: 2</mark>' in turns


def test_a_call_in_the_text_has_its_result_and_whether_it_failed() -> None:
    calls = [
        part
        for turn in turns_view.build_turns(Record(prompt=PROMPT, response=RESPONSE), "s1")
        for part in turn.parts
        if part.name
    ]
    assert [(call.name, call.result, call.failed) for call in calls] == [
        ("python", "4.0", False),
        ("look", "Traceback (most recent call last):\nNameError", True),
    ]


def test_calls_of_messages_are_paired_by_their_ids() -> None:
    requests = [{"id": key, "function": {"name": f"f{key}", "arguments": '{"a": 1, "b": 2}'}} for key in ("1", "2")]
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "reasoning_content": "both", "tool_calls": requests},
        {"role": "tool", "tool_call_id": "2", "content": "second"},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "Error: first"}]},
        {"role": "tool", "content": "nobody asked"},
        {"role": "assistant", "content": "done"},
    ]
    result = turns_view.build_turns(Record(messages=messages), "s1")
    assert [turn.role for turn in result] == ["user", "assistant", "tool", "assistant"]
    thought, first, second = result[1].parts
    assert (thought.kind, thought.text) == ("reasoning", "both")
    assert (first.result, first.failed, second.result) == ("Error: first", True, "second")


def test_reasoning_that_starts_in_the_prompt_is_recognised() -> None:
    assert render_turns("user\nhi\nassistant\n<think>\n", "hm\n</think>\n5")[-1] == (
        "assistant",
        [("reasoning", "hm"), ("text", "5")],
    )
    assert render_turns("bare prompt", "hm\n</think>\n5")[0] == ("prompt", [("text", "bare prompt")])


@pytest.mark.parametrize(
    ("begun", "response", "shown"),
    [
        ("It is", " 2.", "It is 2."),
        ([{"type": "text", "text": "It is"}], " two.", "It is two."),
        ("A", " pair: A", "A pair: A"),
        ("2", "2<|im_end|>", "2"),  # the whole conversation was logged
    ],
)
def test_a_response_continues_the_answer_that_its_prompt_begins(begun: Any, response: str, shown: str) -> None:
    messages = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": begun}]
    words = {"It is": "It is", "A": "A", "2": ""}[begun if isinstance(begun, str) else "It is"]
    turns = render_turns(f"user\n1+1?\nassistant\n{words}", response, messages=messages)
    assert turns == [("user", [("text", "1+1?")]), ("assistant", [("text", shown)])]


def test_reasoning_that_was_cut_off_lasts_to_the_end() -> None:
    assert render_turns(PROMPT, "<think>\non and on")[-1] == ("assistant", [("reasoning", "on and on")])


@pytest.mark.parametrize("text", ["the\nuser\nsays so", "assistant\nof the boss", "a\nsystem\nb", "tool\nuser\nx"])
def test_a_line_that_only_looks_like_a_role_is_text(text: str) -> None:
    assert render_turns(PROMPT, text)[-1] == ("assistant", [("text", text)])


def test_role_marks_of_a_chat_template_are_recognised() -> None:
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render_turns(prompt, "yes<|im_end|>") == [
        ("system", [("text", "Be brief.")]),
        ("user", [("text", "hi")]),
        ("assistant", [("text", "yes")]),
    ]


@pytest.mark.parametrize("broken", ["<tool_call>", "<tool_call>{", "<tool_call>[1]</tool_call>", "<think>", "</think>"])
def test_broken_marks_keep_the_text_and_raise_no_error(broken: str) -> None:
    assert turns_view.build_turns(Record(prompt=PROMPT, response=f"before {broken} after"), "s1")
    assert "after" in str(render_turns(PROMPT, f"before {broken} after"))


def test_role_marks_of_llama_are_recognised() -> None:
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    prompt = f"<|begin_of_text|>{head.format('system')}Be brief.<|eot_id|>{head.format('user')}1+1?<|eot_id|>"
    assert render_turns(prompt + head.format("assistant"), "It is 2.<|eot_id|>") == [
        ("system", [("text", "Be brief.")]),
        ("user", [("text", "1+1?")]),
        ("assistant", [("text", "It is 2.")]),
    ]


def test_a_content_part_whose_type_is_a_list_is_shown() -> None:
    """A JSON Schema has such types."""
    content = [{"type": ["string", "null"], "text": "a schema"}]
    assert render_turns(messages=[{"role": "user", "content": content}]) == [("user", [("text", "a schema")])]


def test_text_without_roles_has_no_turns() -> None:
    assert chat_roles.split_turns("What is 2+2?") == []
    assert chat_roles.split_turns("") == []
