"""Files of generations that many tools write without naming a format. Real files: data/others."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollouts.errors import UnreadableDumpError
from rollouts.formats import FORMATS, TOKEN_ONLY_FORMATS, select_format
from rollouts.samples.record import LineProblem, Record, SkippedRow
from tests.rollouts.real_dumps import DUMPS, list_dumps
from tests.rollouts.support.trainer_dumps import encode_parquet, read_items

FORMS = {form.name: form for form in FORMATS}
PROMPT_MESSAGES = [{"role": "user", "content": "6*7?"}]
CALL = {"id": "1", "function": {"name": "times", "arguments": '{"a": 6}'}}
TURNS = [
    {"role": "assistant", "content": "let me see", "tool_calls": [CALL]},
    {"role": "tool", "content": "42"},
    {"role": "assistant", "content": "42"},
]


def read_records(body: Any, name: str = "rows.jsonl") -> list[Record]:
    """Reads a file by its name and content only."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    result = read_items(select_format(name, content[:65536]), content)
    assert not [item for item in result if isinstance(item, LineProblem)]
    return [item for item in result if isinstance(item, Record)]


@pytest.mark.parametrize("path", list_dumps(), ids=lambda path: str(path.relative_to(DUMPS)))
def test_no_format_claims_a_file_of_another(path: Any) -> None:
    """Only the format table, which is tried last, also recognises some of them by their columns."""
    head = path.read_bytes()[:65536]
    names = [form.name for form in FORMATS if form.sniff(path.name, head)]
    assert names[1:] in ([], ["table"])


def test_lists_with_a_value_per_response_are_split_and_other_values_repeated() -> None:
    row = {
        "question": "2+2?", "responses": ["4", "5", "6"], "rewards": [1, 0, 0], "levels": ["a", "b"], "ids": [7, 8, 9],
        "response_ids": [[4], [5], [6]], "prompt_ids": [1, 2, 3], "parts": {"acc": [1, 0, 0]},
    }  # fmt: skip
    first, second, third = read_records(row)
    assert [first.response, second.response, third.response] == ["4", "5", "6"]
    assert [first.score, second.score, third.score] == [1, 0, 0]
    assert (second.index, second.response_ids, second.prompt_ids) == (1, [5], [1, 2, 3])
    assert second.extras == {"levels": ["a", "b"], "ids": 8, "parts": {"acc": 0}}


def test_a_list_that_is_as_long_by_chance_stays_whole() -> None:
    rows = [{"question": "q", "responses": ["a", "b"], "tags": tags} for tags in (["x", "y"], ["x"])]
    assert [item.extras["tags"] for item in read_records(rows, "a.json")] == [["x", "y"], ["x", "y"], ["x"], ["x"]]


def test_responses_without_a_prompt_are_grouped_by_their_row() -> None:
    result = read_records([{"responses": ["a", "b"], "scores": [1, 0]}] * 2, "a.json")
    assert [(item.group, item.index) for item in result] == [("1", 0), ("1", 1), ("2", 0), ("2", 1)]


def test_a_list_of_conversations_is_read() -> None:
    row = {"prompt": PROMPT_MESSAGES, "completions": [TURNS, [{"role": "assistant", "content": "7"}]], "reward": [1, 0]}
    first, second = read_records(row)
    assert (second.response, second.messages) == ("7", PROMPT_MESSAGES)
    assert first.messages == [*PROMPT_MESSAGES, *TURNS]


@pytest.mark.parametrize("form", ["native", "table", "trl-completions"])
def test_the_tool_calls_of_an_answer_in_messages_are_shown_and_kept(form: str) -> None:
    body = json.dumps({"prompt": PROMPT_MESSAGES, "response": TURNS, "score": 1}).encode()
    if form == "trl-completions":
        body = encode_parquet(step=[1], prompt=[PROMPT_MESSAGES], completion=[TURNS], acc=[1.0])
    (record,) = read_items(FORMS[form], body)
    assert record.response.startswith('let me see\n<tool_call>\n{"name": "times"')
    assert record.response.endswith("</tool_call>\ntool\n42\nassistant\n42")
    assert record.messages is not None and record.messages[1]["tool_calls"][0]["function"]["name"] == "times"


