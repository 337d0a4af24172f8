"""Files of generations in the shapes that many tools write, none of which says what it is. Whole ones: data/others."""

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
from tests.rollouts.support.trainer_dumps import parquet, read

FORMS = {form.name: form for form in FORMATS}
ASKED = [{"role": "user", "content": "6*7?"}]
CALL = {"id": "1", "function": {"name": "times", "arguments": '{"a": 6}'}}
TURNS = [
    {"role": "assistant", "content": "let me see", "tool_calls": [CALL]},
    {"role": "tool", "content": "42"},
    {"role": "assistant", "content": "42"},
]


def records(body: Any, name: str = "rows.jsonl") -> list[Record]:
    """As a file of this name that nobody says anything of is read."""
    written = body if isinstance(body, bytes) else json.dumps(body).encode()
    result = read(select_format(name, written[:65536]), written)
    assert not [item for item in result if isinstance(item, LineProblem)]
    return [item for item in result if isinstance(item, Record)]


@pytest.mark.parametrize("path", list_dumps(), ids=lambda path: str(path.relative_to(DUMPS)))
def test_no_format_claims_a_file_of_another(path: Any) -> None:
    """Only a table, which is asked last, knows some of them by their columns."""
    head = path.read_bytes()[:65536]
    claiming = [form.name for form in FORMATS if form.sniff(path.name, head)]
    assert claiming[1:] in ([], ["table"])


def test_what_is_listed_with_the_responses_is_of_each_and_the_rest_of_all() -> None:
    row = {
        "question": "2+2?", "responses": ["4", "5", "6"], "rewards": [1, 0, 0], "levels": ["a", "b"], "ids": [7, 8, 9],
        "response_ids": [[4], [5], [6]], "prompt_ids": [1, 2, 3], "parts": {"acc": [1, 0, 0]},
    }  # fmt: skip
    first, second, third = records(row)
    assert [first.response, second.response, third.response] == ["4", "5", "6"]
    assert [first.score, second.score, third.score] == [1, 0, 0]
    assert (second.index, second.response_ids, second.prompt_ids) == (1, [5], [1, 2, 3])
    assert second.extras == {"levels": ["a", "b"], "ids": 8, "parts": {"acc": 0}}


def test_a_list_that_is_as_long_by_chance_stays_whole() -> None:
    rows = [{"question": "q", "responses": ["a", "b"], "tags": tags} for tags in (["x", "y"], ["x"])]
    assert [item.extras["tags"] for item in records(rows, "a.json")] == [["x", "y"], ["x", "y"], ["x"], ["x"]]


def test_responses_to_nothing_known_are_a_group_by_their_row() -> None:
    result = records([{"responses": ["a", "b"], "scores": [1, 0]}] * 2, "a.json")
    assert [(item.group, item.index) for item in result] == [("1", 0), ("1", 1), ("2", 0), ("2", 1)]


def test_conversations_may_be_listed_too() -> None:
    row = {"prompt": ASKED, "completions": [TURNS, [{"role": "assistant", "content": "7"}]], "reward": [1, 0]}
    first, second = records(row)
    assert (second.response, second.messages) == ("7", ASKED)
    assert first.messages == [*ASKED, *TURNS]


@pytest.mark.parametrize("form", ["native", "table", "trl-completions"])
def test_the_tool_calls_of_an_answer_in_messages_are_told_and_kept(form: str) -> None:
    body = json.dumps({"prompt": ASKED, "response": TURNS, "score": 1}).encode()
    if form == "trl-completions":
        body = parquet(step=[1], prompt=[ASKED], completion=[TURNS], acc=[1.0])
    (record,) = read(FORMS[form], body)
    assert record.response.startswith('let me see\n<tool_call>\n{"name": "times"')
    assert record.response.endswith("</tool_call>\ntool\n42\nassistant\n42")
    assert record.messages is not None and record.messages[1]["tool_calls"][0]["function"]["name"] == "times"


def test_a_conversation_beside_its_last_answer_gives_the_prompt() -> None:
    message = {"role": "assistant", "content": "42"}
    (record,) = records({"response": "42", "messages": [*ASKED, message]})
    assert (record.prompt, record.response) == ("user\n6*7?\nassistant\n", "42")


@pytest.mark.parametrize("name", ["conversations", "messages", "turns"])
def test_speakers_of_sharegpt_are_roles(name: str) -> None:
    talk = [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    (record,) = records({name: talk, "score": 1})
    assert (record.prompt, record.response) == ("system\ns\nuser\nq\nassistant\n", "a")


def test_samples_that_are_objects_in_a_row_keep_what_the_row_says() -> None:
    row = {"question": "q", "level": 3, "candidates": [{"text": "a", "score": 1}, {"text": "b", "score": 0}]}
    assert [(item.prompt, item.response, item.score, item.extras["level"]) for item in records(row)] == [
        ("q", "a", 1, 3), ("q", "b", 0, 3),
    ]  # fmt: skip
    choices = [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}]
    (record,) = records({"prompt": "q", "choices": choices})
    assert (record.response, record.finish_reason) == ("a", "stop")


