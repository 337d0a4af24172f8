"""Recorded messages as training data: roles, tools, reasoning and turns."""

from __future__ import annotations

import json

import orjson
import pytest
from django.contrib.auth.models import User

from rollouts.exports.conversation import Texts, build_example
from rollouts.models import Project, Sample
from rollouts.samples import export_jsonl, load_body, to_json
from tests.rollouts.support.exports import export
from tests.rollouts.support.push import index_file, line
from tests.rollouts.support.query_rows import push
from tests.support import builders

pytestmark = pytest.mark.django_db


def test_conversations_have_messages_and_tools(project: Project, mate: User) -> None:
    call = {"id": "1", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "1+1?"}, {"type": "image_url", "image_url": {"url": ""}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "assistant", "content": "2"},
    ]
    run = builders.run(project, "agent")
    rows = [{"messages": messages, "response": "2", "tools": [{"name": "add"}], "score": 1.0, "group": "g"}]
    rows.append(
        {**rows[0], "messages": [*messages[:-1], {"role": "assistant", "content": "3"}], "response": "3", "score": 0}
    )
    push(run, rows)
    for file_format in ("jsonl", "parquet"):
        sft, card = export(mate, f"run={run.uid}", layout="sft", format=file_format)
        assert [message["role"] for message in sft[0]["messages"]] == [
            "system",
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        assert sft[0]["messages"][1]["content"] == "1+1?" and json.loads(sft[0]["tools"]) == [{"name": "add"}]
        assert sft[0]["messages"][2]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a":1}'}
        assert "- images (their messages are there): `2`" in card
        (pair,), _ = export(mate, f"run={run.uid}", layout="preferences", format=file_format)
        assert [message["role"] for message in pair["prompt"]] == ["system", "user"]
        assert [side[-1]["content"] for side in (pair["chosen"], pair["rejected"])] == ["2", "3"]
    text, _ = export(mate, f"run={run.uid}", layout="kto", form="text")
    assert text[0]["completion"] == "2" and isinstance(text[0]["prompt"], str)


def test_values_that_are_nested_deeply_are_json_text() -> None:
    deep: list[object] = []
    for _level in range(300):
        deep = [deep]
    call = {"function": {"name": "f", "arguments": deep}}
    message = {"role": "assistant", "content": {"found": deep}, "tool_calls": [call]}
    example = build_example(Texts("p", "", [message], [deep]), as_messages=True)
    (answer,) = example.completion
    texts = (answer["content"], answer["tool_calls"][0]["function"]["arguments"], example.tools or "")
    assert [json.loads(text) for text in texts] == [{"found": deep}, deep, [deep]]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_exported_and_distinguishes_equal_answers(project: Project, mate: User, key: str) -> None:
    run = builders.run(project, "thoughts")
    push(
        run,
        [
            {"prompt": "1+1?", "response": "2", "score": score, "group": "g",
             "messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2", key: thought}]}
            for thought, score in (("I count.", 1.0), ("I guess.", 0.0))
        ],
    )  # fmt: skip
    (pair,), _card = export(mate, f"run={run.uid}", layout="preferences")
    thoughts = [side[-1]["reasoning_content"] for side in (pair["chosen"], pair["rejected"])]
    assert thoughts == ["I count.", "I guess."]


def test_a_response_continues_the_answer_that_its_prompt_begins(project: Project, mate: User) -> None:
    run = builders.run(project, "begun")
    question = {"role": "user", "content": "1+1?"}
    part = {"type": "text", "text": "It is"}
    begun = (("It is", " 2."), ([part], " two."), ("<think>", "<think>Two.</think>2"), ("A", " pair: A"))
    for step, (content, response) in enumerate(begun, 1):
        prompt = [question, {"role": "assistant", "content": content}]
        push(run, [{"prompt": prompt, "response": response}], step=step)
    whole = [question, {"role": "assistant", "content": "2"}]
    push(run, [{"prompt": "Say 2", "messages": whole, "response": "2<|im_end|>"}], step=5)
    thought = [question, {"role": "assistant", "content": "B", "reasoning_content": "Hm."}]
    push(run, [{"prompt": "A or B", "messages": thought, "response": "<think>Hm.</think>\nB<|im_end|>"}], step=6)
    rows, _card = export(mate, f"run={run.uid}", layout="sft")
    answers = [row["messages"][-1]["content"] for row in rows[:4]]
    assert answers == ["It is 2.", "It is two.", "<think><think>Two.</think>2", "A pair: A"]
    assert [row["messages"] for row in rows[4:]] == [whole, thought]