def test_a_conversation_next_to_the_response_gives_the_prompt() -> None:
    message = {"role": "assistant", "content": "42"}
    (record,) = read_records({"response": "42", "messages": [*PROMPT_MESSAGES, message]})
    assert (record.prompt, record.response) == ("user\n6*7?\nassistant\n", "42")


@pytest.mark.parametrize("name", ["conversations", "messages", "turns"])
def test_speakers_of_sharegpt_are_roles(name: str) -> None:
    messages = [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    (record,) = read_records({name: messages, "score": 1})
    assert (record.prompt, record.response) == ("system\ns\nuser\nq\nassistant\n", "a")


def test_samples_that_are_objects_in_a_row_keep_the_values_of_the_row() -> None:
    row = {"question": "q", "level": 3, "candidates": [{"text": "a", "score": 1}, {"text": "b", "score": 0}]}
    assert [(item.prompt, item.response, item.score, item.extras["level"]) for item in read_records(row)] == [
        ("q", "a", 1, 3), ("q", "b", 0, 3),
    ]  # fmt: skip
    choices = [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}]
    (record,) = read_records({"prompt": "q", "choices": choices})
    assert (record.response, record.finish_reason) == ("a", "stop")


def test_a_long_table_with_many_generations_per_row_is_read() -> None:
    names = ["step", *(f"{part}_{at}" for at in range(1, 400) for part in ("input", "output", "score"))]
    cells = [5, *(value for at in range(1, 400) for value in (f"q{at}", f"{at}" * 99, at))]
    result = read_records({"columns": names, "data": [cells, [6, *[None] * (len(names) - 1)]]}, "val.table.json")
    assert len(result) == 399
    assert (result[398].prompt, result[398].score, result[398].extras) == ("q399", 399, {"step": 5})


def test_a_truncated_list_gives_its_complete_rows_and_a_problem() -> None:
    body = json.dumps([{"question": "q, [", "response": "a", "score": at} for at in range(9)], indent=1).encode()
    *result, problem = read_items(FORMS["table"], body[:-20])
    assert [item.score for item in result] == list(range(8))
    assert problem.line == 9 and "is truncated" in problem.reason


@pytest.mark.parametrize("write", [json.dumps, repr])
def test_a_list_in_a_cell_is_read_as_a_list(write: Callable[[Any], str]) -> None:
    """As JSON, or as pandas writes it."""
    text = io.StringIO()
    csv.writer(text).writerows([("question", "responses", "score"), ("q", write(["a", "b'"]), write([1, 0]))])
    assert [(item.response, item.score) for item in read_records(text.getvalue().encode(), "a.csv")] == [
        ("a", 1),
        ("b'", 0),
    ]


def test_a_row_whose_list_of_responses_is_empty_is_left_out_and_counted() -> None:
    rows = [{"question": "q", "responses": list(answers), "score": [1] * len(answers)} for answers in ("ab", "")]
    *result, skipped = read_items(FORMS["table"], json.dumps(rows).encode())
    assert len(result) == 2 and skipped == SkippedRow("a row with an empty list of responses")


def test_text_that_is_not_utf8_is_reported() -> None:
    table = "question,response,score\nq,世界,1\n"
    problem, record = read_items(FORMS["table"], table.encode("gbk"))
    assert problem.repaired and "UTF-8" in problem.reason and "\ufffd" in record.response
    with pytest.raises(UnreadableDumpError, match="UTF-16"):
        read_items(FORMS["table"], table.encode("utf-16"))


def test_a_replacement_character_in_valid_utf8_is_no_damage() -> None:
    """A model writes one if its tokens end inside a character."""
    text = "question,response,score\nq,half \ufffd,1\nq,whole,0\n"
    assert [item.response for item in read_records(text.encode(), "a.csv")] == ["half \ufffd", "whole"]
    damaged = text.encode().replace(b"whole", b'"caf\xe9\nol\xe9"')
    first, problem, second = read_items(FORMS["table"], damaged)
    assert (first.response, second.response) == ("half \ufffd", "caf\ufffd\nol\ufffd")
    assert problem.repaired and problem.line == 4