def test_a_table_with_a_generation_in_every_few_columns_is_read_however_long_it_is() -> None:
    names = ["step", *(f"{part}_{at}" for at in range(1, 400) for part in ("input", "output", "score"))]
    cells = [5, *(value for at in range(1, 400) for value in (f"q{at}", f"{at}" * 99, at))]
    result = records({"columns": names, "data": [cells, [6, *[None] * (len(names) - 1)]]}, "val.table.json")
    assert len(result) == 399
    assert (result[398].prompt, result[398].score, result[398].extras) == ("q399", 399, {"step": 5})


def test_a_list_that_breaks_off_gives_its_whole_rows_and_says_so() -> None:
    body = json.dumps([{"question": "q, [", "response": "a", "score": at} for at in range(9)], indent=1).encode()
    *result, problem = read(FORMS["table"], body[:-20])
    assert [item.score for item in result] == list(range(8))
    assert problem.line == 9 and "is truncated" in problem.reason


@pytest.mark.parametrize("write", [json.dumps, repr])
def test_a_list_in_a_cell_is_one(write: Callable[[Any], str]) -> None:
    """As JSON, or as pandas writes it."""
    text = io.StringIO()
    csv.writer(text).writerows([("question", "responses", "score"), ("q", write(["a", "b'"]), write([1, 0]))])
    assert [(item.response, item.score) for item in records(text.getvalue().encode(), "a.csv")] == [("a", 1), ("b'", 0)]


def test_a_row_whose_list_of_responses_is_empty_is_left_out_and_counted() -> None:
    rows = [{"question": "q", "responses": list(answers), "score": [1] * len(answers)} for answers in ("ab", "")]
    *result, left = read(FORMS["table"], json.dumps(rows).encode())
    assert len(result) == 2 and left == SkippedRow("a row with an empty list of responses")


def test_text_that_is_not_utf8_is_told() -> None:
    table = "question,response,score\nq,世界,1\n"
    problem, record = read(FORMS["table"], table.encode("gbk"))
    assert problem.repaired and "UTF-8" in problem.reason and "\ufffd" in record.response
    with pytest.raises(UnreadableDumpError, match="UTF-16"):
        read(FORMS["table"], table.encode("utf-16"))


def test_a_replacement_character_that_somebody_wrote_is_no_damage() -> None:
    """A model writes one if its tokens end within a character."""
    text = "question,response,score\nq,half \ufffd,1\nq,whole,0\n"
    assert [item.response for item in records(text.encode(), "a.csv")] == ["half \ufffd", "whole"]
    damaged = text.encode().replace(b"whole", b'"caf\xe9\nol\xe9"')
    first, problem, second = read(FORMS["table"], damaged)
    assert (first.response, second.response) == ("half \ufffd", "caf\ufffd\nol\ufffd")
    assert problem.repaired and problem.line == 4


@pytest.mark.parametrize("blank", ["\n", "\n\n  \n", "\r\n\r\n"])
def test_blank_lines_between_rows_are_no_rows(blank: str) -> None:
    rows = [json.dumps({"question": "q", "response": answer, "score": 1}) for answer in "ab"]
    for body in (f"{rows[0]}\n{blank}{rows[1]}\n", f"{blank}{rows[0]}\n{rows[1]}\n"):
        assert [item.response for item in records(body.encode())] == ["a", "b"]
    document = json.dumps({"question": "q", "response": "a", "score": 1}, indent=1)
    for body in (f"{blank}{document}\n", document.replace("\n", f"\n{blank}"), f"{rows[0]}\n{blank}"):
        assert [item.response for item in records(body.encode())] == ["a"]


def test_a_recorded_prompt_remains_when_a_tokenizer_arrives() -> None:
    def decode(rows: Any) -> list[str]:
        return [" ".join(map(str, row)) for row in rows]

    body = json.dumps({"prompt": "2+2?", "response_ids": [4, 5], "score": 1}).encode()
    (record,) = read(FORMS["token-table"], body, decode_tokens=decode)
    assert (record.prompt, record.response, record.textless) == ("2+2?", "4 5", False)
    body = json.dumps({"prompt_ids": [1, 2], "response_ids": [4, 5], "score": 1}).encode()
    (record,) = read(FORMS["token-table"], body, decode_tokens=decode)
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
def test_rows_are_found_in_whatever_json_holds_them(body: Any, indent: int | None) -> None:
    (record,) = records(json.dumps(body, indent=indent).encode(), "report.json")
    assert (record.prompt, record.response, record.score) == ("q", "a", 1)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "version": 3}, {"results": {"gsm8k": {"acc": 0.5}}}, {"text": "a"}, ["a"], [1],
        [{"messages": ASKED}], [{"prompt": "q", "chosen": "a", "rejected": "b"}],
        {"name": "t", "parameters": {"properties": {"query": {"type": "string"}, "text": {"type": "string"}}}},
        {"added_tokens": [{"id": 0, "content": "<s>"}]},
    ],
)  # fmt: skip
def test_json_without_a_generation_is_no_table(body: Any) -> None:
    with pytest.raises(UnreadableDumpError):
        select_format("report.json", json.dumps(body).encode())