@pytest.mark.parametrize("is_old", [False, True])
def test_half_a_surrogate_pair_and_nan_in_messages_are_replaced(
    project: Project, mate: User, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    if is_old:  # a body that an earlier version stored
        monkeypatch.setattr("rollouts.samples.parquet.to_stored_json", to_json)
    run = builders.run(project, "broken")
    answer = {"role": "assistant", "content": "2", "logprob": float("nan")}
    messages = [{"role": "user", "content": "1+1? \ud83d 数"}, answer]
    info = {"text": "\ud83d", "number": float("nan")}
    row = {"prompt": "1+1?", "response": "2", "messages": messages, "info": info}
    index_file(run, line(row), format="native")
    (sft,), _card = export(mate, f"run={run.uid}", layout="sft")
    assert sft["messages"][0]["content"] == "1+1? \ufffd 数"
    body = load_body(Sample.objects.get(step__run=run))
    assert body.messages == [{"role": "user", "content": "1+1? \ufffd 数"}, {**answer, "logprob": None}]
    full = orjson.loads(b"".join(export_jsonl(Sample.objects.filter(step__run=run))))  # which takes no broken JSON
    assert full["messages"] == body.messages and full["extras"]["info"] == {"text": "\ufffd", "number": None}


def test_pairs_are_of_last_turns_with_one_prompt(project: Project, mate: User) -> None:
    run = builders.run(project, "turns")
    turns = [("one", 1, "start"), ("one", 2, "after one"), ("two", 1, "start"), ("three", 1, "start")]
    push(
        run,
        [
            {"prompt": prompt, "response": f"{name} {turn}", "group": "g", "trajectory": name, "turn": turn,
             "score": {"one": 1.0, "two": 0.5, "three": 0.0}[name]}
            for name, turn, prompt in turns
        ],
    )  # fmt: skip
    assert Sample.objects.filter(step__run=run, final=False).count() == 1
    for layout in ("preferences", "reward"):
        rows, card = export(mate, f"run={run.uid}", layout=layout, pairs="all")
        assert [(row["prompt"], row["chosen"], row["rejected"]) for row in rows] == [("start", "two 1", "three 1")]
        assert "- turns before the last one of a trajectory: `1`" in card
        assert "- groups with nothing to compare: `1`" in card


def test_pairs_of_conversations_have_the_prompt_that_both_begin_with(project: Project, mate: User) -> None:
    run = builders.run(project, "users")
    first = [{"role": "system", "content": "help"}, {"role": "user", "content": "1+1?"}]

    def build_turns(*texts: str) -> list[dict[str, str]]:
        return [{"role": ("assistant", "user")[at % 2], "content": text} for at, text in enumerate(texts)]

    ends = [build_turns("2", "sure?", "yes"), build_turns("3", "no", "2"), build_turns("4", "no", "5")]
    push(
        run,
        [
            {"prompt": "1+1?", "response": end[-1]["content"], "score": 1.0 - at / 2, "group": "g", "index": at,
             "messages": [*first, *end]}
            for at, end in enumerate(ends)
        ],
    )  # fmt: skip
    rows, _card = export(mate, f"run={run.uid}", layout="preferences")
    assert [(row["prompt"], row["chosen"], row["rejected"]) for row in rows] == [(first, ends[0], ends[2])]
    rows, _card = export(mate, f"run={run.uid}", layout="preferences", pairs="all")
    assert {json.dumps(row["prompt"]) for row in rows} == {json.dumps(first)} and len(rows) == 3