@pytest.mark.parametrize("blank", ["\n", "\n\n  \n", "\r\n\r\n"])
def test_blank_lines_between_rows_are_no_rows(blank: str) -> None:
    rows = [json.dumps({"question": "q", "response": answer, "score": 1}) for answer in "ab"]
    for body in (f"{rows[0]}\n{blank}{rows[1]}\n", f"{blank}{rows[0]}\n{rows[1]}\n"):
        assert [item.response for item in read_records(body.encode())] == ["a", "b"]
    document = json.dumps({"question": "q", "response": "a", "score": 1}, indent=1)
    for body in (f"{blank}{document}\n", document.replace("\n", f"\n{blank}"), f"{rows[0]}\n{blank}"):
        assert [item.response for item in read_records(body.encode())] == ["a"]


def test_a_recorded_prompt_remains_when_a_tokenizer_arrives() -> None:
    def decode(rows: Any) -> list[str]:
        return [" ".join(map(str, row)) for row in rows]

    body = json.dumps({"prompt": "2+2?", "response_ids": [4, 5], "score": 1}).encode()
    (record,) = read_items(FORMS["token-table"], body, decode_tokens=decode)
    assert (record.prompt, record.response, record.textless) == ("2+2?", "4 5", False)
    body = json.dumps({"prompt_ids": [1, 2], "response_ids": [4, 5], "score": 1}).encode()
    (record,) = read_items(FORMS["token-table"], body, decode_tokens=decode)
    assert (record.prompt, record.response) == ("1 2", "4 5")


@pytest.mark.parametrize(
    "body",
    [
        {"config": {"model": "m"}, "results": [{"question": "q", "response": "a", "score": 1}]},
        {"q1": {"question": "q", "response": "a", "score": 1}},
        {"question": ["q"], "response": ["a"], "score": [1]},
        {"question": {"0": "q"}, "response": {"0": "a"}, "score": {"0": 1}},
        {"columns": ["question", "response", "score"], "index": [0], "data": [["q", "a", 1]]},
        [{"question": "q", "response": "a", "score": 1}],
        {"question": "q", "response": "a", "score": 1},
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_rows_are_found_in_json_of_different_shapes(body: Any, indent: int | None) -> None:
    (record,) = read_records(json.dumps(body, indent=indent).encode(), "report.json")
    assert (record.prompt, record.response, record.score) == ("q", "a", 1)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "version": 3}, {"results": {"gsm8k": {"acc": 0.5}}}, {"text": "a"}, ["a"], [1],
        [{"messages": PROMPT_MESSAGES}], [{"prompt": "q", "chosen": "a", "rejected": "b"}],
        {"name": "t", "parameters": {"properties": {"query": {"type": "string"}, "text": {"type": "string"}}}},
        {"added_tokens": [{"id": 0, "content": "<s>"}]},
    ],
)  # fmt: skip
def test_json_without_a_generation_is_no_table(body: Any) -> None:
    with pytest.raises(UnreadableDumpError):
        select_format("report.json", json.dumps(body).encode())


def test_the_columns_before_the_advantage_in_a_table_of_trl_are_rewards() -> None:
    rows = {
        "step": ["3"] * 2, "prompt": ["q"] * 2, "completion": ["a", "b"], "Accuracy": [1.0, 0.0], "tone": [0.5, 0.5],
        "advantages": [1.0, -1.0], "entropy": [0.1, 0.2],
    }  # fmt: skip
    first, second = read_records(rows)
    assert (first.rewards, first.score, second.score) == ({"Accuracy": 1.0, "tone": 0.5}, 1.5, 0.5)
    assert first.extras == {"entropy": 0.1, "step": 3}
    first, second = read_records(rows | {"advantages": [-1.0, 1.0]})
    assert (first.rewards, first.score) == ({"Accuracy": 1.0, "tone": 0.5}, None)