def test_the_rewards_of_a_table_as_trl_logs_it_stand_before_the_advantage() -> None:
    rows = {
        "step": ["3"] * 2, "prompt": ["q"] * 2, "completion": ["a", "b"], "Accuracy": [1.0, 0.0], "tone": [0.5, 0.5],
        "advantages": [1.0, -1.0], "entropy": [0.1, 0.2],
    }  # fmt: skip
    first, second = records(rows)
    assert (first.rewards, first.score, second.score) == ({"Accuracy": 1.0, "tone": 0.5}, 1.5, 0.5)
    assert first.extras == {"entropy": 0.1, "step": 3}
    first, second = records(rows | {"advantages": [-1.0, 1.0]})
    assert (first.rewards, first.score) == ({"Accuracy": 1.0, "tone": 0.5}, None)


def test_ms_swift_counts_what_it_generated_where_megatron_trains() -> None:
    """With Ray it writes a line for each sample."""
    rows = {"gen_step": [7], "prompt": ["q"], "completion": ["a"], "accuracy": [1.0], "advantages": [0.5]}
    for body in (rows, {"gen_step": 7, "prompt": "q", "completion": "a", "reward": 1.0}):
        (record,) = read(FORMS["swift"], json.dumps(body).encode(), step=None)
        assert (record.extras, record.score, record.response) == ({"step": 7}, 1.0, "a")


def test_a_score_for_each_token_is_their_sum() -> None:
    (record,) = records({"input_prompt": "q", "output_response": "a", "score": [0.0, 0.5, 1.0]})
    assert (record.score, record.extras["token_scores"]) == (1.5, [0.0, 0.5, 1.0])


@pytest.mark.parametrize("key", ["reward_model", "env_extras"])
def test_a_ground_truth_that_stands_within_a_column_is_one(key: str) -> None:
    (record,) = records({"prompt": "q", "responses": ["a"], key: {"spec": {"ground_truth": "4"}}})
    assert record.ground_truth == "4"


def sample(**more: Any) -> dict[str, Any]:
    return {
        "doc_id": 1, "target": 4, "arguments": {"gen_args_0": {"arg_0": "2+2?", "arg_1": {}}}, "resps": [["4", "5"]],
        "filtered_resps": ["4"], "filter": "none", "metrics": ["acc"], "acc": 1.0, **more,
    }  # fmt: skip


def test_repeats_of_a_document_are_a_group_and_filters_are_no_more_samples() -> None:
    rows = [sample(filter=name, acc=value) for name, value in (("strict", 0.0), ("loose", 1.0))]
    first, second = records(b"\n".join(json.dumps(row).encode() for row in rows))
    assert (first.response, second.response, first.group, second.index) == ("4", "5", "1", 1)
    assert (first.score, first.rewards) == (0.0, {"acc,strict": 0.0, "acc,loose": 1.0})


@pytest.mark.parametrize("change", [{"resps": []}, {"arguments": []}, {"resps": [[["nan", "False"]]]}])
def test_a_document_without_a_response_is_told_and_the_others_are_kept(change: dict[str, Any]) -> None:
    body = b"\n".join(json.dumps(row).encode() for row in (sample(**change), sample(doc_id=2)))
    problem, *result = read(FORMS["lm-eval"], body)
    assert isinstance(problem, LineProblem) and [item.group for item in result] == ["2", "2"]


def test_samples_that_wait_for_a_filter_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait no longer come before what the last line says."""
    body = b"\n".join(json.dumps(sample(doc_id=at)).encode() for at in range(5)) + b"\n{torn"
    assert isinstance(read(FORMS["lm-eval"], body)[0], LineProblem)
    monkeypatch.setattr(FORMS["lm-eval"], "MAX_PENDING_CHARS", 4)
    *result, problem = read(FORMS["lm-eval"], body)
    assert len(result) == 10 and isinstance(problem, LineProblem)


def test_formats_of_others_hold_text() -> None:
    assert not {"lm-eval", "lighteval", "inspect", "swift"} & TOKEN_ONLY_FORMATS


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_of_two_columns_of_one_name_none_is_lost(name: str) -> None:
    body = b"prompt,response,response\nq,first,second\n"
    if name == "table.parquet":
        sink = io.BytesIO()
        pq.write_table(pa.table([["q"], ["first"], ["second"]], ["prompt", "response", "response"]), sink)
        body = sink.getvalue()
    [record] = records(body, name)
    assert (record.response, record.extras) == ("second", {"response#1": "first"})


def test_a_quote_that_is_not_closed_is_named() -> None:
    reason = "It has no rows. It begins with a problem: line 3 has 1 cells; the table has 3 columns"
    with pytest.raises(UnreadableDumpError, match=f"{reason}; perhaps a quote is not closed"):
        read(select_format("a.csv", b"", "table"), b'prompt,response,score\n"q1,r1,0.5\nq2,r2,1\n')
