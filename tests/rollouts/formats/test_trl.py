"""Special cases of TRL's dumps. Real dumps are tested in test_trainers.py and test_independent.py."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from rollouts.errors import UnreadableDumpError
from rollouts.formats import trl_completions
from tests.rollouts.support.trainer_dumps import TRL, encode_parquet, read_items, read_records


def test_texts_and_message_lists_of_one_prompt_are_the_same_prompt_and_answer() -> None:
    name = "completions/completions_00004.parquet"
    text, chat = (
        read_records(trl_completions, (TRL / tree / name).read_bytes(), step=4) for tree in ("trl_1.9.2", "plain")
    )
    assert [item.prompt for item in text] == [item.prompt for item in chat]
    assert text[0].messages is None and chat[0].messages and chat[0].messages[1]["role"] == "user"


def test_a_file_that_mixes_rows_of_train_and_eval_is_read() -> None:
    path = TRL / "eval_mixed_with_train/completions/completions_00003.parquet"
    records = read_records(trl_completions, path.read_bytes(), step=3)
    assert len(records) == 8
    sizes = Counter(record.prompt for record in records).values()
    assert sorted(sizes) == [2, 2, 4]  # a group of 4 that was trained on, two of 2 from the eval


def test_an_answer_with_tools_is_shown_turn_by_turn_without_empty_keys() -> None:
    turns = [
        {"role": "assistant", "content": "let me see", "name": None},
        {"role": "tool", "content": "42", "name": "calculator"},
        {"role": "assistant", "content": "42", "name": None},
    ]
    requests = [
        {"role": "system", "content": "Be brief.", "name": None},
        {"role": "user", "content": "6*7?", "name": "ann"},
    ]
    body = encode_parquet(step=[1], prompt=[requests], completion=[turns])
    (record,) = read_records(trl_completions, body)
    assert record.response == "let me see\ntool\n42\nassistant\n42"
    messages = [{key: value for key, value in turn.items() if value is not None} for turn in (*requests, *turns)]
    assert record.messages == messages


def test_a_tool_call_has_only_the_arguments_that_the_model_wrote() -> None:
    """Parquet gives each call the arguments of all calls."""
    calls = [
        tool_call("search", query="Faust", tags=[None, "a"]),
        tool_call("add", a=1, b={"x": 2, "y": None}),
        tool_call("now"),
    ]
    turn = {"role": "assistant", "content": None, "tool_calls": calls}
    (record,) = read_records(trl_completions, encode_parquet(step=[1], prompt=["q"], completion=[[turn]]))
    assert record.response == "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        for name, arguments in (
            ("search", '{"query":"Faust","tags":[null,"a"]}'), ("add", '{"a":1,"b":{"x":2}}'), ("now", "{}"),
        )
    )  # fmt: skip


def tool_call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool, "arguments": arguments}}


def test_the_score_is_the_sum_of_the_rewards_where_the_advantages_agree() -> None:
    body = encode_parquet(
        step=[1] * 3, prompt=["q"] * 3, completion=list("abc"), acc=[1.0, 0.0, None], style=[0.5, 0.25, None],
        pred=["x", "y", "z"], advantage=[1.0, -1.0, None],
    )  # fmt: skip
    first, second, third = read_records(trl_completions, body)
    assert [first.score, second.score, third.score] == [1.5, 0.25, None]
    assert (first.rewards, first.advantages, third.advantages) == ({"acc": 1.0, "style": 0.5}, [1.0], None)
    assert (first.extras, third.rewards) == ({"pred": "x"}, {"acc": None, "style": None})


@pytest.mark.parametrize("advantages", [[-1.0, 1.0], [0.0, 0.0]])
def test_there_is_no_score_where_the_advantages_contradict_the_sum_of_the_rewards(advantages: list[float]) -> None:
    body = encode_parquet(
        step=[1] * 2, prompt=["q"] * 2, completion=["a", "b"], acc=[1.0, 0.0], seconds=[3.0, 1.0], advantage=advantages
    )
    assert [(item.score, item.rewards["seconds"]) for item in read_records(trl_completions, body)] == [
        (None, 3.0),
        (None, 1.0),
    ]


def test_control_characters_and_broken_text_of_a_random_model_are_kept() -> None:
    body = encode_parquet(step=[1], prompt=["q\x00"], completion=["\ufffd\x1d\u2028"], pred=["x"])
    (record,) = read_records(trl_completions, body)
    assert (record.prompt, record.response) == ("q\x00", "\ufffd\x1d\u2028")


def test_text_that_is_not_utf8_is_shown_with_the_replacement_character() -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"], pa.binary()).buffers())
    (record,) = read_records(trl_completions, encode_parquet(step=[1], prompt=["q"], completion=broken))
    assert record.response == "caf\ufffd"


def test_a_row_without_a_prompt_is_reported_and_the_others_are_kept() -> None:
    problem, record = read_items(
        trl_completions, encode_parquet(step=[1, 1], prompt=[None, "q"], completion=["a", "b"])
    )
    assert (problem.line, record.response) == (1, "b")


@pytest.mark.parametrize(
    "body", [encode_parquet(question=["q"]), encode_parquet(prompt=["q"])[:0], encode_parquet(prompt=[], completion=[])]
)
def test_a_parquet_file_without_completions_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableDumpError, match=r"Parquet"):
        read_items(trl_completions, body)