def test_gen_step_of_ms_swift_is_the_step() -> None:
    """With Ray it writes a line for each sample."""
    rows = {"gen_step": [7], "prompt": ["q"], "completion": ["a"], "accuracy": [1.0], "advantages": [0.5]}
    for body in (rows, {"gen_step": 7, "prompt": "q", "completion": "a", "reward": 1.0}):
        (record,) = read_items(FORMS["swift"], json.dumps(body).encode(), step=None)
        assert (record.extras, record.score, record.response) == ({"step": 7}, 1.0, "a")


def test_the_score_is_the_sum_of_token_scores() -> None:
    (record,) = read_records({"input_prompt": "q", "output_response": "a", "score": [0.0, 0.5, 1.0]})
    assert (record.score, record.extras["token_scores"]) == (1.5, [0.0, 0.5, 1.0])


@pytest.mark.parametrize("key", ["reward_model", "env_extras"])
def test_a_ground_truth_inside_a_column_is_found(key: str) -> None:
    (record,) = read_records({"prompt": "q", "responses": ["a"], key: {"spec": {"ground_truth": "4"}}})
    assert record.ground_truth == "4"


def lm_eval_line(**more: Any) -> dict[str, Any]:
    return {
        "doc_id": 1, "target": 4, "arguments": {"gen_args_0": {"arg_0": "2+2?", "arg_1": {}}}, "resps": [["4", "5"]],
        "filtered_resps": ["4"], "filter": "none", "metrics": ["acc"], "acc": 1.0, **more,
    }  # fmt: skip


def test_repeats_of_a_document_are_a_group_and_filters_add_no_samples() -> None:
    rows = [lm_eval_line(filter=name, acc=value) for name, value in (("strict", 0.0), ("loose", 1.0))]
    first, second = read_records(b"\n".join(json.dumps(row).encode() for row in rows))
    assert (first.response, second.response, first.group, second.index) == ("4", "5", "1", 1)
    assert (first.score, first.rewards) == (0.0, {"acc,strict": 0.0, "acc,loose": 1.0})


@pytest.mark.parametrize("change", [{"resps": []}, {"arguments": []}, {"resps": [[["nan", "False"]]]}])
def test_a_document_without_a_response_is_reported_and_the_others_are_kept(change: dict[str, Any]) -> None:
    body = b"\n".join(json.dumps(row).encode() for row in (lm_eval_line(**change), lm_eval_line(doc_id=2)))
    problem, *result = read_items(FORMS["lm-eval"], body)
    assert isinstance(problem, LineProblem) and [item.group for item in result] == ["2", "2"]


def test_samples_that_wait_for_a_filter_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples above the limit are returned before the last line is read."""
    body = b"\n".join(json.dumps(lm_eval_line(doc_id=at)).encode() for at in range(5)) + b"\n{torn"
    assert isinstance(read_items(FORMS["lm-eval"], body)[0], LineProblem)
    monkeypatch.setattr(FORMS["lm-eval"], "MAX_PENDING_CHARS", 4)
    *result, problem = read_items(FORMS["lm-eval"], body)
    assert len(result) == 10 and isinstance(problem, LineProblem)


def test_formats_with_text_are_not_token_only() -> None:
    assert not {"lm-eval", "lighteval", "inspect", "swift"} & TOKEN_ONLY_FORMATS


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_both_of_two_columns_with_the_same_name_are_kept(name: str) -> None:
    body = b"prompt,response,response\nq,first,second\n"
    if name == "table.parquet":
        sink = io.BytesIO()
        pq.write_table(pa.table([["q"], ["first"], ["second"]], ["prompt", "response", "response"]), sink)
        body = sink.getvalue()
    [record] = read_records(body, name)
    assert (record.response, record.extras) == ("second", {"response#1": "first"})


def test_a_quote_that_is_not_closed_is_reported() -> None:
    reason = "It has no rows. It begins with a problem: line 3 has 1 cells; the table has 3 columns"
    with pytest.raises(UnreadableDumpError, match=f"{reason}; perhaps a quote is not closed"):
        read_items(select_format("a.csv", b"", "table"), b'prompt,response,score\n"q1,r1,0.5\nq2,r2,1\n')
